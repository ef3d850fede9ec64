"""Neighbour attention in C++ with OpenMP: the fast path on the CPU.

The kernels (``attention.cpp``) are a plain shared library beside this file, built with the
package where a compiler is at hand. Here they become the CPU kernels of ``deepgat::attend`` and
its gradient.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepgat.ops import matmul
from deepgat.ops.attention import (
    ADDITIVE,
    LANES,
    LISTS,
    NONE,
    cpu_room,
    from_cpu_room,
    lanes_of,
    register_kernels,
)
from deepgat.ops.pieces import LONGEST

_BITS = {torch.float32: "f32", torch.float64: "f64"}
_INTEGERS = (
    "kind", "activation", "symmetric_normalization", "shared", "undirected",
    "heads", "score_channels", "channels", "lanes", "threads",
)  # fmt: skip
_TENSORS = (
    "query", "key", "value", "bias", "activated", "out", "log_sum", "grad_out", "grad_lanes",
    "grad_query", "grad_key", "grad_value", "grad_bias", "row_dot", "column_dot", "parts",
)  # fmt: skip


class _Lists(ctypes.Structure):
    """``DeepgatLists`` of attention.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("index", "pieces", "hubs")),
        *((name, ctypes.c_int64) for name in ("size", "num_pieces", "num_hubs")),
    ]

    def __init__(self, index: Tensor, pieces: Tensor, hubs: Tensor) -> None:
        super().__init__(
            index.data_ptr(),
            pieces.data_ptr(),
            hubs.data_ptr(),
            len(index),
            len(pieces),
            len(hubs),
        )


class _Problem(ctypes.Structure):
    """``DeepgatProblem`` of attention.cpp, field by field."""

    _fields_ = [
        *((name, _Lists) for name in ("by_target", "by_source")),
        *((name, ctypes.c_void_p) for name in ("edge_by_source", "ids")),
        *((name, ctypes.c_int64) for name in ("nodes", "longest")),
        ("query_strides", ctypes.c_int64 * 3),
        *((name, ctypes.c_int32) for name in _INTEGERS),
        ("seed", ctypes.c_uint32),
        *((name, ctypes.c_double) for name in ("scale", "slope", "dropout")),
        *((name, ctypes.c_void_p) for name in _TENSORS),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The shared library, or None where it was not built."""
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # built for another machine
            continue
    return None


def available() -> bool:
    return library() is not None


def threads() -> int:
    """How many threads a kernel uses: as many as torch. No bit of any result depends on it."""
    return torch.get_num_threads()


@cache
def function(name: str, dtype: torch.dtype) -> Any:
    """The copy of a kernel for this processor's instruction set."""
    capability = torch.backends.cpu.get_cpu_capability().lower()
    loaded = library()
    for suffix in (capability, "base"):
        found = getattr(loaded, f"deepgat_{name}_{_BITS[dtype]}_{suffix}", None)
        if found is not None:
            found.restype = None
            return found
    raise RuntimeError(f"the kernel library has no {name} for {dtype}")


def supports(value: Tensor) -> bool:
    """Whether these kernels can run it."""
    return value.device.type == "cpu" and available()


def attention_forward(
    lists: Sequence[Tensor], query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None,
    seed: Tensor, kind: int, activation: int, scale: float, slope: float,
    symmetric_normalization: bool, shared: bool, undirected: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    call = _Call(
        lists, query, key, value, bias, seed, kind, activation, scale, slope,
        symmetric_normalization, shared, undirected, dropout,
    )  # fmt: skip
    out = value.new_empty(value.shape)
    log_sum = call.room(1, per_head=True)
    call.give(out=out, log_sum=log_sum)
    call.run("forward")
    return out, log_sum


def attention_backward(
    grad: Tensor, out: Tensor, log_sum: Tensor, lists: Sequence[Tensor], query: Tensor, key: Tensor,
    value: Tensor, bias: Tensor | None, seed: Tensor, kind: int, activation: int, scale: float,
    slope: float, symmetric_normalization: bool, shared: bool, undirected: bool, dropout: float,
    want_scores: bool, want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    call = _Call(
        lists, query, key, value, bias, seed, kind, activation, scale, slope,
        symmetric_normalization, shared, undirected, dropout,
    )  # fmt: skip
    channels = value.size(2)
    grad = grad.contiguous()
    few = call.problem.lanes == 1
    call.give(grad_out=grad, out=out, log_sum=log_sum)
    if few:
        call.give(grad_lanes=grad if channels % LANES == 0 else call.room(channels))
    else:  # r_v and L_v stand beside G_v
        call.give(grad_lanes=call.room(channels + 2))
    want_scores, want_bias = want_scores and kind != NONE, want_bias and bias is not None
    if (want_scores or want_bias) and few:
        call.give(row_dot=call.room(1, per_head=True))
    if (want_scores or want_bias) and symmetric_normalization:
        call.give(column_dot=call.room(1, per_head=True))
    grads = {"grad_value": call.room(channels)}
    if want_scores:
        for name in ("grad_query",) if shared else ("grad_query", "grad_key"):
            grads[name] = call.room(query.size(2), per_head=kind == ADDITIVE)
    call.give(**grads)
    grad_bias = value.new_empty(0)
    if bias is not None and want_bias:
        grad_bias = value.new_empty(bias.shape)
        call.give(grad_bias=grad_bias)
    call.run("backward")

    def natural(name: str, channels: int) -> Tensor:
        return from_cpu_room(grads[name], value, channels) if name in grads else value.new_empty(0)

    return (
        natural("grad_query", call.problem.score_channels),
        natural("grad_key", call.problem.score_channels),
        natural("grad_value", channels),
        grad_bias,
    )


if available():
    register_kernels("cpu", attention_forward, attention_backward)


class _Call:
    """One call of a kernel: the C structure and the tensors that must outlive it."""

    def __init__(
        self,
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
    ) -> None:
        n, heads, channels = value.shape
        named = dict(zip(LISTS, lists, strict=True))
        self.value = value
        self.kept: list[Tensor] = [seed]
        self.problem = _Problem(
            by_target=_Lists(named["source"], named["pieces"], named["hubs"]),
            by_source=_Lists(
                named["target_by_source"], named["source_pieces"], named["source_hubs"]
            ),
            edge_by_source=named["by_source"].data_ptr(),
            ids=_ids(seed) if dropout else None,
            nodes=n,
            longest=LONGEST,
            kind=kind,
            activation=activation,
            symmetric_normalization=symmetric_normalization,
            shared=shared,
            undirected=undirected,
            heads=heads,
            score_channels=0 if kind == NONE else query.size(2),
            channels=channels,
            lanes=lanes_of(value),
            threads=threads(),
            seed=int(seed[0]) if dropout else 0,
            scale=scale,
            slope=slope,
            dropout=dropout,
        )
        self.give(value=self.lanes(value))
        if activation:
            self.problem.query_strides = (ctypes.c_int64 * 3)(*query.stride())
            self.give(query=query, activated=self.room(query.size(2)))
        elif kind != NONE:
            turned = self.lanes(query, per_head=kind == ADDITIVE)
            self.give(query=turned)
            self.give(key=turned if shared else self.lanes(key, per_head=kind == ADDITIVE))
        if bias is not None:
            self.give(bias=bias.contiguous())
        slots = max(
            (int(hubs[-1, 2]) for hubs in (named["hubs"], named["source_hubs"]) if len(hubs)),
            default=0,
        )
        if slots:  # the longest record of attention.cpp
            self.give(
                parts=value.new_empty(
                    slots * LANES * (2 * self.problem.score_channels + channels + 2)
                )
            )

    def give(self, **tensors: Tensor) -> None:
        """Put tensors into the structure."""
        for name, tensor in tensors.items():
            self.kept.append(tensor)
            setattr(self.problem, name, tensor.data_ptr())

    def room(self, channels: int, per_head: bool = False) -> Tensor:
        return cpu_room(self.value, channels, per_head)

    def lanes(self, x: Tensor, per_head: bool = False) -> Tensor:
        """[n, H, A] in the layout of the kernels; itself where it is so already."""
        n, heads, channels = x.shape
        many = self.problem.lanes > 1
        if per_head and not many:
            return x.contiguous()
        inner = x.transpose(1, 2) if many else x
        if inner.size(2) % LANES == 0 and heads <= LANES and inner.is_contiguous():
            return inner
        room = self.room(channels)
        function("to_lanes", x.dtype)(
            ctypes.c_void_p(x.data_ptr()),
            (ctypes.c_int64 * 3)(*x.stride()),
            ctypes.c_void_p(room.data_ptr()),
            ctypes.c_int64(n),
            heads,
            channels,
            self.problem.lanes,
            self.problem.threads,
        )
        return room

    def run(self, name: str) -> None:
        function(name, self.value.dtype)(ctypes.byref(self.problem))


def _ids(seed: Tensor) -> int | None:
    """Where the rows' names for the mask stand (:func:`deepgat.ops.dropout_masks.numbered`)."""
    return seed.data_ptr() + seed.element_size() if seed.numel() > 1 else None


class _Product(ctypes.Structure):
    """``DeepgatProduct`` of matmul.cpp, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("index", "position", "pieces", "hubs", "ids")),
        *((name, ctypes.c_int64) for name in ("num_pieces", "num_hubs", "longest", "columns")),
        *((name, ctypes.c_void_p) for name in ("values", "dense", "out", "parts")),
        ("dropout", ctypes.c_double),
        ("seed", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("transposed", "threads")),
    ]


def _sparse_matmul(
    ptr: Tensor, index: Tensor, position: Tensor | None, pieces: Tensor, hubs: Tensor,
    values: Tensor, dense: Tensor, seed: Tensor | None, dropout: float, transposed: bool,
) -> Tensor:  # fmt: skip
    if dense.dtype not in _BITS or values.dtype != dense.dtype:
        return matmul.define_sparse_matmul(
            ptr, index, position, pieces, hubs, values, dense, seed, dropout, transposed
        )
    values, dense = values.contiguous(), dense.contiguous()
    out = dense.new_empty(ptr.numel() - 1, dense.size(1))
    parts = dense.new_empty(int(hubs[-1, 2]) if len(hubs) else 0, dense.size(1))
    problem = _Product(
        index.data_ptr(), None if position is None else position.data_ptr(),
        pieces.data_ptr(), hubs.data_ptr(), None if seed is None else _ids(seed),
        len(pieces), len(hubs), LONGEST, dense.size(1),
        values.data_ptr(), dense.data_ptr(), out.data_ptr(), parts.data_ptr(),
        dropout, 0 if seed is None else int(seed[0]), transposed, threads(),
    )  # fmt: skip
    function("product", dense.dtype)(ctypes.byref(problem))
    return out


def _drop_entries(x: Tensor, seed: Tensor, dropout: float) -> Tensor:
    if x.dtype not in _BITS:
        return matmul.define_drop_entries(x, seed, dropout)
    x = x.contiguous()
    out = torch.empty_like(x)
    function("drop", x.dtype)(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()),
        ctypes.c_int64(x.size(0)), ctypes.c_int64(x.size(1)), ctypes.c_void_p(_ids(seed)),
        ctypes.c_uint32(int(seed[0])), ctypes.c_double(dropout), threads(),
    )  # fmt: skip
    return out


if available():  # elsewhere their definition runs
    matmul.sparse_matmul.register_kernel("cpu")(_sparse_matmul)
    matmul.drop_entries.register_kernel("cpu")(_drop_entries)
