"""Calls ``attention.cpp``: ``deepgat::attend`` and its gradient on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int32, c_int64, c_uint32

from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops import checks
from deepgat.ops.attention_operator import (
    ADDITIVE,
    DOT,
    LISTS,
    NONE,
    Inputs,
    KernelLists,
    register_kernels,
)
from deepgat.ops.cpu import kernels, layout
from deepgat.ops.cpu.kernels import fields, pointers
from deepgat.ops.lists import LONGEST

KEPT_SCORES = 2**20
"""Scores that are kept between two passes over the edges; more do not stay in a cache."""


class _Lists(kernels.Structure):
    """``DeepgatLists`` of attention.cpp."""

    _fields_ = (
        *pointers("index pieces hubs"),
        *fields(c_int64, "size num_pieces num_hubs"),
    )


class _Problem(kernels.Structure):
    """``DeepgatProblem`` of attention.cpp, field by field."""

    _fields_ = (
        *fields(_Lists, "by_target by_source"),
        *pointers("edge_by_source ids"),
        *fields(c_int64, "nodes longest"),
        ("query_strides", c_int64 * 3),
        *fields(c_int32, "kind activation symmetric_normalization shared undirected"),
        *fields(c_int32, "heads score_channels channels lanes threads"),
        ("seed", c_uint32),
        *fields(c_double, "scale slope dropout"),
        *pointers("query key value bias activated out log_sum scores grad_out grad_lanes"),
        *pointers("grad_query grad_key grad_value grad_bias row_dot column_dot parts"),
    )

    @staticmethod
    def of(x: Inputs) -> _Problem:
        lists, slots = _of_lists(x.lists)
        self = _Problem.from_buffer_copy(lists)
        self.kept = [*x.lists]
        self.nodes, self.heads, self.channels = x.value.shape
        self.kind, self.activation = x.kind, x.activation
        self.symmetric_normalization = x.symmetric_normalization
        self.shared, self.undirected = x.shared, x.undirected
        self.score_channels = 0 if x.kind == NONE else x.query.size(2)
        self.lanes, self.threads = layout.lanes_of(x.value), kernels.threads()
        self.scale, self.slope, self.dropout = x.scale, x.slope, x.dropout
        if x.dropout:
            self.ids, self.seed = kernels.row_ids(x.seed), int(x.seed[0])
        self.like = x.value
        self.set(value=self.laid_out(x.value))
        if x.activation:
            self.query_strides = (c_int64 * 3)(*x.query.stride())
            self.set(query=x.query, activated=layout.empty(x.value, x.query.size(2)))
        elif x.kind != NONE:
            query = self.laid_out(x.query, per_head=x.kind == ADDITIVE)
            key = query if x.shared else self.laid_out(x.key, per_head=x.kind == ADDITIVE)
            self.set(query=query, key=key)
        if x.bias is not None:
            self.set(bias=x.bias.contiguous())
        if slots:  # the longest record of attention.cpp
            record = layout.WIDTH * (2 * self.score_channels + self.channels + 2)
            self.set(parts=x.value.new_empty(slots * record))
        return self

    def laid_out(self, x: Tensor, per_head: bool = False) -> Tensor:
        """[n, H, A] in the layout of the kernels; itself if it has that layout."""
        n, heads, channels = x.shape
        many = self.lanes > 1
        if per_head and not many:
            return x.contiguous()
        inner = x.transpose(1, 2) if many else x
        if inner.size(2) % layout.WIDTH == 0 and heads <= layout.WIDTH and inner.is_contiguous():
            return inner
        found = layout.empty(self.like, channels)
        kernels.function("to_lanes", x.dtype)(
            ctypes.c_void_p(x.data_ptr()), (c_int64 * 3)(*x.stride()),
            ctypes.c_void_p(found.data_ptr()), c_int64(n), heads, channels, self.lanes,
            self.threads,
        )  # fmt: skip
        return found


def _of_lists(lists: Sequence[Tensor]) -> tuple[bytes, int]:
    """A problem with its lists alone, and the number of parts of those that are cut.

    Every layer and step has the same lists, so this is kept with them, as long as they stay where
    they are in memory.
    """
    places = [x.data_ptr() for x in lists]
    kept = getattr(lists, "kept", None)
    if kept is not None and kept[0] == places:
        return kept[1]
    named = dict(zip(LISTS, lists, strict=True))
    problem = _Problem(
        by_target=_lists(named["source"], named["pieces"], named["hubs"]),
        by_source=_lists(named["target_by_source"], named["source_pieces"], named["source_hubs"]),
        edge_by_source=named["by_source"],
        longest=LONGEST,
    )
    slots = max(kernels.num_slots(named[name]) for name in ("hubs", "source_hubs"))
    found = bytes(problem), slots
    if isinstance(lists, KernelLists):
        lists.kept = places, found
    return found


def _lists(index: Tensor, pieces: Tensor, hubs: Tensor) -> _Lists:
    return _Lists(
        index=index, pieces=pieces, hubs=hubs,
        size=len(index), num_pieces=len(pieces), num_hubs=len(hubs),
    )  # fmt: skip


def forward(x: Inputs) -> tuple[Tensor, Tensor]:
    problem = _Problem.of(x)
    out = x.value.new_empty(x.value.shape)
    log_sum = layout.empty(x.value, 1, per_head=True)
    problem.set(out=out, log_sum=log_sum)
    numbers = (problem.by_target.size + layout.WIDTH) * problem.lanes
    if x.symmetric_normalization and x.kind == DOT and numbers <= KEPT_SCORES:
        problem.set(scores=x.value.new_empty(numbers))
    problem.run("forward", x.value.dtype)
    return out, log_sum


def backward(
    grad: Tensor, out: Tensor, log_sum: Tensor, x: Inputs, want_scores: bool, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem = _Problem.of(x)
    value, channels, few_heads = x.value, x.value.size(2), problem.lanes == 1
    grad = grad.contiguous()
    problem.set(grad_out=grad, out=out, log_sum=log_sum)
    if not few_heads:  # r_v and L_v stand beside G_v
        problem.set(grad_lanes=layout.empty(value, channels + 2))
    elif channels % layout.WIDTH:
        problem.set(grad_lanes=layout.empty(value, channels))
    else:
        problem.set(grad_lanes=grad)
    want_scores, want_bias = want_scores and x.kind != NONE, want_bias and x.bias is not None
    if (want_scores or want_bias) and few_heads:
        problem.set(row_dot=layout.empty(value, 1, per_head=True))
    if (want_scores or want_bias) and x.symmetric_normalization:
        problem.set(column_dot=layout.empty(value, 1, per_head=True))
    grads = {"grad_value": layout.empty(value, channels)}
    if want_scores:
        for name in ("grad_query",) if x.shared else ("grad_query", "grad_key"):
            grads[name] = layout.empty(value, x.query.size(2), per_head=x.kind == ADDITIVE)
    grad_bias = value.new_empty(x.bias.shape if x.bias is not None and want_bias else 0)
    problem.set(**grads)
    if want_bias:
        problem.set(grad_bias=grad_bias)
    problem.run("backward", value.dtype)

    def natural(name: str, channels: int) -> Tensor:
        if name not in grads:
            return value.new_empty(0)
        return layout.natural(grads[name], value, channels)

    return (
        natural("grad_query", problem.score_channels),
        natural("grad_key", problem.score_channels),
        natural("grad_value", channels),
        grad_bias,
    )


def check(x: Inputs, *outputs: Tensor) -> None:
    """Refuse what the kernels would read or write beyond its end."""
    dtype = x.value.dtype
    if dtype not in kernels.BITS:
        raise UserError(f"value holds {dtype} values: expected torch.float32 or torch.float64")
    checks.raw("value", x.value, dtype, "nodes", "heads", "channels")
    n, heads, _ = x.value.shape
    lists = dict(zip(LISTS, x.lists, strict=True))
    names = ("source", "target_by_source", "by_source")
    both = {name: lists[name] for name in names}
    edges = checks.raw_lists(n, pieces=lists["pieces"], hubs=lists["hubs"], **both)
    checks.raw_lists(n, pieces=lists["source_pieces"], hubs=lists["source_hubs"], **both)
    if x.kind not in (NONE, DOT, ADDITIVE) or (x.activation and not (x.kind == DOT and x.shared)):
        raise UserError(f"there is no score of kind {x.kind} with activation {x.activation}")
    if x.kind != NONE:
        width = 1 if x.kind == ADDITIVE else "channels"
        checks.raw("query", x.query, dtype, n, heads, width)
        if not x.shared:
            checks.raw("key", x.key, dtype, *x.query.shape)
    if x.bias is not None:
        checks.raw("bias", x.bias, dtype, edges, heads)
    checks.raw_seed(x.seed, n, x.dropout)
    if outputs:
        per_head = layout.empty(x.value, 1, per_head=True).shape
        for name, y in zip(("grad", "out", "log_sum"), outputs, strict=True):
            checks.raw(name, y, dtype, *(per_head if name == "log_sum" else x.value.shape))


if kernels.available():
    register_kernels("cpu", forward, backward, check)
