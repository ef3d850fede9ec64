"""Neighbour attention in C++ with OpenMP: the fast path on the CPU.

The kernels (``kernels/attention.cpp``) are a plain shared library beside this file, built with the
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

from deepgat.ops.attention import LISTS, NONE, attend, attend_backward, stride_of

_BITS = {torch.float32: "f32", torch.float64: "f64"}
_LISTS = ("ptr", "source", "source_ptr", "target_by_source", "by_source")
_INTEGERS = (
    "kind", "activation", "symmetric_normalization", "single_pass",
    "heads", "stride", "score_channels", "channels", "threads",
)  # fmt: skip
_TENSORS = (
    "query", "key", "value", "bias", "activated", "out", "log_sum", "grad_out", "grad_lanes",
    "grad_query", "grad_key", "grad_value", "grad_bias", "row_dot", "column_dot",
)  # fmt: skip


class _Problem(ctypes.Structure):
    """``DeepgatProblem`` of attention.cpp, field by field."""

    _fields_ = [
        ("nodes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _LISTS),
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


@cache
def _function(name: str, dtype: torch.dtype) -> Any:
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


@attend.register_kernel("cpu")
def _(
    lists: Sequence[Tensor], query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None,
    seed: Tensor, kind: int, activation: int, scale: float, slope: float,
    symmetric_normalization: bool, shared: bool, undirected: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    call = _Call(
        lists, query, key, value, bias, seed, kind, activation, scale, slope,
        symmetric_normalization, shared, dropout,
    )  # fmt: skip
    out = value.new_empty(value.shape)
    log_sum = value.new_empty(value.size(0), call.stride)
    call.give(out=out, log_sum=log_sum)
    call.run("forward")
    return out, log_sum


@attend_backward.register_kernel("cpu")
def _(
    grad: Tensor, out: Tensor, log_sum: Tensor, lists: Sequence[Tensor], query: Tensor, key: Tensor,
    value: Tensor, bias: Tensor | None, seed: Tensor, kind: int, activation: int, scale: float,
    slope: float, symmetric_normalization: bool, shared: bool, undirected: bool, dropout: float,
    want_scores: bool, want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    call = _Call(
        lists, query, key, value, bias, seed, kind, activation, scale, slope,
        symmetric_normalization, shared, dropout,
    )  # fmt: skip
    call.give(grad_out=grad.contiguous(), out=out, log_sum=log_sum)
    call.give(grad_lanes=call.room(value), row_dot=torch.empty_like(log_sum))
    if symmetric_normalization:
        call.give(column_dot=torch.empty_like(log_sum))
    grads = [value.new_empty(0) for _ in range(4)]
    grads[2] = call.room(value)
    call.give(grad_value=grads[2])
    if kind != NONE and want_scores:
        grads[0] = call.room(query)
        if not shared:
            grads[1] = call.room(query)
        call.give(grad_query=grads[0], grad_key=grads[0] if shared else grads[1])
        call.problem.single_pass = (
            shared and undirected and bias is None and not symmetric_normalization
        )
    if bias is not None and want_bias:
        grads[3] = value.new_empty(bias.shape)
        call.give(grad_bias=grads[3])
    call.run("backward")
    heads = value.size(1)
    for index in range(3):  # lanes → [n, H, ·], a view
        if grads[index].dim() == 3:
            grads[index] = grads[index][..., :heads].transpose(1, 2)
    return grads[0], grads[1], grads[2], grads[3]


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
        dropout: float,
    ) -> None:
        n, heads, channels = value.shape
        self.dtype = value.dtype
        self.stride = stride_of(heads)
        self.kept: list[Tensor] = []
        self.problem = _Problem(
            nodes=n,
            kind=kind,
            activation=activation,
            symmetric_normalization=symmetric_normalization,
            heads=heads,
            stride=self.stride,
            channels=channels,
            scale=scale,
            slope=slope,
            dropout=dropout,
            seed=int(seed),
            threads=torch.get_num_threads(),
        )
        by_name = dict(zip(LISTS, lists, strict=True))
        self.give(**{name: by_name[name] for name in _LISTS})
        self.give(value=self.lanes(value))
        if kind != NONE:
            self.problem.score_channels = query.size(2)
            turned = self.lanes(query)
            self.give(query=turned, key=turned if shared else self.lanes(key))
        if activation:
            self.give(activated=self.room(query))
        if bias is not None:
            self.give(bias=bias.contiguous())

    def give(self, **tensors: Tensor) -> None:
        """Put tensors into the structure."""
        for name, tensor in tensors.items():
            self.kept.append(tensor)
            setattr(self.problem, name, tensor.data_ptr())

    def room(self, like: Tensor) -> Tensor:
        """Empty lanes for a tensor [n, H, A]: [n, A, stride]."""
        n, _, channels = like.shape
        return like.new_empty(n, channels, self.stride)

    def lanes(self, x: Tensor) -> Tensor:
        """[n, H, A] → [n, A, stride]: heads innermost, padded with zeros; a view where it is so."""
        n, heads, channels = x.shape
        turned = x.transpose(1, 2)
        if heads == self.stride and turned.is_contiguous():
            return turned
        x, room = x.contiguous(), self.room(x)
        _function("to_lanes", self.dtype)(
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(room.data_ptr()),
            ctypes.c_int64(n),
            heads,
            channels,
            self.stride,
            self.problem.threads,
        )
        return room

    def run(self, name: str) -> None:
        _function(name, self.dtype)(ctypes.byref(self.problem))
