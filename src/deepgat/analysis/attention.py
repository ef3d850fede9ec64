"""Where attention goes, by class, and how it differs between two networks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepgat.errors import UserError, unknown_name

READINGS = ("paper", "authors")


def attention_divergence(
    edge_index: Tensor, reference: Tensor, other: Tensor, reading: str = "paper"
) -> Tensor:
    """D_KL(α_v ‖ α'_v) = Σ_u α_vu log(α_vu / α'_vu) of every node, with heads averaged: [n].

    Args:
        edge_index: [2, E], the edges of both, with self-loops.
        reference: α, [E, H]; in the paper, of the 2-layer network.
        other: α', [E, H']; in the paper, of the deepest network.
        reading: "paper" sums over the neighbours with α' ≠ 0. "authors" adds 1e-5 to both and sums
            over all neighbours, which bounds the result if α' vanishes.
    """
    if reading not in READINGS:
        raise unknown_name("reading", reading, READINGS)
    if not reference.size(0) == other.size(0) == edge_index.size(1):
        raise UserError(
            f"the weights have {reference.size(0)} and {other.size(0)} edges, but edge_index has "
            f"{edge_index.size(1)}: all three must have the same edges"
        )
    a, b = reference.double().mean(1), other.double().mean(1)
    if reading == "authors":
        a, b = a + 1e-5, b + 1e-5
    terms = torch.where((a > 0) & (b > 0), a * (a / b).log(), 0.0)
    nodes = int(edge_index.max()) + 1
    return torch.zeros(nodes, dtype=terms.dtype).index_add_(0, edge_index[1].cpu(), terms.cpu())


def uniform_attention(edge_index: Tensor) -> Tensor:
    """1/|N_v| for every edge, [E, 1]: a baseline for other attentions."""
    target = edge_index[1]
    return (1 / torch.bincount(target).double())[target].unsqueeze(1)


def divergence_bound(score_range: float) -> float:
    """The largest D_KL(α ‖ α') of two softmaxes whose scores lie in an interval of length r.

    For DeepGAT's DP, r = 1 (scores in [0, 1]) and the bound is 0.4745; for SD, r is its scale. It
    holds for lists N_v of any length, and for averages of heads.

    Such α form the polytope α_i ≤ e^r α_j, whose vertices have only the scores 0 and r. The
    divergence is jointly convex in (α, α'), so its maximum is at two vertices: score r on a share a
    of the list for α, and on a share b for α'. The two overlap as little as possible, since

        D = r (α(S) − α(T)) + log(Z_b / Z_a),  Z_a = 1 + a (e^r − 1).

    For each a, D is concave in b both below and above b = 1 − a, which leaves two b to try.
    """
    if not 0 <= score_range < 500:
        raise UserError(f"score_range is {score_range}: expected a length from 0 to 500")
    if score_range == 0:
        return 0.0
    # Small shares matter if r is large.
    a = np.concatenate([[0.0], np.geomspace(np.exp(-score_range) / 10, 1, 2001)])
    for _ in range(6):
        best = int(_largest_divergence(a, score_range).argmax())
        a = np.linspace(a[max(best - 1, 0)], a[min(best + 1, len(a) - 1)], 2001)
    return float(_largest_divergence(a, score_range).max())


def _largest_divergence(a: np.ndarray, r: float) -> np.ndarray:
    """max over b of D, for shares a of the list."""
    growth = np.expm1(r)
    total = 1 + a * growth  # Z_a
    disjoint = np.clip((total * growth / r - 1) / growth, 0, 1 - a)
    overlapping = np.clip((total * growth / (r * np.exp(r)) - 1) / growth, 1 - a, 1)
    best = np.full_like(a, -np.inf)
    for b in (disjoint, overlapping):
        shared = np.maximum(a + b - 1, 0)
        on_s = a * np.exp(r) / total
        on_t = (shared * np.exp(r) + (b - shared)) / total
        best = np.maximum(best, r * (on_s - on_t) + np.log((1 + b * growth) / total))
    return best


class AttentionMass(NamedTuple):
    """Attention per node and head, [n, H] each."""

    itself: Tensor
    same: Tensor
    """To the node itself and to other nodes of its class."""


def attention_mass(edge_index: Tensor, weight: Tensor, y: Tensor) -> AttentionMass:
    """Σ_u α_vu over v itself, and over v and the other nodes of its class, per node and head.

    Args:
        edge_index: [2, E] with self-loops.
        weight: α, [E, H]; with symmetric normalisation neither rows nor masses sum to 1.
        y: [n] classes (−1: unknown), or [n, C] independent labels. In that case an edge counts as
            "same" to the extent |y_v ∩ y_u| / |y_v ∪ y_u|, which is 1 for two nodes without labels.
    """
    if weight.dim() != 2 or weight.size(0) != edge_index.size(1):
        raise UserError(
            f"weight has shape {list(weight.shape)}: expected [{edge_index.size(1)}, heads], one "
            "row per edge of edge_index"
        )
    source, target = edge_index.cpu()
    weight, y = weight.detach().double().cpu(), y.cpu()
    loop = (source == target).double()
    if y.dim() == 1:
        same = ((y[source] == y[target]) & (y[target] >= 0)).double()
    else:
        u, v = y[source] > 0, y[target] > 0
        both, either = (u & v).sum(1), (u | v).sum(1)
        same = torch.where(either > 0, both / either.clamp(min=1), 1.0).double()

    def summed(share: Tensor) -> Tensor:
        out = torch.zeros(len(y), weight.size(1), dtype=torch.float64)
        return out.index_add_(0, target, weight * share.unsqueeze(1))

    itself = summed(loop)
    return AttentionMass(itself, itself + summed(same * (1 - loop)))
