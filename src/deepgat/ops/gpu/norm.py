"""LayerNorm with ELU on a GPU (see ops/norm.py)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepgat.ops import norm as operators
from deepgat.ops.gpu.launch import PROGRAMS, compute_type, row_tile, sum_type


@triton.jit
def _normalised(x, row, c, n, m: tl.constexpr, eps, ACC: tl.constexpr):
    """((x − μ)/σ, 1/σ, bounds mask) of a block of rows."""
    here = (row < n)[:, None] & (c < m)[None, :]
    value = tl.load(x + row[:, None] * m + c[None, :], mask=here, other=0).to(ACC)
    centred = tl.where(here, value - (tl.sum(value, axis=1) / m)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / m + eps)
    return centred * scale[:, None], scale, here


@triton.jit
def forward_kernel(
    x, weight, bias, y, n, eps, m: tl.constexpr, ACC: tl.constexpr, RB: tl.constexpr,
    MB: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB)
    c = tl.arange(0, MB)
    normal, _, here = _normalised(x, row, c, n, m, eps, ACC)
    gamma = tl.load(weight + c, mask=c < m, other=0).to(ACC)
    beta = tl.load(bias + c, mask=c < m, other=0).to(ACC)
    z = normal * gamma[None, :] + beta[None, :]
    out = tl.where(z > 0, z, tl.exp(tl.minimum(z, 0.0)) - 1.0)
    tl.store(y + row[:, None] * m + c[None, :], out, mask=here)


@triton.jit
def backward_kernel(
    grad, x, weight, bias, dx, parts, n, eps, m: tl.constexpr, ACC: tl.constexpr,
    RB: tl.constexpr, MB: tl.constexpr,
):  # fmt: skip
    """dx, and this program's partial sums of dγ and dβ in parts [programs, 2, m]."""
    c = tl.arange(0, MB)
    gamma = tl.load(weight + c, mask=c < m, other=0).to(ACC)[None, :]
    beta = tl.load(bias + c, mask=c < m, other=0).to(ACC)[None, :]
    of_gamma = tl.zeros([RB, MB], ACC)
    of_beta = tl.zeros([RB, MB], ACC)
    for first in range(tl.program_id(0) * RB, n, tl.num_programs(0) * RB):
        row = first + tl.arange(0, RB).to(tl.int64)
        normal, scale, here = _normalised(x, row, c, n, m, eps, ACC)
        z = normal * gamma + beta
        dz = tl.load(grad + row[:, None] * m + c[None, :], mask=here, other=0).to(ACC)
        dz = tl.where(z > 0, dz, dz * tl.exp(tl.minimum(z, 0.0)))
        of_gamma += dz * normal
        of_beta += dz
        inner = dz * gamma
        mean = tl.sum(inner, axis=1) / m
        along = tl.sum(inner * normal, axis=1) / m
        out = (inner - mean[:, None] - normal * along[:, None]) * scale[:, None]
        tl.store(dx + row[:, None] * m + c[None, :], out, mask=here)
    at = parts + tl.program_id(0) * 2 * m + c
    tl.store(at, tl.sum(of_gamma, axis=0), mask=c < m)
    tl.store(at + m, tl.sum(of_beta, axis=0), mask=c < m)


def layer_norm_elu(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    x = x.contiguous()
    n, m = x.shape
    y = torch.empty_like(x)
    rows, width = row_tile(m)
    if x.numel():
        forward_kernel[(triton.cdiv(n, rows),)](
            x, weight, bias, y, n, eps, m=m, ACC=compute_type(x), RB=rows, MB=width
        )
    return y


def layer_norm_elu_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad, x = grad.contiguous(), x.contiguous()
    n, m = x.shape
    dx = torch.empty_like(x)
    rows, width = row_tile(m)
    programs = max(1, min(PROGRAMS, triton.cdiv(n, rows)))
    parts = x.new_zeros(programs, 2, m, dtype=sum_type(x))
    if x.numel():
        backward_kernel[(programs,)](
            grad, x, weight, bias, dx, parts, n, eps, m=m, ACC=compute_type(x), RB=rows, MB=width
        )
    of_weight, of_bias = parts[:, 0].sum(0), parts[:, 1].sum(0)
    return dx, of_weight.to(weight.dtype), of_bias.to(bias.dtype)


operators.fused.register_kernel("cuda")(layer_norm_elu)
operators.fused_backward.register_kernel("cuda")(layer_norm_elu_backward)
