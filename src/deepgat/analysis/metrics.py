"""Scores of predictions, confidence intervals of their means, and how well classes separate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from torch import Tensor

from deepgat.analysis.calibration import BINS
from deepgat.errors import UserError, unknown_name


def predicted_labels(logits: Tensor, multi_label: bool) -> Tensor:
    """The class of the largest logit [n], or every label whose logit is above 0 [n, C]."""
    return (logits > 0) if multi_label else logits.argmax(-1)


def micro_f1(logits: Tensor, y: Tensor) -> Tensor:
    """Micro-averaged F1 = 2 TP / (2 TP + FP + FN), a number in [0, 1] on the logits' device.

    With one class per node (y [n]) it is the accuracy. With independent labels (y [n, C]), a label
    is predicted if its logit is above 0. Without any true or predicted label the score is 0.
    """
    if y.dim() == 1:
        return (predicted_labels(logits, False) == y).double().mean()
    hits, named = f1_counts(logits, y)
    return torch.where(named > 0, 2 * hits / named.clamp(min=1), 0.0)


def f1_counts(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(TP, 2 TP + FP + FN) as doubles: micro-F1 is twice the first divided by the second.

    Counts of several subsets can be added.
    """
    if y.dim() == 1:
        hits = (predicted_labels(logits, False) == y).sum().double()
        return hits, hits.new_tensor(2 * y.numel())
    predicted, true = predicted_labels(logits, True), y > 0
    return (predicted & true).sum().double(), (predicted.sum() + true.sum()).double()


METRICS = (
    "accuracy",
    "micro_f1",
    "macro_f1",
    "balanced_accuracy",
    "roc_auc",
    "average_precision",
    "brier",
    "calibration_error",
)
"""Scores of predictions, named as in scikit-learn; the last two are errors: smaller is better."""
ERRORS = frozenset(("brier", "calibration_error"))
BLOCK = 2**24
"""Numbers that are sorted at a time."""


def score(name: str, logits: Tensor, labels: Tensor, multi_label: bool) -> float:
    """How good the predictions are by the metric, higher is better: errors are negated.

    ``labels`` [n] classes, or [n, C] of independent labels, all known. A metric that these labels
    do not define, such as ROC-AUC where all nodes are of one class, is refused.
    """
    found = metric(name, logits, labels, multi_label).item()
    if math.isnan(found):
        raise UserError(f"{name} is not defined here: {undefined(name, logits, labels)}")
    return -found if name in ERRORS else found


def check_metric(name: str) -> None:
    """Refuse what is no metric."""
    if name not in METRICS:
        raise unknown_name("metric", str(name), METRICS)


def metric(name: str, logits: Tensor, labels: Tensor, multi_label: bool) -> Tensor:
    """One of :data:`METRICS`, a double on the logits' device; NaN where it is not defined.

    It does not wait for the device, and a CUDA graph can record it. Classes are averaged over

    - macro F1: those that are true or predicted somewhere; independent labels: all;
    - balanced accuracy, the mean recall: those that have a node;
    - ROC-AUC, average precision: those with and without a node, each against the rest. Of two
      classes, only the second counts.

    The Brier score is Σ_c (p_c − [y = c])², averaged over nodes (of two classes, half of it), or
    (p − y)² averaged over nodes and independent labels. The calibration error is that of the
    predicted class's probability, or of every label's, in 15 intervals
    (:func:`deepgat.analysis.reliability`).
    """
    check_metric(name)
    if not len(labels):
        return torch.full((), math.nan, dtype=torch.double, device=logits.device)
    if name == "micro_f1" or (name == "accuracy" and not multi_label):
        return micro_f1(logits, labels)
    logits, classes = logits.detach().double(), logits.size(-1)
    chosen = predicted_labels(logits, multi_label)
    if multi_label:
        true, predicted, shares = labels > 0, chosen, logits.sigmoid()
    else:
        number = torch.arange(classes, device=logits.device)
        true, predicted = labels[:, None] == number, chosen[:, None] == number
        shares = logits.softmax(-1)
    sizes, hits = true.sum(0).double(), (true & predicted).sum(0).double()
    match name:
        case "accuracy":
            found = (predicted == true).all(1).double().mean()
        case "macro_f1":
            named = sizes + predicted.sum(0)
            f1 = torch.where(named > 0, 2 * hits / named.clamp(min=1), 0.0)
            found = f1.mean() if multi_label else _mean(f1, named > 0)
        case "balanced_accuracy":
            found = _mean(hits / sizes.clamp(min=1), sizes > 0)
        case "roc_auc" | "average_precision":
            one: slice | Tensor = slice(None)
            if classes == 2 and not multi_label:
                one = slice(1, None)
            elif classes > len(labels) and logits.device.type == "cpu":
                # most classes have no node; no CUDA graph can record this
                one = (sizes > 0).nonzero().squeeze(1)
            rank = _roc_auc if name == "roc_auc" else _average_precision
            block = max(1, BLOCK // len(labels))
            columns = (x[:, one].T.contiguous().split(block) for x in (shares, true))
            values, counted = zip(*map(rank, *columns), strict=True)
            found = _mean(torch.cat(values), torch.cat(counted))
        case "brier":
            errors = (shares - true.double()).square()
            found = errors.mean() if multi_label or classes == 2 else errors.sum(1).mean()
        case _:
            if multi_label:
                sure, right = torch.maximum(shares, 1 - shares), predicted == true
            else:
                sure, right = shares.max(1).values, chosen == labels
            found = _calibration_error(sure.flatten(), right.flatten())
    return torch.where(logits.isfinite().all(), found, math.nan)


def undefined(name: str, logits: Tensor, labels: Tensor) -> str:
    """Why a metric of these labels is NaN, in words."""
    if not len(labels):
        return "there is no labelled node"
    if not bool(logits.isfinite().all()):
        return "an output of the model is not finite"
    if name == "balanced_accuracy":
        return "no node has a label"
    return "no class has both nodes that are of it and nodes that are not"


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Of those that count; NaN if none does."""
    return torch.where(counted, values, 0.0).sum() / counted.sum()


def _ordered(shares: Tensor, true: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Descending [C, n]: shares, negated, which are true, and the true ones so far."""
    keys, order = (-shares).sort(1)
    hit = true.gather(1, order).double()
    return keys, hit, hit.cumsum(1)


def _roc_auc(shares: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """[C]: the share of pairs (true, false) in order, ties by half; and whether there is a pair."""
    keys, hit, so_far = _ordered(shares, true)
    n, positives = keys.size(1), hit.sum(1)
    negatives = n - positives
    padded = torch.nn.functional.pad(so_far, (1, 0))
    before = torch.searchsorted(keys, keys)  # how many are strictly larger
    upto = torch.searchsorted(keys, keys, right=True)
    strictly = before - padded.gather(1, before)  # of them, false
    equal = upto - padded.gather(1, upto)
    pairs = positives * negatives
    wrong = (hit * (strictly + equal) / 2).sum(1)
    return 1 - wrong / pairs.clamp(min=1), pairs > 0


def _average_precision(shares: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """[C]: the mean precision at every true node, ties taken together; and whether there is one."""
    keys, hit, so_far = _ordered(shares, true)
    upto = torch.searchsorted(keys, keys, right=True)
    precision = so_far.gather(1, upto - 1) / upto
    positives = hit.sum(1)
    both = (positives > 0) & (positives < keys.size(1))
    return (hit * precision).sum(1) / positives.clamp(min=1), both


def _calibration_error(sure: Tensor, right: Tensor) -> Tensor:
    """Σ_k |Σ_{v in interval k} (right_v − sure_v)| / n."""
    place = (sure * BINS).ceil().long().clamp(1, BINS) - 1
    inside = place == torch.arange(BINS, device=sure.device)[:, None]
    gaps = torch.where(inside, right.double() - sure, 0.0).sum(1)
    return gaps.abs().sum() / len(sure)


def error_of_difference(name: str, a: Tensor, b: Tensor, y: Tensor, multi_label: bool) -> float:
    """The standard error of the difference of two models' scores on the same nodes.

    For accuracy from each node's difference, else by drawing nodes anew 30 times. ``a``, ``b``:
    logits [n, C].
    """
    generator = torch.Generator().manual_seed(0)
    n = len(y)
    if name in ("micro_f1", "accuracy") and not multi_label:
        difference = (a.argmax(1) == y).double() - (b.argmax(1) == y).double()
        return float(difference.std()) / n**0.5 if n > 1 else 1.0
    found = []
    for _ in range(30):
        rows = torch.randint(n, (n,), generator=generator)
        try:
            found.append(
                score(name, a[rows], y[rows], multi_label)
                - score(name, b[rows], y[rows], multi_label)
            )
        except UserError:  # a class without a node in the sample
            continue
    return float(torch.tensor(found).double().std()) if len(found) > 1 else 1.0


class Interval(NamedTuple):
    """A mean and the half-width of its 95% confidence interval."""

    mean: float
    half_width: float


def confidence_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's t interval of the mean; the half-width is NaN for a single value."""
    n = len(values)
    if n < 2:
        return Interval(fmean(values), math.nan)
    from scipy import stats  # here, because importing it takes a second

    quantile = float(stats.t.ppf((1 + level) / 2, n - 1))
    return Interval(fmean(values), quantile * stdev(values) / math.sqrt(n))


def paired_p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of the paired t-test (mean difference 0); NaN for a single pair."""
    if len(differences) < 2:
        return math.nan
    if stdev(differences) == 0.0:
        return 1.0 if fmean(differences) == 0.0 else 0.0
    from scipy import stats  # here, because importing it takes a second

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def nearest_neighbor_error(
    representation: Tensor, y: Tensor, prototypes: Tensor, queries: Tensor
) -> float:
    """e_N: the share of queries whose nearest prototype (Euclidean) has another class.

    Args:
        representation: [n, m], h^L.
        y: [n] classes.
        prototypes: [n] bool; training nodes, in the authors' code also validation nodes.
        queries: [n] bool, usually the test nodes.
    """
    if y.dim() != 1:
        raise UserError("the nearest-neighbour error needs one class per node, not several labels")
    for name, mask in (("prototypes", prototypes), ("queries", queries)):
        if not mask.any():
            raise UserError(f"{name} has no node: the nearest-neighbour error needs at least one")
    if not representation.isfinite().all():
        raise UserError("representation is not finite: it has no nearest neighbours")
    from sklearn.neighbors import KNeighborsClassifier  # here: importing it takes a second

    points = representation.detach().cpu().numpy()
    classes, known, asked = y.cpu().numpy(), prototypes.cpu().numpy(), queries.cpu().numpy()
    classifier = KNeighborsClassifier(n_neighbors=1).fit(points[known], classes[known])
    return float((classifier.predict(points[asked]) != classes[asked]).mean())


class ErrorBounds(NamedTuple):
    """lower ≤ e_B ≤ upper."""

    lower: float
    upper: float


def bayes_error_bounds(nearest_error: float, num_classes: int) -> ErrorBounds:
    """(1 − sqrt(1 − π e_N)) / π ≤ e_B ≤ e_N with π = C / (C − 1) (Cover and Hart).

    The lower bound holds for e_N ≤ 1/π. A larger e_N is worse than guessing, and the bound is NaN.
    """
    if num_classes < 2:
        return ErrorBounds(0.0, nearest_error)
    ratio = num_classes / (num_classes - 1)
    inside = 1 - ratio * nearest_error
    if inside < -1e-12:  # beyond rounding
        return ErrorBounds(math.nan, nearest_error)
    return ErrorBounds((1 - math.sqrt(max(inside, 0.0))) / ratio, nearest_error)
