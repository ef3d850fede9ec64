"""Calls ``sampling.cpp``; :mod:`deepgat.ops.sampling` documents the functions."""

from __future__ import annotations

from ctypes import c_int32, c_int64, c_uint32, c_void_p

import torch
from torch import Tensor

from deepgat.ops.cpu import kernels
from deepgat.ops.cpu.kernels import fields, pointers
from deepgat.ops.neighbors import Neighbors


class _Sublists(kernels.Structure):
    """``DeepgatSublists`` of sampling.cpp, field by field."""

    _fields_ = (
        *pointers("ptr source_ptr source target_by_source place nodes"),
        ("count", c_int64),
        *pointers("out_ptr out_source_ptr out_source out_target out_target_by_source"),
        *pointers("out_edge out_by_source"),
        *fields(c_int32, "threads"),
    )


def sample_neighbors(neighbors: Neighbors, nodes: Tensor, most: int, seed: int) -> Tensor:
    nodes = nodes.contiguous()
    others = neighbors.ptr[nodes + 1] - neighbors.ptr[nodes] - 1
    counts = others.clamp(max=most)
    ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    out = torch.empty(int(ptr[-1]), dtype=torch.int32)
    kernels.function("sample")(
        *(c_void_p(t.data_ptr()) for t in (neighbors.ptr, neighbors.source, nodes)),
        c_int64(nodes.numel()), c_int64(most), c_uint32(seed),
        *(c_void_p(t.data_ptr()) for t in (ptr, out)), kernels.threads(),
    )  # fmt: skip
    return out


def sublists(neighbors: Neighbors, nodes: Tensor, place: Tensor) -> tuple[Neighbors, Tensor]:
    nodes = nodes.contiguous()
    ptr, source_ptr = (nodes.new_empty(nodes.numel() + 1) for _ in range(2))
    given = ("ptr", "source_ptr", "source", "target_by_source")
    problem = _Sublists(
        **{name: getattr(neighbors, name) for name in given}, place=place, nodes=nodes,
        count=nodes.numel(), out_ptr=ptr, out_source_ptr=source_ptr, threads=kernels.threads(),
    )  # fmt: skip
    problem.run("sublists_count")
    edges = int(ptr[-1])
    lists = {"ptr": ptr, "source_ptr": source_ptr, "by_source": nodes.new_empty(edges)}
    for name in ("source", "target", "target_by_source"):
        lists[name] = place.new_empty(edges)
    edge = nodes.new_empty(edges)
    problem.set(**{f"out_{name}": item for name, item in lists.items()}, out_edge=edge)
    problem.run("sublists_fill")
    return Neighbors.from_lists(**lists, symmetric=neighbors.symmetric, derived=True), edge
