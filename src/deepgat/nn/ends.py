"""What stands before and after the layers of a stack: encoders and readouts, as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import JumpingKnowledge

from deepgat import ops
from deepgat.ops import Features


@dataclass(frozen=True)
class EndShape:
    """What an encoder or a readout may need to know of its stack."""

    features: int
    """d, columns of the features."""
    width: int
    """Width of the hidden layers, H·D."""
    classes: int
    """C."""
    layers: int
    """L."""
    dropout: float
    """Share of its input that is dropped in training."""


class Encoder(nn.Module):
    """h^0 from the features: linear maps with σ between them, dropout before each.

    Args:
        widths: d, …, the width of h^0.
        activation: σ.
        last_activation: apply σ to h^0 itself too.
        dropout: share of every map's input that is dropped in training.
    """

    def __init__(
        self, widths: Sequence[int], activation: nn.Module, last_activation: bool, dropout: float
    ) -> None:
        super().__init__()
        self.out_channels = widths[-1]
        self.maps = nn.ModuleList(map(nn.Linear, widths[:-1], widths[1:]))
        self.activation = activation
        self.last_activation = last_activation
        self.dropout = dropout

    def forward(self, x: Features) -> Tensor:
        h: Features = x
        for number, each in enumerate(self.maps, start=1):
            linear = cast(nn.Linear, each)
            h = ops.dropout(h, self.dropout, self.training)
            h = ops.linear(h, linear.weight, linear.bias)
            if self.last_activation or number < len(self.maps):
                h = self.activation(h)
        assert isinstance(h, Tensor)
        return h


EncoderFactory: TypeAlias = Callable[[EndShape, nn.Module], Encoder]
"""(shape, σ) → the encoder."""


def linear_encoder(shape: EndShape, activation: nn.Module) -> Encoder:
    """h^0 = σ(X W + b), as wide as the layers: GCNII, G²."""
    return Encoder([shape.features, shape.width], activation, True, shape.dropout)


def class_encoder(shape: EndShape, activation: nn.Module) -> Encoder:
    """h^0 = σ(X W + b) W' + b', one channel per class: APPNP, DAGNN propagate predictions."""
    return Encoder([shape.features, shape.width, shape.classes], nn.ReLU(), False, shape.dropout)


class Readout(nn.Module):
    """The class logits [n, C] from h^1 … h^L, each [n, width], and h^0 where there is an encoder.

    This one: the last layer's output is the logits.
    """

    takes_width = False
    """Whether it reads layers of any width; else the last one must have a channel per class, …"""
    takes_every_layer = False
    """… and with this every one."""
    looks_back = False
    """Whether it reads layers before the last."""

    def forward(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return hidden[-1]


ReadoutFactory: TypeAlias = Callable[[EndShape], Readout]


def last_layer(shape: EndShape) -> Readout:
    """The last layer goes to the classes itself."""
    return Readout()


class LinearReadout(Readout):
    """h^L W_c + b_c. With ``predict`` layers may use it as the class head they share."""

    takes_width = True

    def __init__(self, shape: EndShape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.linear = nn.Linear(shape.width, shape.classes)

    def forward(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return _apply(self.linear, ops.dropout(hidden[-1], self.dropout, self.training))

    def predict(self, x: Features, label_features: Tensor | None) -> Tensor:
        """[n, 1, C]: the class logits of any layer's state."""
        return ops.linear(x, self.linear.weight, self.linear.bias).unsqueeze(1)


class JumpReadout(Readout):
    """Jumping knowledge: W_c over all of h^1 … h^L, concatenated, their maximum per channel, or
    their sum weighed by an LSTM with attention (``mode`` "cat", "max", "lstm")."""

    takes_width = True
    looks_back = True

    def __init__(self, shape: EndShape, mode: str) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.jump = JumpingKnowledge(mode, shape.width, shape.layers)
        width = shape.width * shape.layers if mode == "cat" else shape.width
        self.linear = nn.Linear(width, shape.classes)

    def forward(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        jumped = self.jump(list(hidden))
        return _apply(self.linear, ops.dropout(jumped, self.dropout, self.training))


class HopGate(Readout):
    """DAGNN: Σ_k sigmoid(<s, h^k> + b) h^k over k = 0 … L, each h^k one channel per class."""

    takes_every_layer = True
    looks_back = True

    def __init__(self, shape: EndShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.classes, 1)

    def forward(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        hops = torch.stack([*hidden] if initial is None else [initial, *hidden], 1)
        gate = torch.sigmoid(_apply(self.gate, hops.flatten(0, 1))).view(*hops.shape[:2], 1)
        return (gate * hops).sum(1)


def _apply(linear: nn.Linear, x: Tensor) -> Tensor:
    return ops.linear(x, linear.weight, linear.bias)
