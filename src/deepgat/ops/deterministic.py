"""Dense maps whose gradients are bitwise equal for any number of CPU threads.

torch splits the sum over nodes in a weight's gradient by the number of threads, which changes its
rounding. Here the split depends on the number of nodes only. Other devices use torch's functions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.ops import checks

_ROWS, _MOST_PARTS = 64, 64


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b: [n, d], weight [m, d] → [n, m]."""
    differentiated = weight.requires_grad and torch.is_grad_enabled()
    if x.device.type != "cpu" or x.dim() != 2 or not differentiated:
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


def linear_by_head(x: Tensor, weight: Tensor, heads: int) -> Tensor:
    """x Wᵀ for dense x on the CPU, heads innermost in memory: [n, d], weight [H·D, d] → [n, H, D].

    One autograd node. Transposing the small weight is cheaper than transposing the large result.
    """
    checks.linear(x, weight, None)
    return _LinearByHead.apply(x, weight, heads)


def identity_map(x: Tensor, weight: Tensor, beta: float) -> Tensor:
    """x ((1 − β) I + β W): [n, m], weight [m, m] → [n, m]."""
    checks.identity_map(x, weight)
    if x.device.type != "cpu":
        return torch.addmm(x, x, weight, beta=1 - beta, alpha=beta)
    identity = torch.eye(weight.size(0), dtype=weight.dtype, device=x.device)
    return linear(x, torch.lerp(identity, weight, beta).t())  # one product of x's size, no more


def lerp(start: Tensor, end: Tensor, share: Tensor | float) -> Tensor:
    """(1 − share) · start + share · end, in the wider dtype; under bf16 autocast they differ."""
    dtype = torch.promote_types(start.dtype, end.dtype)
    if isinstance(share, Tensor):
        dtype = torch.promote_types(dtype, share.dtype)
        share = share.to(dtype)
    return torch.lerp(start.to(dtype), end.to(dtype), share)


def residual_map(x: Tensor, initial: Tensor, weight: Tensor, alpha: float, beta: float) -> Tensor:
    """σ(((1 − α) x + α h⁰) ((1 − β) I + β W)), σ ReLU: [n, m], h⁰ [n, m], W [m, m] → [n, m].

    GCNII's layer after propagation. On the CPU it is one autograd node: small graphs spend much of
    their time between operators.
    """
    checks.residual_map(x, initial, weight)
    eager = type(x) is Tensor and not torch.compiler.is_compiling()
    plain = x.dtype == initial.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    if x.device.type == "cpu" and eager and plain:
        if torch.is_grad_enabled():
            return _ResidualMap.apply(x, initial, weight, alpha, beta)
        return _residual_map(x, initial, weight, alpha, beta)[2]
    return F.relu(identity_map(lerp(x, initial, alpha), weight, beta))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """γ (x − μ)/sqrt(σ² + ε) + β per row: [n, m] → [n, m]."""
    checks.layer_norm(x, weight, bias)
    if x.device.type != "cpu" or x.dim() != 2:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    return _LayerNorm.apply(x, weight, bias, eps)


def transposed_product(x: Tensor, y: Tensor) -> Tensor:
    """xᵀ y, summed over fixed blocks of rows: [n, m], [n, d] → [m, d]."""
    # one operator of a traced graph, which then holds for any number of rows
    return product_operator(x, y) if torch.compiler.is_compiling() else _in_blocks(x, y)


@torch.library.custom_op("deepgat::transposed_product", mutates_args=())
def product_operator(x: Tensor, y: Tensor) -> Tensor:
    """:func:`transposed_product`."""
    return _in_blocks(x, y)


@product_operator.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(x.size(1), y.size(1))


def _in_blocks(x: Tensor, y: Tensor) -> Tensor:
    n = x.size(0)
    parts = max(1, min(n // _ROWS, _MOST_PARTS))
    rows = n // parts
    whole = parts * rows
    in_parts = [t[:whole].view(parts, rows, t.size(1)) for t in (x.contiguous(), y.contiguous())]
    total = torch.bmm(in_parts[0].transpose(1, 2), in_parts[1]).sum(0)
    return total if whole == n else total + x[whole:].t() @ y[whole:]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        return (
            grad @ weight if ctx.needs_input_grad[0] else None,
            transposed_product(grad, x) if ctx.needs_input_grad[1] else None,
            grad.sum(0) if ctx.needs_input_grad[2] else None,
        )


class _ResidualMap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, initial: Tensor, weight: Tensor, alpha: float, beta: float
    ) -> Tensor:
        mixed, mapping, out = _residual_map(x, initial, weight, alpha, beta)
        ctx.save_for_backward(mixed, mapping, out)
        ctx.alpha, ctx.beta = alpha, beta
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mixed, mapping, out = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
        of_weight = None
        if ctx.needs_input_grad[2]:
            of_weight = transposed_product(grad, mixed).t() * ctx.beta
        of_mixed = grad @ mapping.t()
        of_x = of_mixed * (1 - ctx.alpha)
        return of_x, of_mixed.mul_(ctx.alpha), of_weight, None, None


def _residual_map(
    x: Tensor, initial: Tensor, weight: Tensor, alpha: float, beta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The mixture, what it is multiplied by, and the result."""
    mixed = torch.lerp(x, initial, alpha)
    mapping = torch.lerp(_identity(weight.size(0), weight.dtype), weight, beta)
    return mixed, mapping, torch.mm(mixed, mapping).relu_()


@cache
def _identity(size: int, dtype: torch.dtype) -> Tensor:
    return torch.eye(size, dtype=dtype, device="cpu")


class _LinearByHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, heads: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.heads = heads
        out = F.linear(x, _swapped(weight, heads))
        return out.unflatten(1, (-1, heads)).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        flat = grad.transpose(1, 2).flatten(1)
        grad_x = flat @ _swapped(weight, ctx.heads) if ctx.needs_input_grad[0] else None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            swapped = transposed_product(flat, x)
            grad_weight = _swapped(swapped, swapped.size(0) // ctx.heads)
        return grad_x, grad_weight, None


def _swapped(weight: Tensor, outer: int) -> Tensor:
    """Rows in the order (inner, outer) instead of (outer, inner): [outer · inner, d]."""
    return weight.view(outer, -1, weight.size(1)).transpose(0, 1).flatten(0, 1)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        out, mean, scale = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        grad = grad.contiguous()
        dx, *_ = torch.ops.aten.native_layer_norm_backward(
            grad, x, list(weight.shape), mean, scale, weight, bias, [True, False, False]
        )
        return dx, (grad * (x - mean) * scale).sum(0), grad.sum(0), None
