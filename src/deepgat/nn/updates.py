"""How a layer's output joins its input: one small class per rule.

A rule is a value handed to the stack. It may act before the layer's normalisation and
activation, on the raw output W₂a, and after them. Shapes: [n, width of the layer's output].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, nn

from deepgat import ops
from deepgat.ops import Features


class Update(nn.Module):
    """The plain rule: h^l = σ(W₂ a), the input is forgotten."""

    def before_activation(self, out: Tensor, layer_input: Features) -> Tensor:
        return out

    def after_activation(self, out: Tensor, layer_input: Features) -> Tensor:
        return out


UpdateFactory: TypeAlias = Callable[[int, int], Update]
"""(input width, output width) → the rule of one layer."""


class Plain(Update):
    """h^l = σ(W₂ a)."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()


class LinearSkip(Update):
    """h^l = σ(W₂ a + W' h^(l-1) + b'), in every layer: the authors' PPI models."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def before_activation(self, out: Tensor, layer_input: Features) -> Tensor:
        return out + ops.linear(layer_input, self.linear.weight, self.linear.bias)


class Residual(Update):
    """h^l = h^(l-1) + σ(W₂ a) wherever the two have the same width, plain elsewhere."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.same_width = in_channels == out_channels

    def after_activation(self, out: Tensor, layer_input: Features) -> Tensor:
        return out + layer_input if self.same_width and isinstance(layer_input, Tensor) else out
