"""The sparse product and feature dropout on a GPU (see ops/matmul.py)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepgat.ops import dropout_masks
from deepgat.ops import matmul as operators
from deepgat.ops.gpu.launch import compute_type, row_tile, sum_type, two_floats
from deepgat.ops.gpu.shared import keep_entry, named, store_sum

ENTRIES, COLUMNS = 32, 64
WIDEST = 1024
"""Maximum columns of a dropout tile."""


@triton.jit
def sparse_matmul_kernel(
    pieces, index, position, values, dense, seed, out, part, threshold, factor, width: tl.constexpr,
    TRANSPOSED: tl.constexpr, DROP: tl.constexpr, NAMED: tl.constexpr,
    ACC: tl.constexpr, EB: tl.constexpr, MB: tl.constexpr,
):  # fmt: skip
    """One piece of a list and MB columns of the result."""
    piece = pieces + tl.program_id(0).to(tl.int64) * 4
    i, begin, end, slot = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2), tl.load(piece + 3)
    m = tl.program_id(1) * MB + tl.arange(0, MB)
    if DROP:
        drawn = tl.load(seed)
    sums = tl.zeros([EB, MB], ACC)
    for first in range(begin, end, EB):
        e = first + tl.arange(0, EB)
        ok = e < end
        j = tl.load(index + e, mask=ok, other=0).to(tl.int64)
        where = e
        if TRANSPOSED:
            where = tl.load(position + e, mask=ok, other=0)
        x = tl.load(values + where, mask=ok, other=0).to(ACC)
        if DROP:
            if TRANSPOSED:
                x *= keep_entry(drawn, named(seed, j, NAMED), i, threshold, factor, ACC)
            else:
                x *= keep_entry(drawn, named(seed, i, NAMED), j, threshold, factor, ACC)
        inside = ok[:, None] & (m < width)[None, :]
        rows = tl.load(dense + j[:, None] * width + m[None, :], mask=inside, other=0).to(ACC)
        sums += x[:, None] * rows
    acc = tl.sum(sums, axis=0)
    store_sum(out, part, i, slot, width, width, m, acc, m < width)


@triton.jit
def merge_kernel(hubs, part, out, width, ACC: tl.constexpr, MB: tl.constexpr):
    """Add the partial sums of one list in order."""
    hub = hubs + tl.program_id(0).to(tl.int64) * 3
    i, begin, end = tl.load(hub), tl.load(hub + 1), tl.load(hub + 2)
    m = tl.program_id(1) * MB + tl.arange(0, MB)
    acc = tl.zeros([MB], ACC)
    for slot in range(begin, end):
        acc += tl.load(part + slot * width + m, mask=m < width, other=0)
    tl.store(out + i * width + m, acc, mask=m < width)


@triton.jit
def drop_entries_kernel(
    x, seed, out, height, threshold, factor, width: tl.constexpr,
    NAMED: tl.constexpr, ACC: tl.constexpr, RB: tl.constexpr, MB: tl.constexpr,
):  # fmt: skip
    """A tile of RB rows and MB columns."""
    row = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB)
    column = tl.program_id(1) * MB + tl.arange(0, MB)
    name = named(seed, tl.minimum(row, height - 1), NAMED)
    kept = keep_entry(tl.load(seed), name[:, None], column[None, :], threshold, factor, ACC)
    at = row[:, None] * width + column[None, :]
    here = (row < height)[:, None] & (column < width)[None, :]
    number = tl.load(x + at, mask=here, other=0).to(ACC)
    tl.store(out + at, number * kept, mask=here)


def sparse_matmul(
    ptr: Tensor, index: Tensor, pieces: Tensor, hubs: Tensor, position: Tensor | None,
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
    sparse_matmul_kernel[(pieces.size(0), blocks)](
        pieces, index, index if position is None else position, values, dense,
        index if seed is None else seed, out, part,
        dropout_masks.threshold(dropout), two_floats(1 / (1 - dropout) if dropout < 1 else 0.0),
        width, TRANSPOSED=position is not None, DROP=dropout > 0,
        NAMED=seed is not None and seed.numel() > 1,
        ACC=compute_type(dense), EB=ENTRIES, MB=columns,
    )  # fmt: skip
    if hubs.size(0):
        merge_kernel[(hubs.size(0), blocks)](
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
        drop_entries_kernel[(triton.cdiv(n, rows), triton.cdiv(m, columns))](
            x, seed, out, n, dropout_masks.threshold(dropout),
            two_floats(1 / (1 - dropout) if dropout < 1 else 0.0), m,
            NAMED=seed.numel() > 1, ACC=compute_type(x), RB=rows, MB=columns,
        )  # fmt: skip
    return out


operators.sparse_matmul.register_kernel("cuda")(sparse_matmul)
operators.drop_entries.register_kernel("cuda")(drop_entries)
