"""Triton kernel for sums of powers of differences. Equations and names: ops/differences.py.

One program handles one piece of a list and CB channels, EB neighbours at a time; a tile is
[EB, CB]. Lists longer than a piece leave partial sums, which are added in a fixed order instead of
by atomics, so results are deterministic. Sums use ACC (float32, or float64 for float64 data).
"""

import triton
import triton.language as tl

from deepgat.ops.gpu.dropout_masks import exact

VALUE: tl.constexpr = tl.constexpr(0)
THERE: tl.constexpr = tl.constexpr(1)
BACK: tl.constexpr = tl.constexpr(2)
BOTH: tl.constexpr = tl.constexpr(3)


@triton.jit
def _power(a, q, TWICE: tl.constexpr, ACC: tl.constexpr):
    """a^q for a ≥ 0: by products of a and √a if TWICE = 2q, by logarithms if TWICE = −1."""
    if TWICE >= 0:
        if TWICE % 2 == 1:
            r = tl.sqrt(a)
        else:
            r = tl.zeros_like(a) + 1.0
        for _ in tl.static_range(TWICE // 2):
            r = r * a
    else:
        r = tl.where(a == 0, 0.0, tl.exp(exact(q, ACC) * tl.log(a)))
    return r


@triton.jit
def differences(
    pieces, index, x, grad, out, part, q, factor, width: tl.constexpr, PASS: tl.constexpr,
    TWICE: tl.constexpr, ACC: tl.constexpr, EB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """One pass: Σ |d|^q, or ``factor`` · Σ |d|^q sign(d) times g_v, g_u or g_v + g_u."""
    piece = pieces + tl.program_id(0).to(tl.int64) * 4
    v, begin, end, slot = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2), tl.load(piece + 3)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    real = tl.full([CB], True, tl.int1)
    if width % CB != 0:  # a constant mask allows wide loads
        real = c < width
    mine = tl.load(x + v * width + c, mask=real, other=0).to(ACC)
    if PASS != VALUE and PASS != BACK:
        g = tl.load(grad + v * width + c, mask=real, other=0).to(ACC)
    sums = tl.zeros([EB, CB], ACC)
    for first in range(begin, end, EB):
        e = first + tl.arange(0, EB)
        ok = e < end
        u = tl.load(index + e, mask=ok, other=0).to(tl.int64)
        inside = ok[:, None] & real[None, :]
        at = u[:, None] * width + c[None, :]
        theirs = tl.load(x + at, mask=inside, other=0).to(ACC)
        d = tl.where(inside, mine[None, :] - theirs, 0.0)  # padding adds 0
        size = _power(tl.abs(d), q, TWICE, ACC)
        if PASS == VALUE:
            sums += size
        else:
            slope = tl.where(d == 0, 0.0, tl.where(d < 0, -size, size))
            if PASS == THERE:
                sums += slope
            else:
                weight = tl.load(grad + at, mask=inside, other=0).to(ACC)
                if PASS == BOTH:
                    weight += g[None, :]
                sums += weight * slope
    acc = tl.sum(sums, axis=0)
    if PASS == THERE:
        acc = acc * g
    if PASS != VALUE:
        acc = acc * exact(factor, ACC)
    if slot < 0:
        tl.store(out + v * width + c, acc, mask=real)
    else:
        tl.store(part + slot * width + c, acc, mask=real)
