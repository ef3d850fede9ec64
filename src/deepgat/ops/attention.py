"""Neighbour attention: the operator, and its kernels as ``deepgat::attend`` and its gradient.

This module defines the signatures of the torch operators, the shapes for tracing and the autograd
rule, so that ``torch.compile`` and ``torch.export`` can trace them. ``cpu/attention.py`` and
``gpu/attention.py`` register the kernels. In eager mode the same kernels run in a plain
``autograd.Function``, since calling a registered operator costs half a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepgat.ops import backends, checks, definition, dropout_masks
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

NONE, DOT, ADDITIVE = 0, 1, 2
AS_IS, SOFTMAX, SIGMOID = 0, 1, 2
LISTS = (
    "ptr", "source", "pieces", "hubs",
    "source_ptr", "target_by_source", "by_source", "source_pieces", "source_hubs",
)  # fmt: skip
"""The tensors of :class:`~deepgat.ops.Neighbors` that the kernels read, in this order."""
_SCHEMA = (
    "Tensor[] lists, Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor seed, int kind, "
    "int activation, float scale, float slope, bool symmetric_normalization, bool shared, "
    "SymInt undirected, float dropout"
)


class Inputs(NamedTuple):
    """The inputs of ``deepgat::attend``.

    ``activation`` is applied to the query first. ``shared``: the query is also the key, and ``key``
    is empty. The first number of ``seed`` seeds the dropout mask; it is unused without dropout.
    """

    lists: Sequence[Tensor]
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    seed: Tensor
    kind: int
    activation: int
    scale: float
    slope: float
    symmetric_normalization: bool
    shared: bool
    undirected: bool
    dropout: float


def neighbor_attention(
    neighbors: Neighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization | str = Normalization.ROW,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """out_v = Σ_{u∈N_v} α_vu value_u: [n, H, D] → [n, H, D].

    α is exp(s_vu + bias_vu), normalised over N_v or symmetrically. ``dropout`` is the share of
    weights to drop, seeded by torch's random generator. ``bias``: [E, H], or [E, 1] for all heads.
    """
    from deepgat.ops.partitioned import part_attention

    normalization = checks.attention(neighbors, value, form, normalization, dropout, bias)
    seed = dropout_masks.new_seed(value.device) if dropout else None
    fast = backends.kernels_run_on(value.device.type)
    run = kernel_attention if fast else definition.neighbor_attention
    if isinstance(neighbors, part_attention.PartNeighbors):
        run = partial(part_attention.neighbor_attention, run)
    return run(neighbors, value, form, normalization, dropout, seed, bias)


def kernel_attention(
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
    on_cpu = value.device.type == "cpu"
    return layout.natural(found, value, 1).squeeze(-1) if on_cpu else found


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
    inputs = Inputs(
        [getattr(neighbors, name) for name in LISTS],
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
    return attend(*inputs) if torch.compiler.is_compiling() else _Attend.apply(*inputs)


@torch.library.custom_op(
    "deepgat::attend", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)"
)
def attend(*inputs: Any) -> tuple[Tensor, Tensor]:
    """(out [n, H, D], log Σ exp of every list [n, H], on the CPU in the layout of its kernels)."""
    raise NotImplementedError(f"deepgat has no attention kernel for {Inputs(*inputs).value.device}")


@torch.library.custom_op(
    "deepgat::attend_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor out, Tensor log_sum, {_SCHEMA}, bool want_scores, bool want_bias)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def attend_backward(grad: Tensor, *inputs_and_wanted: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and bias; an empty tensor for each one not needed."""
    raise NotImplementedError(f"deepgat has no attention kernel for {grad.device}")


@attend.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor]:
    value = Inputs(*inputs).value
    if value.device.type == "cpu":
        return value.new_empty(value.shape), layout.empty(value, 1, per_head=True)
    sums = torch.promote_types(value.dtype, torch.float32)
    return value.new_empty(value.shape), value.new_empty(value.shape[:2], dtype=sums)


@attend_backward.register_fake
def _(
    grad: Tensor, out: Tensor, log_sum: Tensor, *inputs_and_wanted: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *inputs, want_scores, want_bias = inputs_and_wanted
    x = Inputs(*inputs)

    def like(y: Tensor) -> Tensor:
        if y.device.type != "cpu":
            return torch.empty_like(y, memory_format=torch.contiguous_format)
        per_head = x.kind == ADDITIVE and y is not x.value
        return layout.natural(layout.empty(x.value, y.size(2), per_head), x.value, y.size(2))

    scores = x.kind != NONE and want_scores
    return (
        like(x.query) if scores else x.value.new_empty(0),
        like(x.key) if scores and not x.shared else x.value.new_empty(0),
        like(x.value),
        x.bias.new_empty(x.bias.shape)
        if x.bias is not None and want_bias
        else x.value.new_empty(0),
    )


KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
"""(forward, backward) by device type, with the arguments of the torch operators."""


def register_kernels(
    device: str,
    forward: Callable[[Inputs], tuple[Tensor, Tensor]],
    backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]],
    check: Callable[..., None] = lambda *_: None,
) -> None:
    """Register the kernels of both operators for one device type.

    ``backward`` is (grad, out, log_sum, inputs, want_scores, want_bias) → the four gradients.
    ``check`` is (inputs, and in the backward pass grad, out, log_sum); it guards the operators that
    anyone can call. In eager mode :func:`neighbor_attention` has checked its arguments.
    """

    def run(*inputs: Any) -> tuple[Tensor, Tensor]:
        return forward(Inputs(*inputs))

    def run_backward(grad: Tensor, out: Tensor, log_sum: Tensor, *rest: Any) -> Any:
        return backward(grad, out, log_sum, Inputs(*rest[:-2]), *rest[-2:])

    def checked(*inputs: Any) -> tuple[Tensor, Tensor]:
        check(Inputs(*inputs))
        return run(*inputs)

    def checked_backward(grad: Tensor, out: Tensor, log_sum: Tensor, *rest: Any) -> Any:
        check(Inputs(*rest[:-2]), grad, out, log_sum)
        return run_backward(grad, out, log_sum, *rest)

    attend.register_kernel(device)(checked)
    attend_backward.register_kernel(device)(checked_backward)
    KERNELS[device] = run, run_backward


def _save(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    lists, *tensors = inputs[:6]
    ctx.settings = inputs[6:]
    ctx.save_for_backward(*output, *tensors, *lists)


def _gradients(ctx: Any, backward: Callable[..., Any], grad: Tensor) -> tuple[Any, ...]:
    """The gradients of all inputs but the lists."""
    out, log_sum, query, key, value, bias, seed, *lists = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    found = backward(
        grad, out, log_sum, lists, query, key, value, bias, seed, *ctx.settings,
        wanted[1] or wanted[2], wanted[4],
    )  # fmt: skip
    grads = (item if item.dim() > 1 else None for item in found)
    return (*grads, None) + (None,) * len(ctx.settings)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    return [None] * len(LISTS), *_gradients(ctx, attend_backward, grad)


attend.register_autograd(_backward, setup_context=_save)


class _Attend(torch.autograd.Function):
    """``deepgat::attend`` without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        run, ctx.run_backward = KERNELS[Inputs(*inputs).value.device.type]
        output = run(*inputs)
        _save(ctx, inputs, output)
        ctx.mark_non_differentiable(output[1])
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        return None, *_gradients(ctx, ctx.run_backward, grad)
