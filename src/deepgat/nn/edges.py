"""Which edges a model runs on: part of a graph's neighbour lists, without sorting them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from deepgat.ops import Neighbors, draws

EdgeSampler: TypeAlias = Callable[[Neighbors], Neighbors]
"""The lists for one training step."""


def all_edges(neighbors: Neighbors) -> Neighbors:
    """Nothing is left out."""
    return neighbors


def no_edges(neighbors: Neighbors) -> Neighbors:
    """N_v = {v}: what is left of a graph network without its graph, an MLP."""
    return neighbors.alone


@dataclass(frozen=True)
class DropEdge:
    """Leaves every edge out with probability ``share``, drawn anew at each call.

    Both directions of an edge stay or go together; self-loops stay. Weights are normalised over
    what is left. A hash of the edge's two nodes and a seed from torch's random numbers decides.
    """

    share: float

    def __call__(self, neighbors: Neighbors) -> Neighbors:
        if self.share == 0.0:
            return neighbors
        source, target = neighbors.edge_index
        ends = torch.minimum(source, target), torch.maximum(source, target)
        drawn = draws.keep_entries(*ends, self.share, draws.new_seed(neighbors.device))
        return neighbors.select((drawn > 0) | (source == target), neighbors.symmetric)
