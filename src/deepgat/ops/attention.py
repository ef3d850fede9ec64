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
from weakref import WeakKeyDictionary

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
    *,
    flat: bool = False,
) -> Tensor:
    """out_v = Σ_{u∈N_v} α_vu value_u: [n, H, D] → [n, H, D].

    α is exp(s_vu + bias_vu), normalised over N_v or symmetrically. ``dropout`` is the share of
    weights to drop, seeded by torch's random generator. ``bias``: [E, H], or [E, 1] for all heads.
    With ``flat`` the heads are concatenated: [n, H·D].
    """
    from deepgat.ops.partitioned import part_attention

    normalization = checks.attention(neighbors, value, form, normalization, dropout, bias)
    seed = dropout_masks.new_seed(value.device) if dropout else None
    fast = backends.kernels_run_on(value.device.type)
    run = kernel_attention if fast else definition.neighbor_attention
    if isinstance(neighbors, part_attention.PartNeighbors):
        run = partial(part_attention.neighbor_attention, run)
    elif fast:
        return kernel_attention(
            neighbors, value, form, normalization, dropout, seed, bias, flat=flat
        )
    out = run(neighbors, value, form, normalization, dropout, seed, bias)
    return out.flatten(1) if flat else out


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
    *,
    flat: bool = False,
) -> tuple[Tensor, Tensor]:
    """(out [n, H, D], or [n, H·D] if ``flat``, log Σ exp of every list in the kernels' layout)."""
    traced = torch.compiler.is_compiling()
    on_cpu = value.device.type == "cpu"
    nothing = value.new_empty(0) if traced or on_cpu else neighbors.ptr
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
        [getattr(neighbors, name) for name in LISTS] if traced else _kernel_lists(neighbors),
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
    if not traced and not torch.is_grad_enabled():
        out, log_sum = KERNELS[value.device.type][0](_with_vectors(inputs))
        return out.flatten(1) if flat else out, log_sum
    if not traced:
        return _Attend.apply(flat, *inputs)
    out, log_sum = attend(*_with_vectors(inputs))
    return out.flatten(1) if flat else out, log_sum


class KernelLists(list[Tensor]):
    """:data:`LISTS` of some neighbour lists, with what a backend keeps for its next call."""

    kept: Any = None


_KERNEL_LISTS: WeakKeyDictionary[Neighbors, KernelLists] = WeakKeyDictionary()


def _kernel_lists(neighbors: Neighbors) -> KernelLists:
    found = _KERNEL_LISTS.get(neighbors)
    if found is None:
        found = KernelLists(getattr(neighbors, name) for name in LISTS)
        _KERNEL_LISTS[neighbors] = found
    return found


def _with_vectors(x: Inputs) -> Inputs:
    """Query and key as [n, H, 1] where they are numbers, [n, H]."""
    if x.kind != ADDITIVE:
        return x
    return x._replace(query=x.query.unsqueeze(-1), key=x.key.unsqueeze(-1))


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
"""(forward, backward) by device type, as they are registered."""


def register_kernels(
    device: str,
    forward: Callable[[Inputs], tuple[Tensor, Tensor]],
    backward: Callable[..., tuple[Tensor | None, ...]],
    check: Callable[..., None] = lambda *_: None,
    eager_backward: Callable[..., tuple[Tensor | None, ...]] | None = None,
) -> None:
    """Register the kernels of both operators for one device type.

    ``backward`` is (grad, out, log_sum, inputs, want_scores, want_bias) → the four gradients, None
    or an empty vector for those that are not needed.
    ``check`` is (inputs, and in the backward pass grad, out, log_sum); it guards the operators that
    anyone can call. In eager mode :func:`neighbor_attention` has checked its arguments, and
    ``eager_backward``, if given, takes the place of ``backward``: only its gradients may share
    memory or have other strides.
    """

    def checked(*inputs: Any) -> tuple[Tensor, Tensor]:
        check(Inputs(*inputs))
        return forward(Inputs(*inputs))

    def checked_backward(grad: Tensor, out: Tensor, log_sum: Tensor, *rest: Any) -> Any:
        inputs = Inputs(*rest[:-2])
        check(inputs, grad, out, log_sum)
        found = backward(grad, out, log_sum, inputs, *rest[-2:])
        return tuple(grad.new_empty(0) if item is None else item for item in found)

    attend.register_kernel(device)(checked)
    attend_backward.register_kernel(device)(checked_backward)
    KERNELS[device] = forward, eager_backward or backward


def _save(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    lists, *tensors = inputs[:6]
    ctx.settings = inputs[6:]
    ctx.save_for_backward(*output, *tensors, *lists)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    out, log_sum, query, key, value, bias, seed, *lists = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    found = attend_backward(
        grad, out, log_sum, lists, query, key, value, bias, seed, *ctx.settings,
        wanted[1] or wanted[2], wanted[4],
    )  # fmt: skip
    grads = (item if item.dim() > 1 else None for item in found)
    return [None] * len(LISTS), *grads, None, *(None,) * len(ctx.settings)


attend.register_autograd(_backward, setup_context=_save)


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
