r"""Sums over neighbours of powers of differences: ``deepgat::differences`` and its gradient.

.. math::
    out_v = \sum_{u \in N_v} f(x_v - x_u), \qquad f(d) = |d|^p \text{ per channel, } p \ge 1

    \frac{\partial}{\partial x_v} =
        \sum_{u \in N_v} g_v f'(x_v - x_u) + \sum_{w: v \in N_w} g_w f'(x_v - x_w), \qquad
    f'(d) = p |d|^{p-1} \operatorname{sign}(d), \quad f'(0) = 0

g is the gradient of the output. Both sums are over contiguous lists, by target and by source. In an
undirected graph these lists are equal, and one pass sums with g_v + g_u. Only x is saved for the
backward pass. ``cpu/differences.py`` and ``gpu/differences.py`` register the kernels. In eager mode
they run without the dispatcher, as in ``attention.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepgat.ops import backends, checks, definition
from deepgat.ops.neighbors import Neighbors

LISTS = ("source", "pieces", "hubs", "target_by_source", "source_pieces", "source_hubs")
"""The tensors of :class:`~deepgat.ops.Neighbors` that the kernels read, in this order."""
VALUE, THERE, BACK, BOTH = 0, 1, 2, 3
"""What one pass over the lists sums: f(d), or f'(d) times g_v, g_u, or g_v + g_u."""


def neighbor_differences(neighbors: Neighbors, x: Tensor, power: float) -> Tensor:
    """out_v = Σ_{u∈N_v} |x_v − x_u|^p per channel, p ≥ 1: [n, D] → [n, D].

    Edges of weight 0 are ignored. Lists with weights use the reference implementation, which stores
    one number per edge and channel. Under autocast it runs in float32, like torch's ``pow``.
    """
    checks.differences(neighbors, x, power)
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        x = x.float()
    run = definition.neighbor_differences
    if neighbors.square.log_weight is None and backends.kernels_run_on(x.device.type):
        run = kernel_differences
    return run(neighbors.square, neighbors.with_halo(x), float(power))[: x.size(0)]


def kernel_differences(neighbors: Neighbors, x: Tensor, power: float) -> Tensor:
    """As :func:`deepgat.ops.definition.neighbor_differences`, without per-edge storage."""
    stored = x.dtype
    if x.device.type == "cpu" and stored in (torch.bfloat16, torch.float16):
        x = x.float()  # the CPU kernels support float32 and float64 only
    lists = [getattr(neighbors, name) for name in LISTS]
    apply = differences if torch.compiler.is_compiling() else _Differences.apply
    return apply(lists, x, power, neighbors.symmetric).to(stored)


@torch.library.custom_op("deepgat::differences", mutates_args=())
def differences(lists: Sequence[Tensor], x: Tensor, power: float, undirected: int) -> Tensor:
    """out: [n, D] → [n, D]."""
    raise NotImplementedError(f"deepgat has no differences kernel for {x.device}")


@torch.library.custom_op("deepgat::differences_backward", mutates_args=())
def differences_backward(
    grad: Tensor, lists: Sequence[Tensor], x: Tensor, power: float, undirected: int
) -> Tensor:
    """The gradient of x: [n, D] → [n, D]."""
    raise NotImplementedError(f"deepgat has no differences kernel for {x.device}")


@differences.register_fake
def _(lists: Sequence[Tensor], x: Tensor, *settings: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@differences_backward.register_fake
def _(grad: Tensor, lists: Sequence[Tensor], x: Tensor, *settings: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    lists, x, *ctx.settings = inputs
    ctx.save_for_backward(x, *lists)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, *lists = ctx.saved_tensors
    return [None] * len(lists), differences_backward(grad, lists, x, *ctx.settings), None, None


differences.register_autograd(_backward, setup_context=_save)

KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {}
"""(forward, backward) by device type."""


def register_pass(
    device: str, run: Callable[..., Tensor], check: Callable[..., None] = lambda *_: None
) -> None:
    """Register both operators for one device type, built from one pass over lists.

    ``run`` is (kind of pass, index, pieces, hubs, x [n, D], g [n, D] or None, power) → [n, D].
    ``check`` is (lists, x, and in the backward pass grad); it guards the torch operators.
    """

    def forward(lists: Sequence[Tensor], x: Tensor, power: float, undirected: bool) -> Tensor:
        return run(VALUE, *lists[:3], x.contiguous(), None, power)

    def backward(
        grad: Tensor, lists: Sequence[Tensor], x: Tensor, power: float, undirected: bool
    ) -> Tensor:
        x, grad = x.contiguous(), grad.contiguous()
        if undirected:
            return run(BOTH, *lists[:3], x, grad, power)
        there = run(THERE, *lists[:3], x, grad, power)
        return there.add_(run(BACK, *lists[3:], x, grad, power))

    def checked(lists: Sequence[Tensor], x: Tensor, *settings: Any) -> Tensor:
        check(lists, x)
        return forward(lists, x, *settings)

    def checked_backward(
        grad: Tensor, lists: Sequence[Tensor], x: Tensor, *settings: Any
    ) -> Tensor:
        check(lists, x, grad)
        return backward(grad, lists, x, *settings)

    differences.register_kernel(device)(checked)
    differences_backward.register_kernel(device)(checked_backward)
    KERNELS[device] = forward, backward


class _Differences(torch.autograd.Function):
    """``deepgat::differences`` without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        run, ctx.run_backward = KERNELS[inputs[1].device.type]
        out = run(*inputs)
        _save(ctx, inputs, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        x, *lists = ctx.saved_tensors
        return None, ctx.run_backward(grad, lists, x, *ctx.settings), None, None
