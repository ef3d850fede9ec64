"""How much attention changes between two networks."""

from __future__ import annotations

import torch
from torch import Tensor

from deepgat.errors import UserError, unknown_name

READINGS = ("paper", "authors")


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
