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
    """From every layer's logits {l: [n, C]}, the labels and the training mask to a number."""

    def __call__(self, layer_logits: Mapping[int, Tensor], y: Tensor, mask: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class OutputLoss:
    """CE(ŷ^L on V'): the output alone, for models whose layers do not predict."""

    def __call__(self, layer_logits: Mapping[int, Tensor], y: Tensor, mask: Tensor) -> Tensor:
        return classification_loss(layer_logits[max(layer_logits)][mask], y[mask])


@dataclass(frozen=True)
class LayerwiseLoss:
    """Σ_l γ(l) · CE(ŷ^l on V') from l = ``first_layer`` to L.

    ``first_layer`` is 1 in the paper; 0 in the authors' code, which also trains the prediction
    made from the raw features.
    """

    delta: float
    first_layer: int = 1

    def __call__(self, layer_logits: Mapping[int, Tensor], y: Tensor, mask: Tensor) -> Tensor:
        terms = [
            layer_weight(layer, self.delta) * classification_loss(logits[mask], y[mask])
            for layer, logits in layer_logits.items()
            if layer >= self.first_layer
        ]
        return torch.stack(terms).sum()


@dataclass(frozen=True)
class OutputAndLayersLoss:
    """CE(ŷ^L on V') + λ Σ_{l<L} γ̃(l) · CE(ŷ^l on V'), γ̃ the paper's γ divided by its sum.

    The output counts fully; the layers before it, together, with ``weight``, λ.
    """

    delta: float
    weight: float

    def __call__(self, layer_logits: Mapping[int, Tensor], y: Tensor, mask: Tensor) -> Tensor:
        last = max(layer_logits)
        loss = classification_loss(layer_logits[last][mask], y[mask])
        before = [layer for layer in layer_logits if layer < last]
        if not self.weight or not before:
            return loss
        gammas = [layer_weight(layer, self.delta) for layer in before]
        terms = torch.stack([classification_loss(layer_logits[k][mask], y[mask]) for k in before])
        shares = terms.new_tensor(gammas) / sum(gammas)
        return loss + self.weight * (shares * terms).sum()
