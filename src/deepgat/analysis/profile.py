"""All over-smoothing measures of every layer of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepgat.analysis.attention import attention_mass, uniform_attention
from deepgat.analysis.metrics import micro_f1
from deepgat.analysis.smoothing import (
    dirichlet_energy,
    effective_rank,
    global_distance,
    neighbor_distance,
    numerical_rank,
    rayleigh_quotient,
)
from deepgat.models import LayerOutputs
from deepgat.ops import Neighbors, as_neighbors


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
    """The normalised energy over ‖h^l‖²: :func:`~deepgat.analysis.rayleigh_quotient`."""
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
