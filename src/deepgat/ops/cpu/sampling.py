"""Calls the kernels of ``sampling.cpp``; :mod:`deepgat.ops.sampling` documents the functions."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from deepgat.ops.cpu import kernels
from deepgat.ops.neighbors import Neighbors

_NAMES = ("sample", "sublists_count", "sublists_fill")


class _Sublists(ctypes.Structure):
    """``DeepgatSublists`` of sampling.cpp, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("ptr", "source_ptr", "source", "target_by_source")),
        *((name, ctypes.c_void_p) for name in ("place", "nodes")),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("out_ptr", "out_source_ptr")),
        *((f"out_{name}", ctypes.c_void_p) for name in ("source", "target", "target_by_source")),
        *((name, ctypes.c_void_p) for name in ("out_edge", "out_by_source")),
        ("threads", ctypes.c_int32),
    ]

    def give(self, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, tensor.data_ptr())


@cache
def _functions() -> dict[str, Any] | None:
    """None if the kernels are not built."""
    loaded = kernels.library()
    if loaded is None or not hasattr(loaded, "deepgat_sample_base"):
        return None
    found = {name: getattr(loaded, f"deepgat_{name}_base") for name in _NAMES}
    for function in found.values():
        function.restype = None
    return found


def available() -> bool:
    return _functions() is not None


def _function(name: str) -> Any:
    found = _functions()
    assert found is not None
    return found[name]


def sample_neighbors(neighbors: Neighbors, nodes: Tensor, most: int, seed: int) -> Tensor:
    nodes = nodes.contiguous()
    others = neighbors.ptr[nodes + 1] - neighbors.ptr[nodes] - 1
    counts = others.clamp(max=most)
    ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    out = torch.empty(int(ptr[-1]), dtype=torch.int32)
    _function("sample")(
        *(ctypes.c_void_p(t.data_ptr()) for t in (neighbors.ptr, neighbors.source, nodes)),
        ctypes.c_int64(nodes.numel()), ctypes.c_int64(most), ctypes.c_uint32(seed),
        *(ctypes.c_void_p(t.data_ptr()) for t in (ptr, out)), kernels.threads(),
    )  # fmt: skip
    return out


def sublists(
    neighbors: Neighbors, nodes: Tensor, place: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    nodes = nodes.contiguous()
    ptr, source_ptr = (nodes.new_empty(nodes.numel() + 1) for _ in range(2))
    problem = _Sublists(count=nodes.numel(), threads=kernels.threads())
    given = ("ptr", "source_ptr", "source", "target_by_source")
    problem.give(**{name: getattr(neighbors, name) for name in given}, place=place, nodes=nodes)
    problem.give(out_ptr=ptr, out_source_ptr=source_ptr)
    _function("sublists_count")(ctypes.byref(problem))
    edges = int(ptr[-1])
    lists = {"ptr": ptr, "source_ptr": source_ptr, "by_source": nodes.new_empty(edges)}
    for name in ("source", "target", "target_by_source"):
        lists[name] = place.new_empty(edges)
    edge = nodes.new_empty(edges)
    problem.give(**{f"out_{name}": item for name, item in lists.items()}, out_edge=edge)
    _function("sublists_fill")(ctypes.byref(problem))
    return lists, edge
