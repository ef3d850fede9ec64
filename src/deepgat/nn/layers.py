"""One layer of a stack: a convolution, its update rule, and G²'s gate around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from deepgat import ops
from deepgat.errors import UserError
from deepgat.nn.attention import ConvOutput, NeighborAttention
from deepgat.nn.updates import LayerInputs, Update
from deepgat.ops import Neighbors


class Layer(nn.Module):
    """h^l = after(σ(norm(before(conv(h^(l-1)))))); before and after are the update rule's."""

    def __init__(
        self, conv: NeighborAttention, update: Update, norm: nn.Module, activation: nn.Module
    ) -> None:
        super().__init__()
        self.conv = conv
        self.update = update
        self.norm = norm
        self.activation = activation

    def forward(self, inputs: LayerInputs, with_attention: bool = False) -> ConvOutput:
        result: ConvOutput = self.conv.run(
            inputs.x,
            inputs.neighbors,
            inputs.label_features,
            inputs.labels,
            with_attention,
            layer=inputs.number,
            undropped=inputs.state if inputs.clean_attention else None,
            class_head=inputs.class_head,
        )
        out = self.update.before_activation(result.out, inputs)
        out = self.update.after_activation(self._activate(out), inputs)
        return result._replace(out=out)

    def _activate(self, out: Tensor) -> Tensor:
        """σ(norm(out))."""
        norm, activation = self.norm, self.activation
        if not isinstance(norm, nn.LayerNorm) or norm.bias is None:
            return activation(norm(out))
        if isinstance(activation, nn.ELU):
            return ops.layer_norm_elu(out, norm.weight, norm.bias, norm.eps)
        return activation(ops.layer_norm(out, norm.weight, norm.bias, norm.eps))


Gate: TypeAlias = Callable[[Callable[[], Layer]], nn.Module]
"""Makes a layer with a gate around it, from what makes the plain layer."""


class GatedLayer(nn.Module):
    r"""G², gradient gating: a node stops changing, per channel, once it is like its neighbours.

    .. math::
        h^l = (1 - \tau) \odot h^{l-1} + \tau \odot F(h^{l-1}), \qquad
        \tau_v = \tanh \Big( \sum_{u \in N_v} |\hat\tau_v - \hat\tau_u|^p \Big)

    F is the layer inside; τ̂ is its output, or with ``own`` that of a second layer of its kind.

    Args:
        make: makes the layer inside.
        power: p ≥ 1.
        mean: the mean over the other nodes of N_v, as the published code has it, or their sum.
        own: give τ̂ a layer of its own.
    """

    def __init__(
        self, make: Callable[[], Layer], power: float = 2.0, mean: bool = True, own: bool = False
    ) -> None:
        super().__init__()
        self.inner = make()
        self.own = make() if own else None
        self.power = power
        self.mean = mean

    def forward(self, inputs: LayerInputs, with_attention: bool = False) -> ConvOutput:
        result: ConvOutput = self.inner(inputs, with_attention)
        rate = result.out if self.own is None else self.own(inputs).out
        state = inputs.state
        if not isinstance(state, Tensor) or state.size(1) != result.out.size(1):
            raise UserError(
                "a gate joins a layer's output with its input, so both need one width: "
                "set encoder=linear and readout=linear"
            )
        gate = torch.tanh(neighbor_differences(rate, inputs.neighbors, self.power, self.mean))
        dtype = torch.promote_types(state.dtype, result.out.dtype)  # they differ in bf16
        dtype = torch.promote_types(dtype, gate.dtype)
        mixed = torch.lerp(state.to(dtype), result.out.to(dtype), gate.to(dtype))
        return result._replace(out=mixed)


def neighbor_differences(x: Tensor, neighbors: Neighbors, power: float, mean: bool) -> Tensor:
    """Σ_{u∈N_v} |x_v − x_u|^p per channel, or its mean over u ≠ v: [n, D] → [n, D]."""
    total = ops.neighbor_differences(neighbors, x, power)
    return total / neighbors.others.clamp(min=1).unsqueeze(1) if mean else total
