"""The sparse product and feature dropout on a GPU."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from deepgat.ops import dropout_masks
from deepgat.ops import matmul as operators
from deepgat.ops.gpu import matmul_kernels as kernels
from deepgat.ops.gpu.launch import compute_type, row_tile, sum_type, two_floats

ENTRIES, COLUMNS = 32, 64
WIDEST = 1024
"""Maximum columns of a dropout tile."""


def sparse_matmul(
    ptr: Tensor, index: Tensor, position: Tensor | None, pieces: Tensor, hubs: Tensor,
    values: Tensor, dense: Tensor, seed: Tensor | None, dropout: float,
) -> Tensor:  # fmt: skip
    """``deepgat::sparse_matmul``: [c, m] → [r, m]."""
    rows, width = ptr.numel() - 1, dense.size(1)
    out = dense.new_empty(rows, width)
    if not out.numel():
        return out
    dense = dense.contiguous()
    columns = min(COLUMNS, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, columns)
    slots = pieces.size(0) - rows + hubs.size(0)
    part = dense.new_empty(slots, width, dtype=sum_type(dense))
    kernels.sparse_matmul[(pieces.size(0), blocks)](
        pieces, index, index if position is None else position, values, dense,
        index if seed is None else seed, out, part,
        dropout_masks.threshold(dropout), two_floats(1 / (1 - dropout) if dropout < 1 else 0.0),
        width, TRANSPOSED=position is not None, DROP=dropout > 0,
        NAMED=seed is not None and seed.numel() > 1,
        ACC=compute_type(dense), EB=ENTRIES, MB=columns,
    )  # fmt: skip
    if hubs.size(0):
        kernels.merge[(hubs.size(0), blocks)](
            hubs, part, out, width, ACC=compute_type(dense), MB=columns
        )
    return out


def drop_entries(x: Tensor, seed: Tensor, dropout: float) -> Tensor:
    """``deepgat::drop_entries``: [n, m] → [n, m]."""
    x = x.contiguous()
    out = torch.empty_like(x)
    n, m = x.shape
    rows, columns = row_tile(min(m, WIDEST))
    if x.numel():
        kernels.drop_entries[(triton.cdiv(n, rows), triton.cdiv(m, columns))](
            x, seed, out, n, dropout_masks.threshold(dropout),
            two_floats(1 / (1 - dropout) if dropout < 1 else 0.0), m,
            NAMED=seed.numel() > 1, ACC=compute_type(x), RB=rows, MB=columns,
        )  # fmt: skip
    return out


operators.sparse_matmul.register_kernel("cuda")(sparse_matmul)
operators.drop_entries.register_kernel("cuda")(drop_entries)
