"""Registers ``differences.cpp`` as the CPU kernel of ``deepgat::differences`` and its gradient."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from deepgat.ops.cpu import kernels
from deepgat.ops.differences import register_pass


class _Differences(ctypes.Structure):
    """``DeepgatDifferences`` of differences.cpp, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("index", "pieces", "hubs")),
        *((name, ctypes.c_int64) for name in ("num_pieces", "num_hubs", "channels")),
        *((name, ctypes.c_void_p) for name in ("x", "grad", "out", "parts")),
        ("power", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("kind", "threads")),
    ]


def run_pass(
    kind: int, index: Tensor, pieces: Tensor, hubs: Tensor, x: Tensor, grad: Tensor | None,
    power: float,
) -> Tensor:  # fmt: skip
    """One pass over the lists: [n, D] → [n, D]."""
    out = torch.empty_like(x)
    parts = x.new_empty(int(hubs[-1, 2]) if len(hubs) else 0, x.size(1))
    problem = _Differences(
        index.data_ptr(), pieces.data_ptr(), hubs.data_ptr(), len(pieces), len(hubs), x.size(1),
        x.data_ptr(), (x if grad is None else grad).data_ptr(), out.data_ptr(), parts.data_ptr(),
        power, kind, kernels.threads(),
    )  # fmt: skip
    kernels.function("differences", x.dtype)(ctypes.byref(problem))
    return out


if kernels.available():
    register_pass("cpu", run_pass)
