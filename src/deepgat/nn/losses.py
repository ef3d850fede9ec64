"""Training losses: one term per layer, or the output only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.ops import current_part, node_mean_share


def layer_weights(layers: Sequence[int], delta: float, like: Tensor) -> Tensor:
    """γ(l) = δ / (l + δ) + 1 of consecutive layers [K], in the device and dtype of ``like``.

    It falls from 2 at layer 0 towards 1; it is always 1 if δ = 0.
    """
    number = torch.arange(layers[0], layers[-1] + 1, device=like.device, dtype=like.dtype)
    return (delta / (number + delta) if delta else torch.zeros_like(number)) + 1.0


def classification_loss(logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy averaged over nodes (y [n]), or over nodes and labels (y [n, C]).

    With ``reduction="none"``, per node [n], or per node and label [n, C].
    """
    if y.dim() == 1:
        return F.cross_entropy(logits, y, reduction=reduction)
    return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype), reduction=reduction)


def layer_losses(
    layer_logits: Mapping[int, Tensor],
    layers: Sequence[int],
    y: Tensor,
    nodes: Tensor,
    node_weight: Tensor | None = None,
) -> Tensor:
    """:func:`classification_loss` of every layer on the nodes [k]: [K].

    With ``node_weight`` [k], the weighted mean Σ_v w_v CE_v / Σ_v w_v; independent labels may have
    a weight each, [k, C].
    """
    logits = torch.stack([layer_logits[layer].index_select(0, nodes) for layer in layers])
    true = y.index_select(0, nodes)
    true = true.expand(len(layers), *true.shape)
    each = classification_loss(logits.flatten(0, 1), true.flatten(0, 1), reduction="none")
    if node_weight is not None:
        each = each.view(len(layers), len(nodes), each.numel() // max(len(layers) * len(nodes), 1))
        each = each.mean(2) if node_weight.dim() == 1 else each.flatten(1)
        total, part = node_weight.sum(), current_part()
        if part is not None:
            total = part.total(total.view(1))[0]
        return each @ (node_weight / total).to(each.dtype).flatten()
    return node_mean_share(each.view(len(layers), each.numel() // len(layers)), 1)


class Loss(Protocol):
    """Maps the logits of every layer {l: [n, C]}, labels and training nodes to a scalar.

    For a partitioned graph, it returns this process's share; the shares add up to the loss.
    """

    def __call__(
        self,
        layer_logits: Mapping[int, Tensor],
        y: Tensor,
        nodes: Tensor,
        node_weight: Tensor | None = None,
    ) -> Tensor:
        """``nodes`` [k]: indices of the training nodes; ``node_weight`` [k], or
        [k, C] for independent labels: their weights."""
        ...


@dataclass(frozen=True)
class OutputLoss:
    """CE(ŷ^L on V'), for models in which only the last layer predicts."""

    def __call__(
        self,
        layer_logits: Mapping[int, Tensor],
        y: Tensor,
        nodes: Tensor,
        node_weight: Tensor | None = None,
    ) -> Tensor:
        last = max(layer_logits)
        if current_part() is not None or node_weight is not None:
            return layer_losses(layer_logits, [last], y, nodes, node_weight)[0]
        logits = layer_logits[last].index_select(0, nodes)
        return classification_loss(logits, y.index_select(0, nodes))


@dataclass(frozen=True)
class LayerwiseLoss:
    """Σ_l γ(l) · CE(ŷ^l on V') from l = ``first_layer`` to L.

    ``first_layer`` is 1 in the paper. It is 0 in the authors' code, which also trains the
    prediction from the raw features.
    """

    delta: float
    first_layer: int = 1

    def __call__(
        self,
        layer_logits: Mapping[int, Tensor],
        y: Tensor,
        nodes: Tensor,
        node_weight: Tensor | None = None,
    ) -> Tensor:
        layers = [layer for layer in sorted(layer_logits) if layer >= self.first_layer]
        terms = layer_losses(layer_logits, layers, y, nodes, node_weight)
        return (layer_weights(layers, self.delta, terms) * terms).sum()


@dataclass(frozen=True)
class OutputAndLayersLoss:
    """CE(ŷ^L on V') + λ Σ_{l<L} γ̃(l) · CE(ŷ^l on V'), where γ̃ is the paper's γ scaled to sum 1.

    ``weight`` is λ, the total weight of the layers before the last.
    """

    delta: float
    weight: float

    def __call__(
        self,
        layer_logits: Mapping[int, Tensor],
        y: Tensor,
        nodes: Tensor,
        node_weight: Tensor | None = None,
    ) -> Tensor:
        layers = sorted(layer_logits)
        if not self.weight or len(layers) == 1:
            return OutputLoss()(layer_logits, y, nodes, node_weight)
        terms = layer_losses(layer_logits, layers, y, nodes, node_weight)
        gammas = layer_weights(layers[:-1], self.delta, terms)
        return terms[-1] + self.weight * (gammas / gammas.sum() * terms[:-1]).sum()


@dataclass(frozen=True)
class ViewsLoss:
    """The mean over views s of CE(ŷ^(s) on V') + λ/n Σ_v ‖p^(s)_v − p̄'_v‖², p = softmax(ŷ).

    p̄ is the mean of the views' p; p̄'_c = p̄_c^(1/T) / Σ_d p̄_d^(1/T), without gradient. For
    independent labels p is the sigmoid, and each label and its opposite are two classes. The logits
    of the views are given as those of layers are.
    """

    weight: float
    """λ"""
    temperature: float
    """T"""

    def __call__(
        self,
        layer_logits: Mapping[int, Tensor],
        y: Tensor,
        nodes: Tensor,
        node_weight: Tensor | None = None,
    ) -> Tensor:
        views = sorted(layer_logits)
        loss = layer_losses(layer_logits, views, y, nodes, node_weight).mean()
        if not self.weight:
            return loss
        logits = torch.stack([layer_logits[view] for view in views])
        if y.dim() == 2:
            logits = torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)], -1)
        shares = logits.softmax(-1)
        sharp = (shares.detach().mean(0).log() / self.temperature).softmax(-1)
        apart = (shares - sharp).square().flatten(2).sum(2).mean(0)
        return loss + self.weight * node_mean_share(apart, 0)
