"""LayerNorm and ELU in one pass: ``deepgat::layer_norm_elu``.

y = ELU(γ (x − μ)/sqrt(σ² + ε) + β) per row, [n, m] → [n, m]. Saved for the backward: x alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.ops import backends, checks
from deepgat.ops.deterministic import layer_norm


def layer_norm_elu(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """One fused kernel on a GPU, LayerNorm and then ELU elsewhere."""
    checks.layer_norm(x, weight, bias)
    if x.is_cuda and x.dim() == 2 and backends.BUILT["cuda"]:
        return fused(x, weight, bias, eps)
    return F.elu(layer_norm(x, weight, bias, eps))


@torch.library.custom_op("deepgat::layer_norm_elu", mutates_args=())
def fused(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """y; x: [n, m], weight and bias: [m]."""
    raise RuntimeError(f"deepgat has no layer_norm_elu kernel for {x.device}")


@torch.library.custom_op("deepgat::layer_norm_elu_backward", mutates_args=())
def fused_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias."""
    raise RuntimeError(f"deepgat has no layer_norm_elu kernel for {x.device}")


@fused.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@fused_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    return (*fused_backward(grad, *ctx.saved_tensors, ctx.eps), None)


fused.register_autograd(_backward, setup_context=_setup)
