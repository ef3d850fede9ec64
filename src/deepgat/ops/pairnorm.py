r"""PairNorm, and for a whole graph on a GPU ``deepgat::pair_norm`` and its gradient.

.. math::
    z_v = x_v - \frac{1}{n} \sum_u x_u, \qquad
    y_v = \frac{s z_v}{\epsilon + \|z_v\|} \text{ (individually), or } \frac{s z_v}{r}, \quad
    r^2 = \epsilon + \frac{1}{n} \sum_u \|z_u\|^2

    dx_v = dz_v - \frac{1}{n} \sum_u dz_u, \qquad
    dz_v = \frac{s}{\epsilon + \|z_v\|}
        \Big( g_v - \frac{\langle g_v, z_v \rangle}{\|z_v\| (\epsilon + \|z_v\|)} z_v \Big)
    \text{ or } \frac{s}{r} \Big( g_v - \frac{\sum_u \langle g_u, z_u \rangle}{n r^2} z_v \Big)

x and y: [n, m]. The gradient of ‖z_v‖ is 0 at z_v = 0, as in torch. Saved for the backward pass:
x, the mean of its rows [m] and, unless rows are scaled individually, Σ ‖z_v‖² [1].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepgat.ops import gpu
from deepgat.ops.partitioned.part import current_part, node_mean


def pair_norm(x: Tensor, scale: float, eps: float, individually: bool) -> Tensor:
    """y: [n, m]; the sums are over all nodes, even if the graph is partitioned."""
    if x.is_cuda and x.dim() == 2 and current_part() is None and gpu.available():
        return by_kernels(x, scale, eps, individually)
    z = x - node_mean(x)
    if individually:
        return scale * z / (eps + z.norm(2, -1, keepdim=True))
    return scale * z / (eps + node_mean(z.pow(2).sum(-1))).sqrt()


def by_kernels(x: Tensor, scale: float, eps: float, individually: bool) -> Tensor:
    """y, with the dtype of PyG's formula under autocast.

    Autocast computes the length of each row in float32, which widens y. The common length of all
    rows is a scalar and does not.
    """
    widened = individually and torch.is_autocast_enabled(x.device.type)
    stored = torch.promote_types(x.dtype, torch.float32) if widened else x.dtype
    return fused(x, scale, eps, individually, stored)[0]


@torch.library.custom_op("deepgat::pair_norm", mutates_args=())
def fused(
    x: Tensor, scale: float, eps: float, individually: bool, stored: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """(y [n, m] of dtype ``stored``, mean row [m], Σ ‖z_v‖² [1] or [0] if individually)."""
    raise RuntimeError(f"deepgat has no pair_norm kernel for {x.device}")


@torch.library.custom_op("deepgat::pair_norm_backward", mutates_args=())
def fused_backward(
    grad: Tensor, x: Tensor, mean: Tensor, square: Tensor, scale: float, eps: float,
    individually: bool,
) -> Tensor:  # fmt: skip
    """The gradient of x: [n, m]."""
    raise RuntimeError(f"deepgat has no pair_norm kernel for {x.device}")


@fused.register_fake
def _(
    x: Tensor, scale: float, eps: float, individually: bool, stored: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(x, dtype=stored, memory_format=torch.contiguous_format)
    sums = torch.promote_types(x.dtype, torch.float32)
    return y, x.new_empty(x.size(1), dtype=sums), x.new_empty(int(not individually), dtype=sums)


@fused_backward.register_fake
def _(grad: Tensor, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, *ctx.plain, _ = inputs
    _, *statistics = output
    ctx.save_for_backward(x, *statistics)
    ctx.mark_non_differentiable(*statistics)
    ctx.set_materialize_grads(False)  # no kernels to make zero gradients for the statistics


def _backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor, None, None, None, None]:
    return fused_backward(grad, *ctx.saved_tensors, *ctx.plain), None, None, None, None


fused.register_autograd(_backward, setup_context=_setup)
