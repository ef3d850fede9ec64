"""Calls ``differences.cpp``: ``deepgat::differences`` and its gradient on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_double, c_int32, c_int64

import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops import checks
from deepgat.ops.cpu import kernels
from deepgat.ops.cpu.kernels import fields, pointers
from deepgat.ops.differences import register_pass


class _Differences(kernels.Structure):
    """``DeepgatDifferences`` of differences.cpp, field by field."""

    _fields_ = (
        *pointers("index pieces hubs"),
        *fields(c_int64, "num_pieces num_hubs channels"),
        *pointers("x grad out parts"),
        ("power", c_double),
        *fields(c_int32, "kind threads"),
    )


def run_pass(
    kind: int, index: Tensor, pieces: Tensor, hubs: Tensor, x: Tensor, grad: Tensor | None,
    power: float,
) -> Tensor:  # fmt: skip
    """One pass over the lists: [n, D] → [n, D]."""
    out = torch.empty_like(x)
    problem = _Differences(
        index=index, pieces=pieces, hubs=hubs, num_pieces=len(pieces), num_hubs=len(hubs),
        channels=x.size(1), x=x, grad=grad, out=out,
        parts=x.new_empty(kernels.num_slots(hubs), x.size(1)),
        power=power, kind=kind, threads=kernels.threads(),
    )  # fmt: skip
    problem.run("differences", x.dtype)
    return out


def check(lists: Sequence[Tensor], x: Tensor, *grad: Tensor) -> None:
    """Refuse what the kernel would read or write beyond its end."""
    if x.dtype not in kernels.BITS:
        raise UserError(f"x holds {x.dtype} values: expected torch.float32 or torch.float64")
    checks.raw("x", x, x.dtype, "nodes", "channels")
    for item in grad:
        checks.raw("grad", item, x.dtype, *x.shape)
    for index, pieces, hubs in (lists[:3], lists[3:]):
        checks.raw_lists(x.size(0), index=index, pieces=pieces, hubs=hubs)


if kernels.available():
    register_pass("cpu", run_pass, check)
