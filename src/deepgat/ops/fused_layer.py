"""A whole layer as one autograd node, on devices that have one: GPUs (``gpu/fused_layer.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from deepgat.ops import backends
from deepgat.ops.neighbors import Neighbors


class Layer(NamedTuple):
    """The weights of a layer. Its score has W₁ (DeepGAT) or w_t and w_s (GAT)."""

    weight: Tensor
    class_weight: Tensor | None
    target: Tensor | None
    source: Tensor | None
    bias: Tensor | None


class Settings(NamedTuple):
    """What a layer does with its weights; names as in :class:`.attention_operator.Inputs`."""

    heads: int
    scale: float
    slope: float
    independent_labels: bool
    symmetric_normalization: bool
    dropout: float


Run = Callable[[Tensor, Neighbors, Layer, Settings], list[Tensor] | None]
RUN: dict[str, Run] = {}
"""By device type: out [n, H·D] and, with W₁, the class logits [n, H, C]; None if it cannot."""


def run(x: Tensor, neighbors: Neighbors, layer: Layer, settings: Settings) -> list[Tensor] | None:
    """The layer by the node of its device; None if there is none, or not for such a call."""
    found = RUN.get(x.device.type)
    if (
        found is None
        or type(neighbors) is not Neighbors  # each part of a graph waits for the others
        or neighbors.log_weight is not None
        or neighbors.features is not None
        or not backends.kernels_run_on(x.device.type)
    ):
        return None
    return found(x, neighbors, layer, settings)
