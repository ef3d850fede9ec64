"""The reference implementation of neighbour attention and differences: one equation per function.

Tests compare the output and the gradients of every faster backend with this one. It stores one
number per edge and channel (E×H×D), which the other backends avoid.
Shapes: n nodes, E edges, H heads, D channels per head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from deepgat.ops import dropout_masks
from deepgat.ops.edge_list import EdgeList
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.score_forms import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Normalization,
    ScoreForm,
    Uniform,
)


def edge_scores(neighbors: Neighbors, form: ScoreForm) -> Tensor:
    """s_vu for every edge: [E, H], or [E, 1] when all heads share it."""
    match form:
        case DotProduct(query, key, scale):
            return scale * (target_rows(query, neighbors) * source_rows(key, neighbors)).sum(-1)
        case ClassAgreement(logits, scale, independent_labels):
            prediction = logits.sigmoid() if independent_labels else logits.softmax(-1)
            return edge_scores(neighbors, DotProduct(prediction, prediction, scale))
        case Additive(target, source, negative_slope):
            total = target_rows(target, neighbors) + source_rows(source, neighbors)
            return F.leaky_relu(total, negative_slope)
        case EdgeScore(score):
            return score
        case Uniform():
            # double, so that the weights are exact in every output dtype
            return torch.zeros(neighbors.num_edges, 1, device=neighbors.device, dtype=torch.float64)


def shifted_exp(scores: Tensor, neighbors: Neighbors) -> tuple[Tensor, Tensor]:
    """exp(s_vu − m_v), [E, H], and m_v = max_u s_vu, [n, H], which prevents overflow."""
    with torch.no_grad():  # the weights do not depend on the shift
        highest = max_by_target(scores.detach(), neighbors)
    return (scores - target_rows(highest, neighbors)).exp(), highest


def attention_weights(
    neighbors: Neighbors,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    bias: Tensor | None = None,
) -> Tensor:
    """α_vu for every edge, [E, H] or [E, 1]: exp(s_vu) / d_v, or exp(s_vu) / sqrt(d_v d_u).

    ``bias``, [E, H] or [E, 1], is added to the score.
    """
    scores = _biased_scores(neighbors, form, bias)
    if normalization is Normalization.ROW:
        exp_scores, _ = shifted_exp(scores, neighbors)
        return exp_scores / target_rows(sum_by_target(exp_scores, neighbors), neighbors)
    log_d = _log_sums(scores, neighbors)
    both = target_rows(log_d, neighbors) + source_rows(log_d, neighbors)
    return (scores - both / 2).exp()


def log_sums(neighbors: Neighbors, form: ScoreForm, bias: Tensor | None = None) -> Tensor:
    """log d_v = log Σ_{u∈N_v} exp(s_vu): [n, H] or [n, 1]."""
    return _log_sums(_biased_scores(neighbors, form, bias), neighbors)


def _log_sums(scores: Tensor, neighbors: Neighbors) -> Tensor:
    exp_scores, highest = shifted_exp(scores, neighbors)
    return highest + sum_by_target(exp_scores, neighbors).log()


def _biased_scores(neighbors: Neighbors, form: ScoreForm, bias: Tensor | None) -> Tensor:
    scores = edge_scores(neighbors, form)
    return scores if bias is None else scores + bias


def aggregate(neighbors: Neighbors, weights: Tensor, value: Tensor) -> Tensor:
    """out_v = Σ_{u∈N_v} α_vu value_u: weights [E, H or 1], value [n, H, D] → [n, H, D]."""
    return sum_by_target(weights.unsqueeze(-1) * source_rows(value, neighbors), neighbors)


def neighbor_attention(
    neighbors: Neighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Weighted sum over the neighbours, with attention dropout: [n, H, D] → [n, H, D]."""
    weights = attention_weights(neighbors, form, normalization, bias).to(value.dtype)
    if dropout:
        assert seed is not None
        weights = weights * dropout_mask(neighbors, value.size(1), dropout, seed).to(value.dtype)
    return aggregate(neighbors, weights, value)


def dropout_mask(neighbors: Neighbors, heads: int, dropout: float, seed: Tensor) -> Tensor:
    """[E, H]: 0 with probability ``dropout``, else 1/(1 − dropout), by a hash of (v, u, head)."""
    return dropout_masks.keep_edges(neighbors.target, neighbors.source, heads, dropout, seed)


def neighbor_differences(neighbors: Neighbors, x: Tensor, power: float) -> Tensor:
    """out_v = Σ_{u∈N_v} |x_v − x_u|^p per channel, ignoring edges of weight 0: [n, D] → [n, D].

    The backward pass recomputes the E×D differences: a deep network could not store them for
    every layer.
    """

    def total(x: Tensor) -> Tensor:
        apart = target_rows(x, neighbors) - source_rows(x, neighbors)
        if neighbors.log_weight is not None:
            apart = apart.masked_fill(neighbors.log_weight == -math.inf, 0.0)
        return sum_by_target(apart.abs().pow(power), neighbors)

    found = checkpoint(total, x, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(found, Tensor)
    return found


def source_rows(x: Tensor, neighbors: Neighbors) -> Tensor:
    """x_u for every edge (v, u): [n, …] → [E, …]."""
    return _Rows.apply(x, neighbors, "source")


def target_rows(x: Tensor, neighbors: Neighbors) -> Tensor:
    """x_v for every edge (v, u): [n, …] → [E, …]."""
    return _Rows.apply(x, neighbors, "target")


def sum_by_target(x: Tensor, neighbors: Neighbors) -> Tensor:
    """Σ over the edges into v: [E, …] → [n, …]."""
    if isinstance(neighbors, EdgeList):
        return neighbors.sums(x)
    return _SumRows.apply(x, neighbors, "target")


def max_by_target(x: Tensor, neighbors: Neighbors) -> Tensor:
    """The maximum over the edges into v: [E, H] → [n, H]; not differentiable."""
    if isinstance(neighbors, EdgeList):
        return neighbors.maxima(x)
    return torch.segment_reduce(x, "max", offsets=neighbors.ptr, axis=0)


class _Rows(torch.autograd.Function):
    """Select one row per edge. The backward pass is :class:`_SumRows`, and vice versa.

    Autograd's own backward pass of indexing is not deterministic on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, neighbors: Neighbors, end: str) -> Tensor:
        ctx.neighbors, ctx.end = neighbors, end
        return x.index_select(0, neighbors.source if end == "source" else neighbors.target)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _SumRows.apply(grad, ctx.neighbors, ctx.end), None, None


class _SumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, neighbors: Neighbors, end: str) -> Tensor:
        ctx.neighbors, ctx.end = neighbors, end
        if end == "source":
            x, ptr = x.index_select(0, neighbors.by_source), neighbors.source_ptr
        else:
            ptr = neighbors.ptr
        flat = x.flatten(1)
        total = torch.segment_reduce(flat, "sum", offsets=ptr, axis=0, initial=0)
        return total.view(neighbors.num_nodes, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Rows.apply(grad, ctx.neighbors, ctx.end), None, None
