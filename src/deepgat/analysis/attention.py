"""Where attention goes: to one's own class or not, and how it changes between two networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepgat.errors import UserError, unknown_name
from deepgat.nn import Attention

READINGS = ("paper", "authors")
BLOCK_BYTES = 64 * 2**20
"""Bound on the labels of neighbours that are compared at once."""


def attention_divergence(
    edge_index: Tensor, reference: Tensor, other: Tensor, reading: str = "paper"
) -> Tensor:
    """D_KL(α_v ‖ α'_v) = Σ_u α_vu log(α_vu / α'_vu) of every node, heads averaged first: [n].

    Args:
        edge_index: [2, E], the edges both belong to, self-loops included (so every node has one).
        reference: [E, H], α, in the paper that of the 2-layer network.
        other: [E, H'], α', that of the deepest.
        reading: "paper" sums over the neighbours with α' ≠ 0; "authors" adds 1e-5 to both and
            sums over all, which bounds the result where α' vanishes.
    """
    if reading not in READINGS:
        raise unknown_name("reading", reading, READINGS)
    if not reference.size(0) == other.size(0) == edge_index.size(1):
        raise UserError(
            f"attention of {reference.size(0)} and {other.size(0)} edges, but edge_index has "
            f"{edge_index.size(1)}: all three must belong to the same edges"
        )
    a, b = reference.double().mean(1), other.double().mean(1)
    if reading == "authors":
        a, b = a + 1e-5, b + 1e-5
    terms = torch.where((a > 0) & (b > 0), a * (a / b).log(), 0.0)
    nodes = int(edge_index.max()) + 1
    return torch.zeros(nodes, dtype=terms.dtype).index_add_(0, edge_index[1].cpu(), terms.cpu())


def uniform_attention(edge_index: Tensor) -> Tensor:
    """1/|N_v| for every edge, [E, 1]: the attention that prefers no one, to compare others with."""
    target = edge_index[1]
    return (1 / torch.bincount(target).double())[target].unsqueeze(1)


@dataclass(frozen=True, eq=False)
class AttentionDrift:
    """How far the attention of every layer of a deep network is from that of a reference."""

    layers: Tensor
    """[L, n]: D_KL(α_v ‖ α^l_v) for l = 1 … L; the last row is the paper's figure."""
    uniform: Tensor
    """[n]: D_KL(α_v ‖ 1/|N_v|), what a network that attends to all alike would get."""


def attention_drift(
    reference: Attention, layers: Sequence[Attention], reading: str = "paper"
) -> AttentionDrift:
    """Divergence of every layer of a deep network from ``reference``, and of uniform attention.

    Args:
        reference: α, as a rule the last layer of the 2-layer network.
        layers: α^1 … α^L of the deepest, on the same edges.
        reading: as in :func:`attention_divergence`.
    """
    edge_index, weight = reference
    for layer in layers:
        if not torch.equal(layer.edge_index.cpu(), edge_index.cpu()):
            raise UserError("the two networks attend over different edges: run both on one graph")
    uniform = uniform_attention(edge_index)
    others = [*(layer.weight for layer in layers), uniform]
    found = [attention_divergence(edge_index, weight, other, reading) for other in others]
    return AttentionDrift(torch.stack(found[:-1]), found[-1])


def divergence_bound(score_range: float, list_size: int | None = None) -> float:
    """The largest D_KL(α ‖ α') of two softmaxes whose scores lie in an interval of length r.

    For DeepGAT's DP r = 1 (scores in [0, 1]): 0.4745; for SD r is its scale. ``list_size`` is
    k = |N_v|, None for lists of any length. Averaging heads does not leave the bound.

    Such α are the vectors with α_i ≤ e^r α_j, a polytope whose corners have scores 0 and r only;
    the divergence is convex in (α, α') together, hence largest at two corners: score r on a set S
    of a places for α and on a set T of b for α', with T as far outside S as there is room, since

        D = r (α(S) − α(T)) + log(Z_b / Z_a),  Z_a = k + a (e^r − 1).

    For each a, D is concave in b up to b = k − a and beyond, which leaves few b to try.
    """
    if not 0 <= score_range < 500:
        raise UserError(f"score_range is {score_range}: expected a length from 0 to 500")
    if list_size is not None and list_size < 1:
        raise UserError(f"list_size is {list_size}: expected 1 or more")
    if score_range == 0:
        return 0.0
    if list_size is not None:
        a = np.arange(list_size + 1) / list_size
        return max(0.0, float(_largest_divergence(a, score_range, list_size).max()))
    # Lists of any length: a becomes any share of the list. Small ones matter when r is large.
    a = np.concatenate([[0.0], np.geomspace(np.exp(-score_range) / 10, 1, 2001)])
    for _ in range(6):
        best = int(_largest_divergence(a, score_range, None).argmax())
        a = np.linspace(a[max(best - 1, 0)], a[min(best + 1, len(a) - 1)], 2001)
    return float(_largest_divergence(a, score_range, None).max())


def divergence_bounds(score_range: float, degree: Tensor) -> Tensor:
    """:func:`divergence_bound` of every node from |N_v| [n]: [n]."""
    sizes, place = degree.cpu().unique(return_inverse=True)
    bounds = [divergence_bound(score_range, size) for size in sizes.tolist()]
    return torch.tensor(bounds, dtype=torch.float64)[place]


def _largest_divergence(a: np.ndarray, r: float, size: int | None) -> np.ndarray:
    """max over b of D for shares a of the list, b a whole number of 1/size if a size is given."""
    growth = np.expm1(r)
    total = 1 + a * growth  # Z_a / k
    disjoint = np.clip((total * growth / r - 1) / growth, 0, 1 - a)
    overlapping = np.clip((total * growth / (r * np.exp(r)) - 1) / growth, 1 - a, 1)
    tries = [disjoint, overlapping]
    if size is not None:
        places = [np.round(b * size, 9) for b in tries]
        tries = [rounded(b) / size for b in places for rounded in (np.floor, np.ceil)]
    best = np.full_like(a, -np.inf)
    for b in tries:
        shared = np.maximum(a + b - 1, 0)
        on_s = a * np.exp(r) / total
        on_t = (shared * np.exp(r) + (b - shared)) / total
        best = np.maximum(best, r * (on_s - on_t) + np.log((1 + b * growth) / total))
    return best


@dataclass(frozen=True, eq=False)
class AttentionMass:
    """Where each node's attention goes, per head, [n, H] each; they sum to Σ_u α_vu."""

    itself: Tensor
    same: Tensor
    """Other nodes of its class."""
    different: Tensor
    unknown: Tensor
    """Neighbours whose class, or one's own, is not known (−1)."""

    @property
    def same_class(self) -> Tensor:
        """[n, H]: itself and its class."""
        return self.itself + self.same


def attention_mass(edge_index: Tensor, weight: Tensor, y: Tensor) -> AttentionMass:
    """Σ_u α_vu over v itself, over its class, and over the other classes, per node and head.

    Args:
        edge_index: [2, E] with self-loops.
        weight: α, [E, H]; with symmetric normalisation rows do not sum to 1, nor does the mass.
        y: [n] classes, −1 where unknown, or [n, C] independent labels: then an edge counts for
            "same" by |y_v ∩ y_u| / |y_v ∪ y_u|, which for one label per node is 1 or 0; two nodes
            without labels agree.
    """
    if weight.dim() != 2 or weight.size(0) != edge_index.size(1):
        raise UserError(
            f"weight has shape {list(weight.shape)}: expected [{edge_index.size(1)}, heads], one "
            "row per edge of edge_index"
        )
    source, target = edge_index.cpu()
    weight, y = weight.detach().double().cpu(), y.cpu()
    agreement, known = _agreement(y, source, target)
    proper = (source != target).double()

    def summed(share: Tensor) -> Tensor:
        out = torch.zeros(len(y), weight.size(1), dtype=torch.float64)
        return out.index_add_(0, target, weight * share.unsqueeze(1))

    return AttentionMass(
        itself=summed(1 - proper),
        same=summed(proper * known * agreement),
        different=summed(proper * known * (1 - agreement)),
        unknown=summed(proper * (1 - known)),
    )


def _agreement(y: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(how far the two ends share their labels, whether both are known), [E] doubles."""
    if y.dim() == 1:
        known = (y[source] >= 0) & (y[target] >= 0)
        return (y[source] == y[target]).double(), known.double()
    per_block = max(1, BLOCK_BYTES // (8 * y.size(1)))
    labels, parts = y > 0, []
    for u, v in zip(source.split(per_block), target.split(per_block), strict=True):
        both, either = (labels[u] & labels[v]).sum(1), (labels[u] | labels[v]).sum(1)
        parts.append(torch.where(either > 0, both / either.clamp(min=1), 1.0).double())
    return torch.cat(parts), torch.ones(len(source), dtype=torch.float64)
