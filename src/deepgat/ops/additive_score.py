"""<w_t, x> and <w_s, x> per node and head: the two parts of GAT's score.

In plain torch they take two products and two sums, and their gradients eight kernels. In eager mode
a GPU runs one kernel per pass, and one sum for the gradients of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepgat.ops import backends

KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
"""(forward, backward) by device type."""


def head_products(x: Tensor, target: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """(<w_t, x>, <w_s, x>): x [n, H, D], weights [H, D] → [n, H] each."""
    if _has_kernels(x, target, source):
        return _HeadProducts.apply(x, target, source)
    return (x * target).sum(-1), (x * source).sum(-1)


def register_kernels(
    device: str, forward: Callable[..., Any], backward: Callable[..., Any]
) -> None:
    """``forward``: (x, w_t, w_s) → both products; ``backward``: these and their gradients."""
    KERNELS[device] = forward, backward


def _has_kernels(x: Tensor, target: Tensor, source: Tensor) -> bool:
    device = x.device.type
    return (
        device in KERNELS
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled(device)
        and backends.kernels_run_on(device)
        and x.dtype == target.dtype == source.dtype
        and x.device == target.device == source.device
        and x.dim() == 3
        and x.shape[1:] == target.shape == source.shape
        and target.is_contiguous()
        and source.is_contiguous()
    )


class _HeadProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        if x.stride()[1:] != (x.size(2), 1):
            x = x.contiguous()
        ctx.save_for_backward(x, target, source)
        run, ctx.run_backward = KERNELS[x.device.type]
        return run(x, target, source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_t: Tensor, grad_s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return ctx.run_backward(*ctx.saved_tensors, grad_t.contiguous(), grad_s.contiguous())
