"""Attention over neighbour lists that are split into two halves.

With out_i and L_i = log Σ exp(s) of half i alone, and L = log(exp L_1 + exp L_2),

    out = exp(L_1 − L) out_1 + exp(L_2 − L) out_2.

In either half a weight is α_vu = exp(s_vu − L_v), and the backward kernels read only L_v and out_v
of the complete list (``cpu/attention.cpp``). With L and out of both halves together, they compute
the exact gradients. The first half has a list for every node. The second half has lists for the
nodes ``targets``, in its first rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepgat.ops import attention
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.partitioned.lists import padded
from deepgat.ops.score_forms import ScoreForm


@dataclass(frozen=True, eq=False)
class KernelHalf:
    """The result of attention over one half, computed by the kernels."""

    out: Tensor
    log_sum: Tensor
    link: attention.Link
    dtype: torch.dtype

    @staticmethod
    def of(
        lists: Neighbors,
        form: ScoreForm,
        bias: Tensor | None,
        value: Tensor,
        dropout: float = 0.0,
        seed: Tensor | None = None,
    ) -> KernelHalf:
        link = attention.Link()
        found = attention.run(lists, value, form, dropout=dropout, seed=seed, bias=bias, link=link)
        return KernelHalf(*found, link, value.dtype)

    def joined(self, other: KernelHalf, targets: Tensor) -> Tensor:
        """out [n, H, D] over both halves; ``other`` is the second."""
        out: Tensor = _Join.apply(
            self.link, other.link, targets, self.out, self.log_sum, other.out, other.log_sum
        )
        return out.to(self.dtype)


class _Join(torch.autograd.Function):
    """Turn out_1 into out in place; the links pass out and L to the backward passes."""

    @staticmethod
    def forward(
        ctx: Any,
        first: attention.Link,
        second: attention.Link,
        targets: Tensor,
        out: Tensor,
        log_sum: Tensor,
        other: Tensor,
        other_log_sum: Tensor,
    ) -> Tensor:
        count, heads = targets.numel(), out.size(1)
        ctx.links, ctx.rows = (first, second), other.size(0)
        log_sum = log_sum.clone()
        by_head = log_sum.flatten(1)[:, :heads]
        here, there = by_head[targets], other_log_sum.flatten(1)[:count, :heads]
        both = torch.logaddexp(here, there)
        by_head.index_copy_(0, targets, both)
        total = _share(here, both, out[targets]) + _share(there, both, other[:count])
        out.index_copy_(0, targets, total.to(out.dtype))
        ctx.mark_dirty(out)
        ctx.save_for_backward(out, log_sum, targets)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, log_sum, targets = ctx.saved_tensors
        first, second = ctx.links
        first.whole = out, log_sum
        highest = torch.finfo(log_sum.dtype).max  # makes exp(s − L) = 0 in padding rows
        second.whole = (
            padded(out[targets], ctx.rows),
            padded(log_sum[targets], ctx.rows, highest),
        )
        return None, None, None, grad, None, padded(grad[targets], ctx.rows), None


def _share(part: Tensor, both: Tensor, out: Tensor) -> Tensor:
    """exp(L_i − L) out_i; 0 if all scores of the half are −inf, since out_i is then NaN."""
    weight = (part - both).exp().unsqueeze(-1)
    return torch.where(weight > 0, weight * out, 0.0)
