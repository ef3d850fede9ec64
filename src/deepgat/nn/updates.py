"""How a layer's output joins its input: one small class per rule.

A rule is a value handed to the stack. It may act before the layer's normalisation and
activation, on the raw output W₂a, and after them. Shapes: [n, width of the layer's output].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from deepgat import ops
from deepgat.errors import UserError
from deepgat.nn.attention import ClassHead
from deepgat.ops import Features, Neighbors


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """All that a layer, and its update rule, may look at."""

    x: Features
    """h^(l-1), what the layer reads: after dropout."""
    neighbors: Neighbors
    state: Features
    """h^(l-1) before dropout."""
    initial: Tensor | None = None
    """h^0, what the encoder made of the features; None without an encoder."""
    label_features: Tensor | None = None
    """What the class head sees besides x: z [n, C]."""
    labels: Tensor | None = None
    """The true labels, for the oracle alone."""
    number: int = 1
    """l, from 1; with steps of d/L, beyond d layers, ⌈l d/L⌉: whose place of d layers it takes."""
    class_head: ClassHead | None = None
    """The class head that all layers share, where they do."""
    clean_attention: bool = False
    """Compute the attention from ``state`` rather than from ``x``."""


class Update(nn.Module):
    """The plain rule: h^l = σ(W₂ a), the input is forgotten."""

    def before_activation(self, out: Tensor, inputs: LayerInputs) -> Tensor:
        return out

    def after_activation(self, out: Tensor, inputs: LayerInputs) -> Tensor:
        return out


UpdateFactory: TypeAlias = Callable[[int, int], Update]
"""(input width, output width) → the rule of one layer."""


class Plain(Update):
    """h^l = σ(W₂ a)."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()


class LinearSkip(Update):
    """h^l = σ(W₂ a + W' h^(l-1) + b'), in every layer: the authors' PPI models, and GraphSAGE."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def before_activation(self, out: Tensor, inputs: LayerInputs) -> Tensor:
        return out + ops.linear(inputs.x, self.linear.weight, self.linear.bias)


class Residual(Update):
    """h^l = h^(l-1) + σ(W₂ a) wherever the two have the same width, plain elsewhere."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.same_width = in_channels == out_channels

    def after_activation(self, out: Tensor, inputs: LayerInputs) -> Tensor:
        return out + inputs.x if self.same_width and isinstance(inputs.x, Tensor) else out


class InitialResidual(Update):
    """(1 − α) a + α h^0 before σ: every layer keeps a share α of what the encoder made.

    GCNII's, and the teleport of APPNP. Plain where the widths differ, as in a last layer that
    goes to the classes.
    """

    def __init__(self, in_channels: int, out_channels: int, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def before_activation(self, out: Tensor, inputs: LayerInputs) -> Tensor:
        if inputs.initial is None:
            raise UserError("an initial residual needs an encoder to make h⁰: set encoder=linear")
        if inputs.initial.size(1) != out.size(1):
            return out
        dtype = torch.promote_types(out.dtype, inputs.initial.dtype)  # they differ in bf16
        return torch.lerp(out.to(dtype), inputs.initial.to(dtype), self.alpha)


class IdentityMap(Update):
    """a ((1 − β_l) I + β_l W^l) before σ, β_l = log(θ/l + 1): GCNII's weights, near the identity.

    ``weight``: W^l [D, D], D the width of the layer.
    """

    def __init__(self, in_channels: int, out_channels: int, theta: float) -> None:
        super().__init__()
        self.theta = theta
        self.weight = nn.Parameter(torch.empty(out_channels, out_channels))
        bound = 1 / math.sqrt(out_channels)
        nn.init.uniform_(self.weight, -bound, bound)

    def before_activation(self, out: Tensor, inputs: LayerInputs) -> Tensor:
        beta = math.log(self.theta / inputs.number + 1)
        return ops.identity_map(out, self.weight, beta)


class Chain(Update):
    """Several rules, each before and after the activation, in their order."""

    def __init__(self, rules: Sequence[Update]) -> None:
        super().__init__()
        self.rules = nn.ModuleList(rules)

    def before_activation(self, out: Tensor, inputs: LayerInputs) -> Tensor:
        for rule in self.rules:
            out = cast(Update, rule).before_activation(out, inputs)
        return out

    def after_activation(self, out: Tensor, inputs: LayerInputs) -> Tensor:
        for rule in self.rules:
            out = cast(Update, rule).after_activation(out, inputs)
        return out


def chained(*factories: UpdateFactory) -> UpdateFactory:
    """One factory of several rules; a single one stays as it is."""
    if len(factories) == 1:
        return factories[0]
    return lambda width_in, width_out: Chain([make(width_in, width_out) for make in factories])
