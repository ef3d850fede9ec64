"""Several linear maps of the same x as one matrix product.

Each result is a block of the product's columns. Where kernels write the gradients of the blocks as
columns of one matrix too, the backward pass needs no copy: :func:`side_by_side` finds that matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def joint_linear(x: Tensor, weights: Sequence[Tensor], heads: int) -> tuple[Tensor, ...]:
    """x Wᵀ as [n, H, ·] for every weight [H·, d], by one product: columns of one matrix."""
    return _JointLinear.apply(x, heads, *weights)


def blocks_of(matrix: Tensor, widths: Sequence[int], heads: int) -> list[Tensor]:
    """The columns of a contiguous matrix [n, ·] as blocks [n, H, width / H]."""
    n, total = matrix.shape
    blocks, first = [], matrix.storage_offset()
    for width in widths:
        channels = width // heads
        blocks.append(matrix.as_strided((n, heads, channels), (total, channels, 1), first))
        first += width
    return blocks


def side_by_side(blocks: Sequence[Tensor]) -> Tensor | None:
    """The matrix [n, ·] of which :func:`blocks_of` are these blocks; None if there is none."""
    first = blocks[0]
    distance, size = first.stride(0), first.element_size()
    place, storage, total = first.data_ptr(), first.untyped_storage().data_ptr(), 0
    for block in blocks:
        _, heads, channels = block.shape
        if (
            block.stride() != (distance, channels, 1)
            or block.dtype != first.dtype
            or block.data_ptr() != place + total * size
            or block.untyped_storage().data_ptr() != storage
        ):
            return None
        total += heads * channels
    return first.as_strided((first.size(0), total), (total, 1)) if total == distance else None


class _JointLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, heads: int, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        joint = torch.cat(weights)
        ctx.save_for_backward(x, *weights)
        ctx.joint = joint
        widths = [weight.size(0) for weight in weights]
        return tuple(blocks_of(torch.mm(x, joint.t()), widths, heads))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        found: list[Tensor | None] = [None] * len(weights)
        given = [i for i, grad in enumerate(grads) if grad is not None]
        if not given:
            return None, None, *found
        blocks = [grad for grad in grads if grad is not None]
        joint = None
        if not torch.is_grad_enabled():  # else the gradients themselves are differentiated
            joint = side_by_side(blocks)
        if joint is None:
            joint = torch.cat([block.flatten(1) for block in blocks], dim=1)
        if len(given) == len(weights) and not torch.is_grad_enabled():
            weight = ctx.joint
        else:
            weight = torch.cat([weights[i] for i in given])
        grad_x = torch.mm(joint, weight) if ctx.needs_input_grad[0] else None
        if any(ctx.needs_input_grad[2:]):
            parts = torch.mm(joint.t(), x).split([weights[i].size(0) for i in given])
            for i, part in zip(given, parts, strict=True):
                found[i] = part
        return grad_x, None, *found
