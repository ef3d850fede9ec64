"""Calibration of confidences: temperature scaling and reliability."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.analysis.conformal import conformal_scores, prediction_sets, thresholds
from deepgat.errors import UserError

BINS = 15
SPAN = 6.0
"""The search interval of log T is [−SPAN, SPAN]."""
LEAST_NODES = 50
"""With fewer validation nodes the temperature stays 1."""
TEMPERATURES = tuple(2.0 ** (k / 4) for k in range(-8, 17))
"""The grid for losses inside a training step, which may run as a recorded CUDA graph and cannot
search: from 1/4 to 16. Everything outside of training uses :func:`fit_temperature`."""


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """T > 0 that minimises the negative log-likelihood of softmax(logits / T) on labelled nodes.

    logits [n, C], y [n]; or y [n, C] of independent labels, and sigmoid(logits / T). Guo et al.,
    *On Calibration of Modern Neural Networks*, ICML 2017. The loss is convex in β = 1/T, so its
    minimum is the root of the derivative, mean_v (Σ_c p_vc z_vc − z_vy), that a bracketing search
    finds; without a root in the interval T is the interval's better end. T has six significant
    digits, so that it does not depend on the order of the nodes. Predicted classes do not change.
    """
    _check(logits, y)
    z, multi = logits.detach().double().cpu(), y.dim() == 2
    true = (
        y.detach().double().cpu()
        if multi
        else F.one_hot(y.detach().cpu().long(), z.size(1)).double()
    )

    def slope(log_t: float) -> float:
        scaled = z * math.exp(-log_t)
        shares = scaled.sigmoid() if multi else scaled.softmax(1)
        return float(((shares - true) * z).sum()) / len(z)

    from scipy.optimize import brentq  # here, because importing it takes a second

    if slope(-SPAN) <= 0:  # the loss still falls towards T = 0
        found = -SPAN
    elif slope(SPAN) >= 0:
        found = SPAN
    else:
        found = float(brentq(slope, -SPAN, SPAN, xtol=1e-12))
    return float(f"{math.exp(found):.6g}")


def choose_temperature(logits: Tensor, y: Tensor, least: int = LEAST_NODES) -> float:
    """:func:`fit_temperature`, or 1 where the nodes cannot tell.

    They cannot if there are fewer than ``least``, if all are of one class, or if every prediction
    is right: the likelihood then has no maximum. Neither can logits that are not finite.
    """
    if len(y) < least or not bool(logits.isfinite().all()):
        return 1.0
    if y.dim() == 1:
        right, kinds = logits.argmax(1) == y, len(y.unique())
    else:
        right, kinds = (logits > 0) == (y > 0), 2
    return 1.0 if kinds < 2 or bool(right.all()) else fit_temperature(logits, y)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What validation nodes tell of a model's probabilities; saved with the model."""

    temperature: float = 1.0
    scores: tuple[Tensor, ...] = ()
    """For each class the conformal scores 1 − p_y of its validation nodes, ascending; empty for
    independent labels and without validation nodes."""

    @staticmethod
    def fit(logits: Tensor, y: Tensor) -> Calibration:
        """From the logits [n, C] and the labels of the validation nodes, [n] or [n, C]."""
        if not len(y) or not bool(logits.isfinite().all()):
            return Calibration()
        logits, y = logits.detach().cpu(), y.detach().cpu()
        found = Calibration(choose_temperature(logits, y))
        if y.dim() == 2:
            return found
        shares = found.probabilities(logits.double(), False)
        return Calibration(found.temperature, conformal_scores(shares, y))

    def probabilities(self, logits: Tensor, multi_label: bool) -> Tensor:
        """softmax(logits / T), or sigmoid(logits / T) of independent labels; [n, C]."""
        scaled = logits / self.temperature
        return scaled.sigmoid() if multi_label else scaled.softmax(-1)

    def sets(self, logits: Tensor, coverage: float, class_conditional: bool = False) -> Tensor:
        """[n, C] bool: the classes in each node's prediction set, from its logits [n, C].

        With probability ``coverage`` or more a set holds the node's class
        (:mod:`deepgat.analysis.conformal`). The predicted class is always in the set.
        """
        limits = self.limits(coverage, class_conditional)
        sets = prediction_sets(self.probabilities(logits.double(), False), limits)
        return sets.scatter(1, logits.argmax(1, keepdim=True), True)

    def limits(self, coverage: float, class_conditional: bool = False) -> Tensor:
        """[C]: the largest score 1 − p_c with which class c belongs to a set; ∞: always."""
        if not self.scores:
            raise UserError(
                "coverage needs the scores of validation nodes with one class each, and this model "
                "has none: train it with validation nodes, on one class per node"
            )
        return thresholds(self.scores, coverage, class_conditional)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"temperature": self.temperature, "scores": [each.tolist() for each in self.scores]}

    @staticmethod
    def of(plain: Mapping[str, Any], num_classes: int) -> Calibration:
        """From what :meth:`to_dict` made; ValueError says what is wrong with anything else."""
        if not isinstance(plain, Mapping) or plain.keys() != {"temperature", "scores"}:
            raise ValueError("expected temperature and scores")
        temperature, scores = plain["temperature"], plain["scores"]
        if type(temperature) not in (int, float) or not 0 < temperature < 1e6:
            raise ValueError(f"the temperature is {str(temperature)[:40]!r}")
        if not isinstance(scores, list) or len(scores) not in (0, num_classes):
            raise ValueError(f"expected a list of scores for each of {num_classes} classes")
        for each in scores:
            if not isinstance(each, list) or not all(type(x) in (int, float) for x in each):
                raise ValueError("scores are not lists of numbers")
            if not all(a <= b for a, b in pairwise([0, *each, 1])):
                raise ValueError("scores are not ascending numbers from 0 to 1")
        held = tuple(torch.tensor(each, dtype=torch.double) for each in scores)
        return Calibration(float(temperature), held)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy per bin of confidence, for the K nonempty bins."""

    confidence: Tensor
    """[K]: mean confidence."""
    accuracy: Tensor
    """[K]: share of correct predictions."""
    count: Tensor
    """[K]: number of nodes."""
    place: Tensor
    """[K]: k of the bin, the interval (k / bins, (k + 1) / bins]."""

    @property
    def error(self) -> float:
        """The expected calibration error, Σ_k (n_k / n) |accuracy_k − confidence_k|."""
        weight = self.count / self.count.sum()
        return float((weight * (self.accuracy - self.confidence).abs()).sum())


def reliability(probabilities: Tensor, y: Tensor, bins: int = BINS) -> Reliability:
    """Bin nodes by their confidence max_c p_c into equal intervals; p [n, C], y [n].

    With independent labels, y [n, C], every label of every node counts, with max(p, 1 − p).
    """
    _check(probabilities, y)
    if bins < 1:
        raise UserError(f"bins is {bins}: expected 1 or more")
    sure, right = confidence_and_hits(probabilities, y)
    place = (sure * bins).ceil().long().clamp(1, bins) - 1
    count = torch.bincount(place, minlength=bins).double()
    hits = torch.bincount(place, right.double(), minlength=bins)
    total = torch.bincount(place, sure, minlength=bins)
    held = (count > 0).nonzero().squeeze(1)
    return Reliability(total[held] / count[held], hits[held] / count[held], count[held], held)


def confidence_and_hits(probabilities: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each prediction's confidence, and whether it is right: [n], or [n · C] of labels."""
    shares = probabilities.double()
    if y.dim() == 2:
        sure, right = torch.maximum(shares, 1 - shares), (shares > 0.5) == (y > 0)
        return sure.flatten(), right.flatten()
    sure, predicted = shares.max(1)
    return sure, predicted == y


def _check(values: Tensor, y: Tensor) -> None:
    fits = y.shape in (values.shape, values.shape[:1]) if values.dim() == 2 else False
    if not fits or not len(y):
        raise UserError(
            f"predictions have shape {list(values.shape)} and labels have shape {list(y.shape)}: "
            "expected [n, classes] and [n], with at least one node"
        )
    if float(y.min()) < 0:
        raise UserError("a label is -1 (unknown): leave unlabelled nodes out")
