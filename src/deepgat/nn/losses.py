"""The training loss: one term per layer, or the output's alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


def layer_weight(layer: int, delta: float) -> float:
    """γ(l) = δ / (l + δ) + 1: 2 at layer 0, falling towards 1; δ = 0 weighs all layers by 1."""
    return (delta / (layer + delta) if delta else 0.0) + 1.0


def classification_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy averaged over nodes (y [n]), or over nodes and labels (y [n, C])."""
    if y.dim() == 1:
        return F.cross_entropy(logits, y)
    return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))


class Loss(Protocol):
    """From every layer's logits {l: [n, C]}, the labels and the training nodes to a number."""

    def __call__(self, layer_logits: Mapping[int, Tensor], y: Tensor, nodes: Tensor) -> Tensor:
        """``nodes``: [k], their numbers."""
        ...


@dataclass(frozen=True)
class OutputLoss:
    """CE(ŷ^L on V'): the output alone, for models whose layers do not predict."""

    def __call__(self, layer_logits: Mapping[int, Tensor], y: Tensor, nodes: Tensor) -> Tensor:
        logits = layer_logits[max(layer_logits)]
        return classification_loss(logits.index_select(0, nodes), y.index_select(0, nodes))


@dataclass(frozen=True)
class LayerwiseLoss:
    """Σ_l γ(l) · CE(ŷ^l on V') from l = ``first_layer`` to L.

    ``first_layer`` is 1 in the paper; 0 in the authors' code, which also trains the prediction
    made from the raw features.
    """

    delta: float
    first_layer: int = 1

    def __call__(self, layer_logits: Mapping[int, Tensor], y: Tensor, nodes: Tensor) -> Tensor:
        true = y.index_select(0, nodes)
        terms = [
            layer_weight(layer, self.delta)
            * classification_loss(logits.index_select(0, nodes), true)
            for layer, logits in layer_logits.items()
            if layer >= self.first_layer
        ]
        return torch.stack(terms).sum()
