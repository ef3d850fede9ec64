"""Scores of predictions, confidence intervals of their means, and how well classes separate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from torch import Tensor

from deepgat.errors import UserError


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
