"""``deepgat::attend`` and its gradient: neighbour attention as operators of a traced graph.

This module defines the signatures of the operators, the shapes for tracing and the autograd rule.
``cpu/attention.py`` and ``gpu/attention.py`` register the kernels, which eager mode calls directly.

``attend`` consists of ``attend_forward`` and ``attend_backward``. A compiled graph contains these
two alone, so no autograd runs when it calls them. They are defined without
``torch.library.custom_op``, whose Python wrapper takes longer than the rest of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepgat.ops.cpu import layout
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.packed_lists import Lengths, original, views

LIBRARY = torch.library.Library("deepgat", "FRAGMENT")
NONE, DOT, ADDITIVE = 0, 1, 2
AS_IS, SOFTMAX, SIGMOID = 0, 1, 2
LISTS = (
    "ptr", "source", "pieces", "hubs",
    "source_ptr", "target_by_source", "by_source", "source_pieces", "source_hubs",
)  # fmt: skip
"""The tensors of :class:`~deepgat.ops.Neighbors` that the kernels read, in this order."""
_READ = tuple(name for name in LISTS if not name.endswith("ptr"))
"""Kernels find the lists by their pieces. The pointers stand for tensors that are not needed."""


class Inputs(NamedTuple):
    """The inputs of ``deepgat::attend``.

    ``activation`` is applied to the query first. ``shared``: the query is also the key, and ``key``
    is not read. The first number of ``seed`` seeds the dropout mask; it is unused without dropout.
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


_INPUTS = len(Inputs._fields)
_SCHEMA = (
    "Tensor[] lists, Tensor? query, Tensor? key, Tensor value, Tensor? bias, Tensor? seed, "
    "int kind, int activation, float scale, float slope, bool symmetric_normalization, "
    "bool shared, SymInt undirected, float dropout"
)
_GRADS = "Tensor grad, Tensor out, Tensor log_sum"
_LENGTHS = "SymInt[] lengths=[]"
_TAGS = (torch.Tag.pt2_compliant_tag,)
for _name in ("attend", "attend_forward"):
    LIBRARY.define(f"{_name}({_SCHEMA}, {_LENGTHS}) -> (Tensor, Tensor)", tags=_TAGS)
LIBRARY.define(
    f"attend_backward({_GRADS}, {_SCHEMA}, bool want_scores, bool want_bias, {_LENGTHS})"
    " -> Tensor[]",
    tags=_TAGS,
)


def attend(*inputs: Any) -> tuple[Tensor, Tensor]:
    """(out [n, H, D], log Σ exp of every list [n, H], on the CPU in the layout of its kernels).

    Takes :class:`Inputs`, of which query, key and seed may be None, and ``lengths``: those of
    packed lists if ``lists`` is the one tensor that holds them (``packed_lists.py``), else empty.
    """
    found: tuple[Tensor, Tensor] = torch.ops.deepgat.attend.default(*inputs)
    return found


def _attend(*inputs: Any) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor]
    if torch.is_grad_enabled():
        found = _Traced.apply(*inputs)
    else:
        found = torch.ops.deepgat.attend_forward.default(*inputs)
    return found


LIBRARY.impl("attend", _attend, "CompositeImplicitAutograd")


class _Traced(torch.autograd.Function):
    """The two operators as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        out, log_sum = torch.ops.deepgat.attend_forward.default(*inputs)
        lists, *tensors = inputs[:6]
        ctx.settings, ctx.lengths = inputs[6:_INPUTS], inputs[_INPUTS:]
        ctx.mark_non_differentiable(log_sum)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out, log_sum, *tensors, *lists)
        return out, log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Any, ...]:
        rest = (None,) * (len(ctx.settings) + len(ctx.lengths))
        if grad is None:
            return (None,) * 6 + rest
        out, log_sum, query, key, value, bias, seed, *lists = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        want_scores, want_bias = wanted[1] or wanted[2], wanted[4]
        kind, shared = ctx.settings[0], ctx.settings[5]
        found = iter(
            torch.ops.deepgat.attend_backward.default(
                grad, out, log_sum, lists, query, key, value, bias, seed, *ctx.settings,
                want_scores, want_bias, *ctx.lengths,
            )
        )  # fmt: skip
        scores = kind != NONE and want_scores
        of_value = next(found)
        of_query = next(found) if scores else None
        of_key = next(found) if scores and not shared else None
        of_bias = next(found) if want_bias and bias is not None else None
        return None, of_query, of_key, of_value, of_bias, None, *rest


@torch.library.register_fake("deepgat::attend_forward", lib=LIBRARY)
def _(*inputs: Any) -> tuple[Tensor, Tensor]:
    value = inputs[3]
    if value.device.type == "cpu":
        return value.new_empty(value.shape), layout.empty(value, 1, per_head=True)
    sums = torch.promote_types(value.dtype, torch.float32)
    return value.new_empty(value.shape), value.new_empty(value.shape[:2], dtype=sums)


@torch.library.register_fake("deepgat::attend_backward", lib=LIBRARY)
def _(grad: Tensor, out: Tensor, log_sum: Tensor, *rest: Any) -> list[Tensor]:
    x, (want_scores, want_bias) = Inputs(*rest[:_INPUTS]), rest[_INPUTS : _INPUTS + 2]

    def like(y: Tensor) -> Tensor:
        if y.device.type != "cpu":
            return torch.empty_like(y, memory_format=torch.contiguous_format)
        per_head = x.kind == ADDITIVE and y is not x.value
        return layout.natural(layout.empty(x.value, y.size(2), per_head), x.value, y.size(2))

    wanted = [x.value]
    if x.kind != NONE and want_scores:
        wanted += [x.query] if x.shared else [x.query, x.key]
    found = [like(y) for y in wanted]
    if x.bias is not None and want_bias:
        found.append(x.bias.new_empty(x.bias.shape))
    return found


KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
"""(forward, backward) by device type, as they are registered."""


def register_kernels(
    device: str,
    forward: Callable[[Inputs], tuple[Tensor, Tensor]],
    backward: Callable[..., tuple[Tensor | None, ...]],
    check: Callable[..., None] | None = None,
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

    def checked(*given: Any) -> tuple[Tensor, Tensor]:
        inputs = _plain_inputs(given[:_INPUTS], *given[_INPUTS:])
        if check is not None:
            check(inputs)
        return forward(inputs)

    def checked_backward(
        grad: Tensor, out: Tensor, log_sum: Tensor, *given: Any
    ) -> Sequence[Tensor]:
        inputs = _plain_inputs(given[:_INPUTS], *given[_INPUTS + 2 :])
        if check is not None:
            check(inputs, grad, out, log_sum)
        wanted = given[_INPUTS : _INPUTS + 2]
        of_query, of_key, of_value, of_bias = backward(grad, out, log_sum, inputs, *wanted)
        found = (of_value, of_query, of_key, of_bias)
        return [item for item in found if item is not None and item.dim() > 1]

    LIBRARY.impl("attend_forward", checked, device.upper())
    LIBRARY.impl("attend_backward", checked_backward, device.upper())
    KERNELS[device] = forward, eager_backward or backward


def _plain_inputs(given: Sequence[Any], lengths: Sequence[int] = ()) -> Inputs:
    """Inputs with lists of their own and a tensor, which is not read, in place of None."""
    lists, query, key, value, bias, seed, *settings = given
    if lengths:
        (packed,) = lists
        lists = _unpacked(packed, lengths, value.size(0))
    nothing = lists[0]
    return Inputs(
        lists,
        nothing if query is None else query,
        nothing if key is None else key,
        value,
        bias,
        nothing if seed is None else seed,
        *settings,
    )


def _unpacked(packed: Tensor, lengths: Sequence[int], num_nodes: int) -> list[Tensor]:
    near = original(packed)
    if near is not None:
        return kernel_lists(near)
    named = views(packed, Lengths(*lengths), num_nodes, _READ)
    return [named.get(name, packed) for name in LISTS]


class KernelLists(list[Tensor]):
    """:data:`LISTS` of some neighbour lists, with what a backend keeps for its next call."""

    kept: Any = None

    def __init__(self, lists: Iterable[Tensor]) -> None:
        super().__init__(lists)
        self.steps: dict[Any, Any] = {}
        """Layers that were recorded on a GPU (``gpu/fused_layer.py``)."""


_KERNEL_LISTS: WeakKeyDictionary[Neighbors, KernelLists] = WeakKeyDictionary()


def kernel_lists(neighbors: Neighbors) -> KernelLists:
    """:data:`LISTS` of these neighbour lists, the same object at every call."""
    found = _KERNEL_LISTS.get(neighbors)
    if found is None:
        found = KernelLists(getattr(neighbors, name) for name in LISTS)
        _KERNEL_LISTS[neighbors] = found
    return found
