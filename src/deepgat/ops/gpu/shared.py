"""Functions of several Triton kernels; the dropout masks are those of ops/dropout_masks.py."""

import triton
import triton.language as tl


@triton.jit
def mix(x):
    """A bijection of uint32 that scatters neighbouring inputs."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def named(seed, rows, NAMED: tl.constexpr):
    """What the masks call these rows: their numbers, or those that stand behind the seed."""
    names = rows
    if NAMED:
        names = tl.load(seed + 1 + rows)
    return names


@triton.jit
def keep(seed, v, u, h, threshold, factor, ACC: tl.constexpr):
    """[EB, HB]: 0 or ``factor`` for the edges (v, u), one of which is a block, and the heads h."""
    pair = mix(mix(seed.to(tl.uint32) ^ v.to(tl.uint32)) + u.to(tl.uint32))
    draw = mix(pair[:, None] + (h + 1).to(tl.uint32)[None, :] * 0x9E3779B9)
    return tl.where(draw.to(tl.int64) >= threshold, exact(factor, ACC), 0.0)


@triton.jit
def keep_entry(seed, row, column, threshold, factor, ACC: tl.constexpr):
    """0 or ``factor`` for the entries (row, column) of a matrix; shapes as they broadcast."""
    draw = mix(mix(seed.to(tl.uint32) ^ row.to(tl.uint32)) + column.to(tl.uint32))
    return tl.where(draw.to(tl.int64) >= threshold, exact(factor, ACC), 0.0)


@triton.jit
def exact(number, ACC: tl.constexpr):
    """A host float passed as two floats of single precision, which is how Triton takes them."""
    return tl.full([], number[0], ACC) + tl.full([], number[1], ACC)


@triton.jit
def store_sum(out, part, row, slot, distance, width, column, total, mask):
    """Store the sum of a complete list in its row of ``out``, that of a piece in ``part``.

    ``distance`` is that of the rows of ``out``.
    """
    if slot < 0:
        tl.store(out + row * distance + column, total, mask=mask)
    else:
        tl.store(part + slot * width + column, total, mask=mask)
