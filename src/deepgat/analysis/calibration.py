"""Calibration of confidences: temperature scaling and reliability."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.errors import UserError

BINS = 15
SPAN = 6.0
"""The search interval of log T is [−SPAN, SPAN]."""


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """T > 0 that minimises the negative log-likelihood of softmax(logits / T) on labelled nodes.

    logits [n, C], y [n]. The loss is convex in 1/T, so it has one minimum in log T, which a bounded
    scalar search finds. Temperature scaling does not change the accuracy.
    """
    _check(logits, y)
    logits = logits.double()

    def loss(log_t: float) -> float:
        return float(F.cross_entropy(logits / torch.tensor(log_t).double().exp(), y))

    from scipy.optimize import minimize_scalar  # here, because importing it takes a second

    found = minimize_scalar(loss, bounds=(-SPAN, SPAN), method="bounded", options={"xatol": 1e-4})
    return float(torch.tensor(found.x).double().exp())


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy per bin of confidence, for the K nonempty bins."""

    confidence: Tensor
    """[K]: mean confidence."""
    accuracy: Tensor
    """[K]: share of correct predictions."""
    count: Tensor
    """[K]: number of nodes."""

    @property
    def error(self) -> float:
        """The expected calibration error, Σ_k (n_k / n) |accuracy_k − confidence_k|."""
        weight = self.count / self.count.sum()
        return float((weight * (self.accuracy - self.confidence).abs()).sum())


def reliability(probabilities: Tensor, y: Tensor, bins: int = BINS) -> Reliability:
    """Bin nodes by their confidence max_c p_c into equal intervals; p [n, C], y [n]."""
    _check(probabilities, y)
    if bins < 1:
        raise UserError(f"bins is {bins}: expected 1 or more")
    confidence, predicted = probabilities.double().max(1)
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    count = torch.bincount(place, minlength=bins).double()
    right = torch.bincount(place, (predicted == y).double(), minlength=bins)
    total = torch.bincount(place, confidence, minlength=bins)
    held = count > 0
    return Reliability(total[held] / count[held], right[held] / count[held], count[held])


def _check(values: Tensor, y: Tensor) -> None:
    if values.dim() != 2 or y.shape != values.shape[:1] or not len(y):
        raise UserError(
            f"predictions have shape {list(values.shape)} and labels have shape {list(y.shape)}: "
            "expected [n, classes] and [n], with at least one node"
        )
    if int(y.min()) < 0:
        raise UserError("a label is -1 (unknown): leave unlabelled nodes out")
