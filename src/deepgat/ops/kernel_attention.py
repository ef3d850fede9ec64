"""Neighbour attention by the kernels, without per-edge storage.

In eager mode they run in a plain ``autograd.Function``, since calling a registered operator
costs more. Inside ``torch.compile`` and ``torch.export`` they are the operator ``deepgat::attend``
(``attention_operator.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepgat.ops.attention_operator import (
    ADDITIVE,
    AS_IS,
    DOT,
    KERNELS,
    LISTS,
    NONE,
    SIGMOID,
    SOFTMAX,
    Inputs,
    attend,
    kernel_lists,
)
from deepgat.ops.cpu import layout
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.score_forms import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Normalization,
    ScoreForm,
    Uniform,
)


def kernel_attention(
    neighbors: Neighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    flat: bool = False,
) -> Tensor:
    """As :func:`deepgat.ops.definition.neighbor_attention`, without per-edge storage."""
    out, _ = run(neighbors, value, form, normalization, dropout, seed, bias, flat=flat)
    return out if out.dtype == value.dtype else out.to(value.dtype)


@torch.no_grad()
def kernel_log_sums(neighbors: Neighbors, form: DotProduct | ClassAgreement) -> Tensor:
    """log Σ_{u∈N_v} exp(s_vu), [n, H]; not differentiable."""
    compared = form.query if isinstance(form, DotProduct) else form.logits
    value = compared.new_ones(*compared.shape[:2], 1)
    _, found = run(neighbors, value, form)
    on_cpu = value.device.type == "cpu"
    return layout.natural(found, value, 1).squeeze(-1) if on_cpu else found


def run(
    neighbors: Neighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    dropout: float = 0.0,
    seed: Any = None,
    bias: Tensor | None = None,
    *,
    flat: bool = False,
) -> tuple[Tensor, Tensor]:
    """(out [n, H, D], or [n, H·D] if ``flat``, log Σ exp of every list in the kernels' layout)."""
    traced = torch.compiler.is_compiling()
    on_cpu = value.device.type == "cpu"
    nothing: Any = None if traced else value.new_empty(0) if on_cpu else neighbors.ptr
    query = key = nothing
    kind, activation, scale, slope, shared = NONE, AS_IS, 1.0, 0.0, False
    match form:
        case DotProduct(q, k, factor):
            query, key, kind, scale, shared = q, k, DOT, factor, q is k
        case ClassAgreement(logits, factor, independent_labels):
            query, kind, scale, shared = logits, DOT, factor, True
            activation = SIGMOID if independent_labels else SOFTMAX
        case Additive(t, s, negative_slope):
            query, key, kind, slope = t, s, ADDITIVE, negative_slope
        case EdgeScore(score):
            bias = score if bias is None else score + bias
        case Uniform():
            pass
    stored = value.dtype
    if on_cpu and stored in (torch.bfloat16, torch.float16):
        value = value.float()  # the CPU kernels support float32 and float64 only
    exact = value.dtype if on_cpu or stored == torch.float64 else None
    if exact is not None:
        query, key = (x if x is nothing else x.to(exact) for x in (query, key))
    if bias is not None:
        bias = bias.expand(-1, value.size(1)).to(exact or bias.dtype)
    inputs = Inputs(
        _traced_lists(neighbors) if traced else kernel_lists(neighbors),
        query,
        nothing if shared else key,
        value,
        bias,
        neighbors.ptr if seed is None and not traced else seed,
        kind,
        activation,
        scale,
        slope,
        normalization is Normalization.SYMMETRIC,
        shared,
        neighbors.symmetric,
        dropout,
    )
    if not traced and not torch.is_grad_enabled():
        out, log_sum = KERNELS[value.device.type][0](_with_vectors(inputs))
        return out.flatten(1) if flat else out, log_sum
    if not traced:
        return _Attend.apply(flat, *inputs)
    lengths = () if neighbors.packed is None else neighbors.packed.lengths
    out, log_sum = attend(*_with_vectors(inputs), lengths)
    return out.flatten(1) if flat else out, log_sum


def _traced_lists(neighbors: Neighbors) -> list[Tensor]:
    if neighbors.packed is not None:
        return [neighbors.packed.lists]
    return [getattr(neighbors, name) for name in LISTS]


def _with_vectors(x: Inputs) -> Inputs:
    """Query and key as [n, H, 1] where they are numbers, [n, H]."""
    if x.kind != ADDITIVE:
        return x
    return x._replace(query=x.query.unsqueeze(-1), key=x.key.unsqueeze(-1))


class _Attend(torch.autograd.Function):
    """``deepgat::attend`` without the dispatcher, and without the cost of autograd for views."""

    @staticmethod
    def forward(ctx: Any, flat: bool, *inputs: Any) -> tuple[Tensor, Tensor]:
        x = Inputs(*inputs)
        run, ctx.run_backward = KERNELS[x.value.device.type]
        out, log_sum = run(_with_vectors(x))
        shown = out.flatten(1) if flat else out
        ctx.mark_non_differentiable(log_sum)
        ctx.set_materialize_grads(False)
        ptr = x.lists[0]  # stands for tensors that are not needed
        kept = (None if item is ptr else item for item in (x.query, x.key, x.seed))
        ctx.save_for_backward(shown, log_sum, x.value, x.bias, *kept)
        ctx.lists, ctx.settings = x.lists, inputs[6:]
        return shown, log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Any, ...]:
        rest = (None,) * (1 + len(ctx.settings))
        if grad is None:
            return None, None, None, None, None, None, *rest
        out, log_sum, value, bias, *kept = ctx.saved_tensors
        query, key, seed = (ctx.lists[0] if item is None else item for item in kept)
        x = _with_vectors(Inputs(ctx.lists, query, key, value, bias, seed, *ctx.settings))
        wanted = ctx.needs_input_grad
        found = ctx.run_backward(
            grad.reshape(value.shape), out.view(value.shape), log_sum, x,
            wanted[2] or wanted[3], wanted[5],
        )  # fmt: skip
        of_query, of_key, of_value, of_bias = (
            None if item is None or item.dim() < 2 else item for item in found
        )
        if x.kind == ADDITIVE and of_query is not None and of_key is not None:
            of_query, of_key = of_query.squeeze(-1), of_key.squeeze(-1)
        return None, None, of_query, of_key, of_value, of_bias, *rest
