"""What the layers of a stack are given and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from torch import Tensor

from deepgat.nn.attention import Attention
from deepgat.ops import Neighbors

Until: TypeAlias = Callable[[int, Tensor], bool]
"""(l, the logits [n, C] of layer l) → whether that is enough."""


@dataclass(eq=False)
class LayerOutputs:
    """What every layer of a stack computed; L layers, n nodes, C classes."""

    logits: Tensor
    """[n, C], the output: layer_logits[L]."""
    layer_logits: dict[int, Tensor]
    """{l: [n, C]}: the prediction ŷ^l before softmax, averaged over heads. l = 0 … L where layers
    predict classes (layer l+1 attends by prediction l); only L elsewhere."""
    hidden: list[Tensor]
    """h^1 … h^L, each [n, width]; where no readout follows the layers, h^L is the logits. Where
    layers are computed again in the backward pass, only the last of every segment."""
    attention: list[Attention] = field(default_factory=list)
    """Per layer 1 … L, on request."""
    initial: Tensor | None = None
    """h^0 [n, width], what the encoder made of the features; None without one."""
    segment: int = 1
    """Layers from one of ``hidden`` to the next."""


@dataclass(eq=False)
class Given:
    """What every layer of one run is given besides the state."""

    neighbors: Neighbors
    label_features: Tensor | None
    labels: Tensor | None
    initial: Tensor | None = None
    with_attention: bool = False


class Computed(NamedTuple):
    """What some layers of a stack computed."""

    states: list[Tensor]
    predictions: dict[int, Tensor]
    attention: list[Attention]
