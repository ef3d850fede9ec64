"""Sums of powers of differences on a GPU. Equations and names: ops/differences.py.

One program handles one piece of a list and CB channels, EB neighbours at a time; a tile is
[EB, CB]. Lists longer than a piece leave partial sums, which are added in a fixed order instead of
by atomics, so results are deterministic. Sums use ACC (float32, or float64 for float64 data).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepgat.ops import differences as operators
from deepgat.ops.gpu.launch import compute_type, sum_type, two_floats
from deepgat.ops.gpu.matmul import merge_kernel
from deepgat.ops.gpu.shared import exact, store_sum

VALUE = tl.constexpr(operators.VALUE)
THERE = tl.constexpr(operators.THERE)
BACK = tl.constexpr(operators.BACK)
BOTH = tl.constexpr(operators.BOTH)
MOST_ENTRIES, COLUMNS = 32, 64
MOST_HALVES = 16
"""The kernel unrolls powers up to half of this into products."""
PER_WARP = 512
"""Numbers of a tile per warp."""


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
def differences_kernel(
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
    store_sum(out, part, v, slot, width, width, c, acc, real)


def run_pass(
    kind: int, index: Tensor, pieces: Tensor, hubs: Tensor, x: Tensor, grad: Tensor | None,
    power: float,
) -> Tensor:  # fmt: skip
    """One pass over the lists: [n, D] → [n, D]."""
    n, width = x.shape
    out = torch.empty_like(x)
    if not x.numel():
        return out
    columns = min(COLUMNS, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, columns)
    entries = min(MOST_ENTRIES, triton.next_power_of_2(max(1, index.numel() // n)))
    slots = pieces.size(0) - n + hubs.size(0)  # a hub of p pieces adds p − 1 to the n
    part = x.new_empty(slots, width, dtype=sum_type(x))
    exponent = power if kind == operators.VALUE else power - 1
    twice = int(2 * exponent) if (2 * exponent).is_integer() else -1
    differences_kernel[(pieces.size(0), blocks)](
        pieces, index, x, x if grad is None else grad, out, part,
        two_floats(exponent), two_floats(power), width, PASS=kind,
        TWICE=twice if twice <= MOST_HALVES else -1, ACC=compute_type(x),
        EB=entries, CB=columns, num_warps=max(1, entries * columns // PER_WARP),
    )  # fmt: skip
    if hubs.size(0):
        merge_kernel[(hubs.size(0), blocks)](
            hubs, part, out, width, ACC=compute_type(x), MB=columns
        )
    return out


operators.register_pass("cuda", run_pass)
