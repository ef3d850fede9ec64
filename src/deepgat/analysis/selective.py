"""Selective prediction: no answer for nodes whose confidence is too low."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepgat.errors import UserError


def abstained(labels: Tensor, confidence: Tensor, threshold: float) -> Tensor:
    """The labels [n] with −1 where the confidence [n] is below the threshold.

    Chow's rule (*On Optimum Recognition Error and Reject Tradeoff*, 1970): with right
    probabilities no other rule that answers as often is right more often.
    """
    if not 0 <= threshold <= 1:
        raise UserError(f"abstain is {threshold}: expected a confidence from 0 to 1, such as 0.9")
    if labels.dim() != 1:
        raise UserError("abstain needs one class per node: this model predicts independent labels")
    return torch.where(confidence >= threshold, labels, -1)


class Answered(NamedTuple):
    """A point of the risk–coverage curve."""

    threshold: float
    share: float
    """Of the nodes that get an answer."""
    accuracy: float | None
    """Of the answers; None: there is none."""


def risk_coverage(confidence: Tensor, right: Tensor, thresholds: Sequence[float]) -> list[Answered]:
    """Share of nodes answered and accuracy of the answers, by threshold; both tensors [n]."""
    found = []
    for threshold in thresholds:
        kept = right[confidence >= threshold].double()
        accuracy = float(kept.mean()) if len(kept) else None
        found.append(Answered(threshold, len(kept) / len(right), accuracy))
    return found
