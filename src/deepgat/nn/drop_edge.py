"""Which edges a model runs on: part of a graph's neighbour lists, without sorting them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from deepgat.ops import Neighbors, PartNeighbors, dropout_masks

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
    The lists are cut, since fewer edges are less work; on a GPU, where steps are recorded, edges
    left out get the weight 0 instead, which is the same to a model.
    """

    share: float

    def __call__(self, neighbors: Neighbors) -> Neighbors:
        if self.share == 0.0:
            return neighbors
        keep = self.kept(neighbors)
        if neighbors.device.type == "cuda" and not isinstance(neighbors, PartNeighbors):
            return neighbors.masked(~keep)
        return neighbors.select(keep, neighbors.symmetric)

    def kept(self, neighbors: Neighbors) -> Tensor:
        """[E] bool: a draw of the edges that stay."""
        source, target = neighbors.edge_index
        ends = torch.minimum(source, target), torch.maximum(source, target)
        drawn = dropout_masks.keep_entries(
            *ends, self.share, dropout_masks.new_seed(neighbors.device)
        )
        return (drawn > 0) | (source == target)


def recordable(sampler: EdgeSampler) -> bool:
    """Whether a step that calls it, on a GPU, can be recorded as a CUDA graph and replayed.

    A function from elsewhere may draw by other means than torch's random numbers of the device;
    replayed, it would give the same edges every time.
    """
    return sampler in (all_edges, no_edges) or type(sampler) is DropEdge
