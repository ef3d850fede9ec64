"""PairNorm of a whole graph on a GPU."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from deepgat.ops import pairnorm as operators
from deepgat.ops.gpu import pairnorm_kernels as kernels
from deepgat.ops.gpu.launch import PER_WARP, PROGRAMS, compute_type, row_tile, sum_type, two_floats


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
        kernels.squares[(parts.size(0),)](x, mean, parts, n, **tile)
        square = parts.sum(0, keepdim=True)
    kernels.forward[(blocks,)](
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
    kernels.backward_sums[(parts.size(0),)](grad, x, mean, parts, **plain)
    kernels.backward[(blocks,)](grad, x, mean, square, parts.sum(0), dx, **plain)
    return dx


def _warps(width: int) -> int:
    """More for wide rows: input features can have thousands of columns."""
    return min(16, max(4, width // PER_WARP))


operators.fused.register_kernel("cuda")(pair_norm)
operators.fused_backward.register_kernel("cuda")(pair_norm_backward)
