"""Which edges a model runs on: part of a graph's neighbour lists, without sorting them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from deepgat.ops import Neighbors

EdgeSampler: TypeAlias = Callable[[Neighbors], Neighbors]
"""The lists for one training step."""


def all_edges(neighbors: Neighbors) -> Neighbors:
    """Nothing is left out."""
    return neighbors


def no_edges(neighbors: Neighbors) -> Neighbors:
    """N_v = {v}: what is left of a graph network without its graph, an MLP."""
    n, device = neighbors.num_nodes, neighbors.device
    ptr, nodes = torch.arange(n + 1, device=device), torch.arange(n, device=device)
    ids = nodes.int()
    pieces = torch.stack([nodes, nodes, nodes + 1, torch.full_like(nodes, -1)], dim=1)
    hubs = nodes.new_empty(0, 3)  # known without looking: cut_lists would wait for the GPU
    features = neighbors.features  # with one neighbour each, their values make no difference
    return Neighbors(
        ptr=ptr,
        source=ids,
        target=ids,
        source_ptr=ptr,
        by_source=nodes,
        target_by_source=ids,
        pieces=pieces,
        hubs=hubs,
        source_pieces=pieces,
        source_hubs=hubs,
        symmetric=True,
        features=None if features is None else features.new_zeros(n, features.size(1)),
    )


@dataclass(frozen=True)
class DropEdge:
    """Leaves every edge out with probability ``share``, drawn anew at each call.

    Both directions of an edge stay or go together; self-loops stay. Weights are normalised over
    what is left. Torch's own random numbers decide: one per edge, in the order of the lists.
    """

    share: float

    def __call__(self, neighbors: Neighbors) -> Neighbors:
        if self.share == 0.0:
            return neighbors
        proper = neighbors.source != neighbors.target
        draws = torch.ones(neighbors.num_edges, device=neighbors.device)
        draws[proper] = torch.rand(int(proper.sum()), device=neighbors.device)
        twin = _reverse(neighbors)
        first = torch.where(neighbors.source < neighbors.target, draws, draws[twin])
        return select_edges(neighbors, first >= self.share, neighbors.symmetric)


def select_edges(neighbors: Neighbors, keep: Tensor, symmetric: bool) -> Neighbors:
    """The lists with only the edges of ``keep`` [E]; it keeps every self-loop.

    Both orders of the edges stay sorted, so a running count gives all new places: O(E).
    """
    by_source = keep[neighbors.by_source]
    place, source_place = _places(keep), _places(by_source)
    return Neighbors.from_lists(
        ptr=place[neighbors.ptr],
        source=neighbors.source[keep],
        target=neighbors.target[keep],
        source_ptr=source_place[neighbors.source_ptr],
        by_source=place[neighbors.by_source[by_source]],
        target_by_source=neighbors.target_by_source[by_source],
        symmetric=symmetric,
        log_weight=None if neighbors.log_weight is None else neighbors.log_weight[keep],
        features=None if neighbors.features is None else neighbors.features[keep],
    )


def _places(keep: Tensor) -> Tensor:
    """[E + 1]: how many edges are kept before each."""
    count = torch.cumsum(keep, 0)
    return torch.cat([count.new_zeros(1), count])


def _reverse(neighbors: Neighbors) -> Tensor:
    """[E]: for every edge (v, u) the place of (u, v), or its own where there is none."""
    if neighbors.symmetric:  # the i-th pair by (source, target) is the i-th by (target, source)
        return neighbors.by_source
    n = neighbors.num_nodes
    source, target = neighbors.source.long(), neighbors.target.long()
    key, wanted = target * n + source, source * n + target
    found = torch.searchsorted(key, wanted).clamp(max=len(key) - 1)
    return torch.where(key[found] == wanted, found, torch.arange(len(key), device=key.device))
