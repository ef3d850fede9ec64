"""Whether a confidence is worth its name, and the temperature that makes it so."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.errors import UserError

BINS = 15
SPAN = 6.0
"""log T is looked for between −SPAN and SPAN."""


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """T > 0 that minimises the negative log-likelihood of softmax(logits / T) on labelled nodes.

    logits [n, C], y [n]. The loss is convex in 1/T, so it has one valley in log T, which a golden
    section finds; the order of classes, hence the accuracy, is not touched.
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
    """Confidence against accuracy in bins of confidence: K bins that hold any node."""

    confidence: Tensor
    """[K]: mean confidence in the bin."""
    accuracy: Tensor
    """[K]: share of right predictions in it."""
    count: Tensor
    """[K]: nodes in it."""

    @property
    def error(self) -> float:
        """The expected calibration error, Σ_k (n_k / n) |accuracy_k − confidence_k|."""
        weight = self.count / self.count.sum()
        return float((weight * (self.accuracy - self.confidence).abs()).sum())


def reliability(probabilities: Tensor, y: Tensor, bins: int = BINS) -> Reliability:
    """Nodes sorted into equal intervals of their confidence, max_c p_c; p [n, C], y [n]."""
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
            f"there are values of shape {list(values.shape)} and labels of shape {list(y.shape)}: "
            "expected [n, classes] and [n], with at least one node"
        )
    if int(y.min()) < 0:
        raise UserError("a label is -1, unknown: leave nodes without a label out")
