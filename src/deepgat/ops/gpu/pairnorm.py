"""PairNorm of a whole graph on a GPU. Equations and names: ops/pairnorm.py.

A tile is [RB, MB]: RB whole rows. Each program leaves partial sums over its rows, which are added
in a fixed order instead of by atomics, so results are deterministic. Sums use ACC (float32, or
float64 for float64 data).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepgat.ops import pairnorm as operators
from deepgat.ops.gpu.launch import PER_WARP, PROGRAMS, compute_type, row_tile, sum_type, two_floats
from deepgat.ops.gpu.shared import exact


@triton.jit
def _centred(x, mean, row, c, n, m: tl.constexpr, ACC: tl.constexpr):
    """(z, offsets, bounds mask) of a block of rows; z is 0 out of bounds."""
    here = (row < n)[:, None] & (c < m)[None, :]
    at = row[:, None] * m + c[None, :]
    value = tl.load(x + at, mask=here, other=0).to(ACC)
    centre = tl.load(mean + c, mask=c < m, other=0)
    return tl.where(here, value - centre[None, :], 0.0), at, here


@triton.jit
def _square_length(square, n, eps, ACC: tl.constexpr):
    """r² = ε + mean_v ‖z_v‖²."""
    return exact(eps, ACC) + tl.load(square) / n


@triton.jit
def _by_own_length(g, z, here, scale, eps, ACC: tl.constexpr):
    """dz for rows scaled individually: s g/ε where z = 0, and 0 out of bounds."""
    length = tl.sqrt(tl.sum(z * z, axis=1))
    divisor = exact(eps, ACC) + length
    along = tl.sum(g * z, axis=1) / (tl.where(length == 0, 1.0, length) * divisor)
    dz = (g - z * along[:, None]) * (exact(scale, ACC) / divisor)[:, None]
    # The selection also stops the compiler from fusing this product with the subtraction of the
    # mean. Where z = 0, dz is as large as 1/ε, and its rounding error would become the gradient.
    return tl.where(here, dz, 0.0)


@triton.jit
def squares_kernel(
    x, mean, parts, n, m: tl.constexpr, ACC: tl.constexpr, RB: tl.constexpr, MB: tl.constexpr
):
    """This program's partial sum of ‖z_v‖² in parts [programs]."""
    c = tl.arange(0, MB)
    sums = tl.zeros([RB, MB], ACC)
    for first in range(tl.program_id(0) * RB, n, tl.num_programs(0) * RB):
        row = first + tl.arange(0, RB).to(tl.int64)
        z, _, _ = _centred(x, mean, row, c, n, m, ACC)
        sums += z * z
    tl.store(parts + tl.program_id(0), tl.sum(tl.sum(sums, axis=1), axis=0))


@triton.jit
def forward_kernel(
    x, mean, square, y, n, scale, eps, m: tl.constexpr, INDIVIDUALLY: tl.constexpr,
    ACC: tl.constexpr, RB: tl.constexpr, MB: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB)
    z, at, here = _centred(x, mean, row, tl.arange(0, MB), n, m, ACC)
    if INDIVIDUALLY:
        length = tl.sqrt(tl.sum(z * z, axis=1))
        out = z * (exact(scale, ACC) / (exact(eps, ACC) + length))[:, None]
    else:
        out = z * (exact(scale, ACC) / tl.sqrt(_square_length(square, n, eps, ACC)))
    tl.store(y + at, out, mask=here)


@triton.jit
def backward_sums_kernel(
    grad, x, mean, parts, n, scale, eps, m: tl.constexpr, INDIVIDUALLY: tl.constexpr,
    ACC: tl.constexpr, RB: tl.constexpr, MB: tl.constexpr,
):  # fmt: skip
    """This program's partial sums in parts [programs, m + 1]: of dz_v, or of g_v and g_v·z_v.

    With one length for all rows, Σ dz_v follows from Σ g_v, since Σ z_v = 0.
    """
    c = tl.arange(0, MB)
    sums = tl.zeros([RB, MB], ACC)
    along = tl.zeros([RB], ACC)
    for first in range(tl.program_id(0) * RB, n, tl.num_programs(0) * RB):
        row = first + tl.arange(0, RB).to(tl.int64)
        z, at, here = _centred(x, mean, row, c, n, m, ACC)
        g = tl.load(grad + at, mask=here, other=0).to(ACC)
        if INDIVIDUALLY:
            sums += _by_own_length(g, z, here, scale, eps, ACC)
        else:
            sums += g
            along += tl.sum(g * z, axis=1)
    mine = parts + tl.program_id(0) * (m + 1)
    tl.store(mine + c, tl.sum(sums, axis=0), mask=c < m)
    tl.store(mine + m, tl.sum(along, axis=0))


@triton.jit
def backward_kernel(
    grad, x, mean, square, totals, dx, n, scale, eps, m: tl.constexpr,
    INDIVIDUALLY: tl.constexpr, ACC: tl.constexpr, RB: tl.constexpr, MB: tl.constexpr,
):  # fmt: skip
    """dx, from totals [m + 1], the sums of all programs."""
    row = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB)
    c = tl.arange(0, MB)
    z, at, here = _centred(x, mean, row, c, n, m, ACC)
    g = tl.load(grad + at, mask=here, other=0).to(ACC)
    average = (tl.load(totals + c, mask=c < m, other=0) / n)[None, :]
    if INDIVIDUALLY:
        out = _by_own_length(g, z, here, scale, eps, ACC) - average
    else:
        squared = _square_length(square, n, eps, ACC)
        along = tl.load(totals + m) / (n * squared)
        out = (g - average - z * along) * (exact(scale, ACC) / tl.sqrt(squared))
    tl.store(dx + at, out, mask=here)


def pair_norm(
    x: Tensor, scale: float, eps: float, individually: bool, stored: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    x = x.contiguous()
    n, m = x.shape
    y = torch.empty_like(x, dtype=stored)
    sums = sum_type(x)
    mean = x.mean(0, dtype=sums)
    if not x.numel():
        return y, mean, x.new_zeros(int(not individually), dtype=sums)
    rows, width = row_tile(m)
    blocks = triton.cdiv(n, rows)
    tile = {"m": m, "ACC": compute_type(x), "RB": rows, "MB": width, "num_warps": _warps(width)}
    if individually:
        square = mean.new_empty(0)
    else:
        parts = mean.new_empty(min(PROGRAMS, blocks))
        squares_kernel[(parts.size(0),)](x, mean, parts, n, **tile)
        square = parts.sum(0, keepdim=True)
    forward_kernel[(blocks,)](
        x, mean, square, y, n, two_floats(scale), two_floats(eps), INDIVIDUALLY=individually, **tile
    )
    return y, mean, square


def pair_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, square: Tensor, scale: float, eps: float,
    individually: bool,
) -> Tensor:  # fmt: skip
    """Both passes read x and the gradient: the same traffic as storing dz, without rounding it."""
    grad, x = grad.contiguous(), x.contiguous()
    n, m = x.shape
    dx = torch.empty_like(x)
    if not x.numel():
        return dx
    rows, width = row_tile(m)
    blocks = triton.cdiv(n, rows)
    plain = {
        "n": n, "scale": two_floats(scale), "eps": two_floats(eps), "m": m,
        "INDIVIDUALLY": individually, "ACC": compute_type(x), "RB": rows, "MB": width,
        "num_warps": _warps(width),
    }  # fmt: skip
    parts = mean.new_empty(min(PROGRAMS, blocks), m + 1)
    backward_sums_kernel[(parts.size(0),)](grad, x, mean, parts, **plain)
    backward_kernel[(blocks,)](grad, x, mean, square, parts.sum(0), dx, **plain)
    return dx


def _warps(width: int) -> int:
    """More for wide rows: input features can have thousands of columns."""
    return min(16, max(4, width // PER_WARP))


operators.fused.register_kernel("cuda")(pair_norm)
operators.fused_backward.register_kernel("cuda")(pair_norm_backward)
