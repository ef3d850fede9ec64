"""Calls ``matmul.cpp``: ``deepgat::sparse_matmul`` and ``deepgat::drop_entries`` on the CPU."""

from __future__ import annotations

from ctypes import c_double, c_int32, c_int64, c_uint32, c_void_p

import torch
from torch import Tensor

from deepgat.ops import checks, matmul
from deepgat.ops.cpu import kernels
from deepgat.ops.cpu.kernels import fields, pointers
from deepgat.ops.lists import LONGEST


class _Product(kernels.Structure):
    """``DeepgatProduct`` of matmul.cpp, field by field."""

    _fields_ = (
        *pointers("index position pieces hubs ids"),
        *fields(c_int64, "num_pieces num_hubs longest columns"),
        *pointers("values dense out parts"),
        ("dropout", c_double),
        ("seed", c_uint32),
        *fields(c_int32, "transposed threads"),
    )


def sparse_matmul(
    ptr: Tensor, index: Tensor, pieces: Tensor, hubs: Tensor, position: Tensor | None,
    values: Tensor, dense: Tensor, seed: Tensor | None, dropout: float,
) -> Tensor:  # fmt: skip
    if dense.dtype not in kernels.BITS or values.dtype != dense.dtype:
        return matmul.define_sparse_matmul(
            ptr, index, pieces, hubs, position, values, dense, seed, dropout
        )
    checks.raw("dense", dense, dense.dtype, "rows", "columns")
    places = {} if position is None else {"position": position}
    rows = ptr.numel() - 1
    entries = checks.raw_lists(rows, index=index, pieces=pieces, hubs=hubs, **places)
    checks.raw("values", values, dense.dtype, entries)
    checks.raw_seed(seed, rows if position is None else dense.size(0), dropout)
    values, dense = values.contiguous(), dense.contiguous()
    columns = dense.size(1)
    out = dense.new_empty(ptr.numel() - 1, columns)
    problem = _Product(
        index=index, position=position, pieces=pieces, hubs=hubs, ids=kernels.row_ids(seed),
        num_pieces=len(pieces), num_hubs=len(hubs), longest=LONGEST, columns=columns,
        values=values, dense=dense, out=out,
        parts=dense.new_empty(kernels.num_slots(hubs), columns),
        dropout=dropout, seed=0 if seed is None else int(seed[0]),
        transposed=position is not None, threads=kernels.threads(),
    )  # fmt: skip
    problem.run("product", dense.dtype)
    return out


def drop_entries(x: Tensor, seed: Tensor, dropout: float) -> Tensor:
    if x.dtype not in kernels.BITS:
        return matmul.define_drop_entries(x, seed, dropout)
    checks.raw("x", x, x.dtype, "rows", "columns")
    checks.raw_seed(seed, x.size(0), dropout or 0.5)
    x = x.contiguous()
    out = torch.empty_like(x)
    kernels.function("drop", x.dtype)(
        c_void_p(x.data_ptr()), c_void_p(out.data_ptr()), c_int64(x.size(0)), c_int64(x.size(1)),
        c_void_p(kernels.row_ids(seed)), c_uint32(int(seed[0])), c_double(dropout),
        kernels.threads(),
    )  # fmt: skip
    return out


if kernels.available():  # elsewhere their definition runs
    matmul.sparse_matmul.register_kernel("cpu")(sparse_matmul)
    matmul.drop_entries.register_kernel("cpu")(drop_entries)
    matmul.EAGER["cpu"] = drop_entries
