"""Measures of over-smoothing: energies, distances and ranks of a layer's output h [n, m].

All are computed in double precision, from differences instead of sums of squares, because the
differences in an over-smoothed layer are small. Edges are neighbour lists N_v or an ``edge_index``
[2, ·]; repeated edges and self-loops have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepgat.analysis.attention import attention_mass, uniform_attention
from deepgat.analysis.metrics import micro_f1
from deepgat.errors import UserError
from deepgat.models import LayerOutputs
from deepgat.ops import Neighbors, as_neighbors

BLOCK_BYTES = 2**20
"""Limit on the rows gathered per block of edges; small enough for the cache."""


def dirichlet_energy(h: Tensor, edge_index: Tensor | Neighbors, normalized: bool = True) -> float:
    """The Dirichlet energy: how much h changes along the edges.

    ``normalized``, tr(hᵀ Δ̃ h) of the augmented normalised Laplacian (Cai and Wang 2020):
        E = ½ Σ_v Σ_{u∈N_v} ‖h_v/sqrt|N_v| − h_u/sqrt|N_u|‖², zero where h_v ∝ sqrt|N_v|;
    otherwise (Rusch, Bronstein and Mishra 2023):
        E = (1/n) Σ_v Σ_{u∈N_v} ‖h_v − h_u‖², zero where h is constant on every component.
    |N_v| counts v itself. Both grow with the square of h's scale; see :func:`rayleigh_quotient`.
    """
    h, near = _checked(h, edge_index)
    if normalized:
        h = h / near.degree.to(h.dtype).sqrt().unsqueeze(1)
    total = 0.0
    for source, target in _edge_blocks(near, h.size(1)):
        step = _difference(h, target, source).flatten()
        total += step.dot(step).item()
    return total / 2 if normalized else total / len(h)


def rayleigh_quotient(h: Tensor, edge_index: Tensor | Neighbors) -> float:
    """tr(hᵀ Δ̃ h) / ‖h‖²_F, in [0, 2): the normalised energy, comparable between layers.

    NaN for h = 0.
    """
    size = h.detach().double().square().sum().item()
    return dirichlet_energy(h, edge_index) / size if size else math.nan


def neighbor_distance(h: Tensor, edge_index: Tensor | Neighbors) -> float:
    """MAD over neighbours (Chen et al. 2020): the mean cosine distance between neighbours.

    d_vu = 1 − cos(h_v, h_u); d̄_v is its mean over u ∈ N_v \\ {v}; MAD is the mean of d̄_v over the
    nodes that have a neighbour, or NaN without any. A row of zeros has distance 1 to other rows
    and 0 to other rows of zeros. Chen et al. exclude distances of exactly zero from both means.
    Here they count, so that MAD falls to 0 continuously as rows become parallel.
    """
    h, near = _checked(h, edge_index)
    unit, zero = _unit(h)
    total = torch.zeros(len(h), dtype=torch.float64, device=h.device)
    for source, target in _edge_blocks(near, h.size(1)):
        # ½‖a − b‖² is 1 − cos for unit rows, without cancellation.
        distance = _difference(unit, target, source).square_().sum(1) / 2
        distance += (zero[target] ^ zero[source]).double() / 2
        total.index_add_(0, target, distance)
    others = near.degree - 1
    joined = others > 0
    if not joined.any():
        return math.nan
    return (total[joined] / others[joined]).mean().item()


def global_distance(h: Tensor) -> float:
    """MAD over all pairs: the mean cosine distance of two different nodes; NaN for one node.

    With unit rows ĥ and their mean m: Σ_v Σ_u (1 − cos) = n Σ_v ‖ĥ_v − m‖², which needs no pairs.
    """
    unit, zero = _unit(_matrix(h))
    n, empty = len(unit), int(zero.sum())
    if n < 2:
        return math.nan
    spread = (unit - unit.mean(0)).square().sum().item() / (n - 1)
    return spread + empty * (n - empty) / (n * (n - 1))


def numerical_rank(h: Tensor) -> float:
    """‖h‖²_F / ‖h‖²_2, from 1 (all rows parallel) to min(n, m); 0 for h = 0.

    Also called stable rank (Rudelson and Vershynin 2007).
    """
    squared = _singular_values(h).square()
    return (squared.sum() / squared.max()).item() if squared.any() else 0.0


def effective_rank(h: Tensor) -> float:
    """exp(−Σ p_i log p_i), p_i = σ_i / Σσ, of the singular values σ (Roy and Vetterli 2007).

    From 1 to min(n, m); 0 for h = 0.
    """
    values = _singular_values(h)
    if not values.any():
        return 0.0
    return torch.special.entr(values / values.sum()).sum().exp().item()


@dataclass(frozen=True)
class LayerMeasures:
    """The measures of one layer l; None if the layer has no such output.

    Layer 0 is the input: it may have a prediction (from the raw features), but no output h.
    """

    layer: int
    micro_f1: float | None = None
    """Of its own prediction ŷ^l."""
    energy: float | None = None
    """Dirichlet energy of h^l, normalised."""
    energy_unnormalized: float | None = None
    relative_energy: float | None = None
    """The normalised energy over ‖h^l‖²: :func:`rayleigh_quotient`."""
    neighbor_distance: float | None = None
    """MAD over neighbours."""
    global_distance: float | None = None
    """MAD over all pairs."""
    numerical_rank: float | None = None
    effective_rank: float | None = None
    same_class_attention: float | None = None
    """Σ α_vu over v and the other nodes of its class, averaged over the masked nodes and heads."""
    same_class_attention_by_head: tuple[float, ...] = ()
    self_attention: float | None = None
    """The part of it on v itself."""
    uniform_same_class_attention: float | None = None
    """The same for uniform attention 1/|N_v|."""


def over_smoothing_profile(
    outputs: LayerOutputs,
    edge_index: Tensor | Neighbors,
    y: Tensor,
    mask: Tensor | None = None,
) -> list[LayerMeasures]:
    """The measures of every layer, from 0 (if it predicts) to L.

    Args:
        outputs: of :meth:`Network.run` in evaluation mode, with ``with_attention=True`` to measure
            attention.
        edge_index: the graph.
        y: [n] classes with −1 for unknown, or [n, C] labels.
        mask: [n] bool, the nodes whose predictions and attention count, usually the test nodes; by
            default all labelled nodes. Energies, distances and ranks are over all nodes.
    """
    neighbors = as_neighbors(edge_index, len(y))
    if mask is None:
        mask = (y >= 0) if y.dim() == 1 else torch.ones(len(y), dtype=torch.bool)
    y, mask = y.cpu(), mask.cpu()
    rows = []
    for layer in range(len(outputs.hidden) + 1):
        logits = outputs.layer_logits.get(layer)
        found: dict[str, Any] = {}
        if logits is not None and mask.any():
            found["micro_f1"] = micro_f1(logits.detach().cpu()[mask], y[mask]).item()
        if layer:
            h = outputs.hidden[layer - 1]
            found |= {
                "energy": dirichlet_energy(h, neighbors),
                "energy_unnormalized": dirichlet_energy(h, neighbors, normalized=False),
                "relative_energy": rayleigh_quotient(h, neighbors),
                "neighbor_distance": neighbor_distance(h, neighbors),
                "global_distance": global_distance(h),
                "numerical_rank": numerical_rank(h),
                "effective_rank": effective_rank(h),
            }
        if layer and outputs.attention and mask.any():
            edges, weight = outputs.attention[layer - 1]
            mass = attention_mass(edges, weight, y)
            uniform = attention_mass(edges, uniform_attention(edges), y)
            found |= {
                "same_class_attention": mass.same[mask].mean().item(),
                "same_class_attention_by_head": tuple(mass.same[mask].mean(0).tolist()),
                "self_attention": mass.itself[mask].mean().item(),
                "uniform_same_class_attention": uniform.same[mask].mean().item(),
            }
        if found:
            rows.append(LayerMeasures(layer, **found))
    return rows


def _singular_values(h: Tensor) -> Tensor:
    h = _matrix(h)
    if not h.isfinite().all():
        return torch.full((1,), math.nan)
    return torch.linalg.svdvals(h)


def _matrix(h: Tensor) -> Tensor:
    if h.dim() != 2:
        raise UserError(f"h has shape {list(h.shape)}: expected [nodes, channels]")
    return h.detach().double()


def _checked(h: Tensor, edge_index: Tensor | Neighbors) -> tuple[Tensor, Neighbors]:
    h = _matrix(h)
    return h, as_neighbors(edge_index, len(h)).to(h.device)


def _unit(h: Tensor) -> tuple[Tensor, Tensor]:
    """(rows scaled to length 1 [n, m], [n] bool rows of zeros, which do not change)."""
    length = h.norm(dim=1, keepdim=True)
    return torch.where(length > 0, h / length, 0.0), length.squeeze(1) == 0


def _edge_blocks(near: Neighbors, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(sources, targets) of all edges, in blocks of limited size."""
    per_block = max(1, BLOCK_BYTES // (8 * max(width, 1)))
    yield from zip(
        near.source.long().split(per_block), near.target.long().split(per_block), strict=True
    )


def _difference(h: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """h_a − h_b, row by row."""
    return h.index_select(0, a).sub_(h.index_select(0, b))
