"""What the layers of a network are given and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from torch import Tensor

from deepgat.nn.conv_output import Attention
from deepgat.ops import Neighbors

Until: TypeAlias = Callable[[int, Tensor], bool]
"""(l, the logits [n, C] of layer l) → whether that is enough."""


@dataclass(eq=False)
class LayerOutputs:
    """What every layer of a network computed; L layers, n nodes, C classes."""

    logits: Tensor
    """[n, C], the output: layer_logits[L]."""
    layer_logits: dict[int, Tensor]
    """{l: [n, C]}: the prediction ŷ^l before softmax, averaged over heads. l = 0 … L where layers
    predict classes (layer l+1 attends by prediction l); only L elsewhere."""
    hidden: list[Tensor]
    """h^1 … h^L, each [n, width]; where no readout follows the layers, h^L is the logits. Where
    layers are recomputed in the backward pass, only the last of every segment."""
    attention: list[Attention] = field(default_factory=list)
    """Per layer 1 … L, on request."""
    initial: Tensor | None = None
    """h^0 [n, width], the encoder's output; None without an encoder."""
    segment: int = 1
    """Layers from one of ``hidden`` to the next."""


@dataclass(eq=False)
class Context:
    """What every layer of one run is given besides h^(l-1)."""

    neighbors: Neighbors
    label_features: Tensor | None = None
    """z_1, z_2, …: [n, hops, C]."""
    labels: Tensor | None = None
    """The true labels, for the oracle alone."""
    initial: Tensor | None = None
    """h^0, the encoder's output; None without an encoder."""
    with_attention: bool = False


class Computed(NamedTuple):
    """What some layers of a network computed."""

    states: list[Tensor]
    predictions: dict[int, Tensor]
    attention: list[Attention]
