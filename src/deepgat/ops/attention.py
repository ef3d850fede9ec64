"""Neighbour attention as torch operators: ``deepgat::attend`` and its gradient.

This module defines their signatures, the shapes for tracing and the autograd rule, so that
``torch.compile`` and ``torch.export`` can trace them. ``cpu/kernels.py`` and ``gpu/attention.py``
register the kernels. In eager mode the same kernels run in a plain ``autograd.Function``, since
calling a registered operator costs half a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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

NONE, DOT, ADDITIVE = 0, 1, 2
AS_IS, SOFTMAX, SIGMOID = 0, 1, 2
LANES = 8
LISTS = (
    "ptr", "source", "pieces", "hubs",
    "source_ptr", "target_by_source", "by_source", "source_pieces", "source_hubs",
)  # fmt: skip
"""The tensors of :class:`~deepgat.ops.Neighbors` that the kernels read, in this order."""


def neighbor_attention(
    neighbors: Neighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """As :func:`deepgat.ops.definition.neighbor_attention`, without per-edge storage."""
    return run(neighbors, value, form, normalization, dropout, seed, bias)[0].to(value.dtype)


@torch.no_grad()
def log_sums(neighbors: Neighbors, form: DotProduct | ClassAgreement) -> Tensor:
    """log Σ_{u∈N_v} exp(s_vu), [n, H]; not differentiable."""
    compared = form.query if isinstance(form, DotProduct) else form.logits
    value = compared.new_ones(*compared.shape[:2], 1)
    _, found = run(neighbors, value, form)
    return from_cpu_room(found, value, 1).squeeze(-1) if value.device.type == "cpu" else found


def run(
    neighbors: Neighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out [n, H, D], log Σ exp of every list in the layout of the kernels)."""
    nothing = value.new_empty(0)
    query = key = nothing
    kind, activation, scale, slope, shared = NONE, AS_IS, 1.0, 0.0, False
    match form:
        case DotProduct(q, k, factor):
            query, key, kind, scale, shared = q, k, DOT, factor, q is k
        case ClassAgreement(logits, factor, independent_labels):
            query, kind, scale, shared = logits, DOT, factor, True
            activation = SIGMOID if independent_labels else SOFTMAX
        case Additive(t, s, negative_slope):
            query, key, kind, slope = t.unsqueeze(-1), s.unsqueeze(-1), ADDITIVE, negative_slope
        case EdgeScore(score):
            bias = score if bias is None else score + bias
        case Uniform():
            pass
    stored = value.dtype
    if value.device.type == "cpu" and stored in (torch.bfloat16, torch.float16):
        value = value.float()  # the CPU kernels support float32 and float64 only
    exact = value.dtype if value.device.type == "cpu" or stored == torch.float64 else None
    query, key = (x if exact is None else x.to(exact) for x in (query, key))
    if bias is not None:
        bias = bias.expand(-1, value.size(1)).to(exact or bias.dtype)
    lists = [getattr(neighbors, name) for name in LISTS]
    apply = attend if torch.compiler.is_compiling() else _Attend.apply
    return apply(
        lists,
        query,
        nothing if shared else key,
        value,
        bias,
        neighbors.ptr if seed is None else seed,
        kind,
        activation,
        scale,
        slope,
        normalization is Normalization.SYMMETRIC,
        shared,
        neighbors.symmetric,
        dropout,
    )


@torch.library.custom_op("deepgat::attend", mutates_args=())
def attend(
    lists: Sequence[Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    kind: int,
    activation: int,
    scale: float,
    slope: float,
    symmetric_normalization: bool,
    shared: bool,
    undirected: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """(out [n, H, D], log Σ exp of every list [n, H], on the CPU in the layout of its kernels).

    ``shared``: the query is also the key, and ``key`` is empty. ``activation`` is applied to the
    query first. The first number of ``seed`` seeds the dropout mask; it is unused without dropout.
    """
    raise _no_kernel(value)


@torch.library.custom_op("deepgat::attend_backward", mutates_args=())
def attend_backward(
    grad: Tensor,
    out: Tensor,
    log_sum: Tensor,
    lists: Sequence[Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    kind: int,
    activation: int,
    scale: float,
    slope: float,
    symmetric_normalization: bool,
    shared: bool,
    undirected: bool,
    dropout: float,
    want_scores: bool,
    want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and bias; an empty tensor for each one not needed."""
    raise _no_kernel(value)


def lanes_of(value: Tensor) -> int:
    """Heads per vector in the CPU kernels (see attention.cpp): 8, or 1 for few heads.

    Measured: 1 is faster for up to 2 heads, and for up to 4 wide heads.
    """
    _, heads, channels = value.shape
    return 1 if heads <= 2 or (heads <= 4 and channels >= 64) else LANES


def cpu_room(value: Tensor, channels: int, per_head: bool = False) -> Tensor:
    """An uninitialised tensor in the layout of the CPU kernels, [n, blocks, vectors, 8].

    With ``per_head``, one number per node and head, [n, blocks, lanes]. A block is 8 heads, and a
    vector holds one channel of each. With few heads, a block is one head, and a vector holds 8 of
    its channels. Both are padded to whole vectors.
    """
    lanes, (n, heads, _) = lanes_of(value), value.shape
    blocks = -(-heads // lanes)
    if per_head:
        return value.new_empty(n, blocks, lanes)
    return value.new_empty(n, blocks, channels if lanes > 1 else -(-channels // LANES), LANES)


def from_cpu_room(room: Tensor, value: Tensor, channels: int) -> Tensor:
    """[n, H, channels] from :func:`cpu_room`; a copy if there are several blocks of 8 heads."""
    heads = value.size(1)
    if room.dim() == 3:  # one number per head
        return room.flatten(1)[:, :heads].unsqueeze(-1)
    if lanes_of(value) == 1:
        return room.flatten(2)[..., :channels]
    return room.transpose(2, 3).flatten(1, 2)[:, :heads]


@attend.register_fake
def _(
    lists: Sequence[Tensor], query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None,
    seed: Tensor, kind: int, activation: int, scale: float, slope: float,
    symmetric_normalization: bool, shared: bool, undirected: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    n, heads, _ = value.shape
    if value.device.type == "cpu":
        return value.new_empty(value.shape), cpu_room(value, 1, per_head=True)
    sums = torch.float64 if value.dtype == torch.float64 else torch.float32
    return value.new_empty(value.shape), value.new_empty(n, heads, dtype=sums)


@attend_backward.register_fake
def _(
    grad: Tensor, out: Tensor, log_sum: Tensor, lists: Sequence[Tensor], query: Tensor, key: Tensor,
    value: Tensor, bias: Tensor | None, seed: Tensor, kind: int, activation: int, scale: float,
    slope: float, symmetric_normalization: bool, shared: bool, undirected: bool, dropout: float,
    want_scores: bool, want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    def room(like: Tensor) -> Tensor:
        if value.device.type != "cpu":
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        per_head = kind == ADDITIVE and like is not value
        return from_cpu_room(cpu_room(value, like.size(2), per_head), value, like.size(2))

    scores = kind != NONE and want_scores
    return (
        room(query) if scores else value.new_empty(0),
        room(key) if scores and not shared else value.new_empty(0),
        room(value),
        bias.new_empty(bias.shape) if bias is not None and want_bias else value.new_empty(0),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    lists, *tensors = inputs[:6]
    ctx.plain = inputs[6:]
    ctx.save_for_backward(*output, *tensors, *lists)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    out, log_sum, query, key, value, bias, seed, *lists = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    found = attend_backward(
        grad, out, log_sum, lists, query, key, value, bias, seed, *ctx.plain,
        wanted[1] or wanted[2], wanted[4],
    )  # fmt: skip
    grads = (item if item.dim() > 1 else None for item in found)
    return ([None] * len(lists), *grads, None) + (None,) * len(ctx.plain)


attend.register_autograd(_backward, setup_context=_setup_context)

KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
"""(forward, backward) by device type."""


def register_kernels(
    device: str, forward: Callable[..., Any], backward: Callable[..., Any]
) -> None:
    """Register the kernels of both operators for one device type."""
    attend.register_kernel(device)(forward)
    attend_backward.register_kernel(device)(backward)
    KERNELS[device] = forward, backward


class _Attend(torch.autograd.Function):
    """``deepgat::attend`` without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, lists: list[Tensor], *inputs: Any) -> tuple[Tensor, Tensor]:
        value = inputs[2]
        if value.device.type not in KERNELS:
            raise _no_kernel(value)
        run, ctx.run_backward = KERNELS[value.device.type]
        output = run(lists, *inputs)
        ctx.save_for_backward(*output, *inputs[:5], *lists)
        ctx.plain = inputs[5:]
        ctx.mark_non_differentiable(output[1])
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        out, log_sum, query, key, value, bias, seed, *lists = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        found = ctx.run_backward(
            grad, out, log_sum, lists, query, key, value, bias, seed, *ctx.plain,
            wanted[1] or wanted[2], wanted[4],
        )  # fmt: skip
        grads = (item if item.dim() > 1 else None for item in found)
        return (None, *grads, None) + (None,) * len(ctx.plain)


def _no_kernel(value: Tensor) -> RuntimeError:
    return RuntimeError(f"deepgat has no attention kernel for {value.device}")
