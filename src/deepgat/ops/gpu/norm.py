"""LayerNorm with ELU on a GPU."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from deepgat.ops import norm as operators
from deepgat.ops.gpu import norm_kernels as kernels
from deepgat.ops.gpu.launch import PROGRAMS, compute_type, row_tile, sum_type


def layer_norm_elu(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    x = x.contiguous()
    n, m = x.shape
    y = torch.empty_like(x)
    rows, width = row_tile(m)
    if x.numel():
        kernels.forward[(triton.cdiv(n, rows),)](
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
        kernels.backward[(programs,)](
            grad, x, weight, bias, dx, parts, n, eps, m=m, ACC=compute_type(x), RB=rows, MB=width
        )
    of_weight, of_bias = parts[:, 0].sum(0), parts[:, 1].sum(0)
    return dx, of_weight.to(weight.dtype), of_bias.to(bias.dtype)


operators.fused.register_kernel("cuda")(layer_norm_elu)
operators.fused_backward.register_kernel("cuda")(layer_norm_elu_backward)
