"""Triton kernels for the sparse product and for feature dropout (see ops/matmul.py)."""

import triton
import triton.language as tl

from deepgat.ops.gpu.dropout_masks import keep_entry, named


@triton.jit
def sparse_matmul(
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
    if slot < 0:
        tl.store(out + i * width + m, acc, mask=m < width)
    else:
        tl.store(part + slot * width + m, acc, mask=m < width)


@triton.jit
def merge(hubs, part, out, width, ACC: tl.constexpr, MB: tl.constexpr):
    """Add the partial sums of one list in order."""
    hub = hubs + tl.program_id(0).to(tl.int64) * 3
    i, begin, end = tl.load(hub), tl.load(hub + 1), tl.load(hub + 2)
    m = tl.program_id(1) * MB + tl.arange(0, MB)
    acc = tl.zeros([MB], ACC)
    for slot in range(begin, end):
        acc += tl.load(part + slot * width + m, mask=m < width, other=0)
    tl.store(out + i * width + m, acc, mask=m < width)


@triton.jit
def drop_entries(
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
