"""Selects the edges that a model runs on, without rebuilding the neighbour lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from deepgat.ops import Neighbors, PartNeighbors, checks, dropout_masks

EdgeSampler: TypeAlias = Callable[[Neighbors], Neighbors]
"""From the full lists to those of one training step."""


def all_edges(neighbors: Neighbors) -> Neighbors:
    """Keep all edges."""
    return neighbors


def no_edges(neighbors: Neighbors) -> Neighbors:
    """N_v = {v}: turns a graph network into an MLP."""
    return neighbors.alone


@dataclass(frozen=True)
class DropEdge:
    """Drops every edge with probability ``share``; each call draws anew.

    Both directions of an edge share one draw, and self-loops always stay. Attention is normalised
    over the remaining edges. The draw hashes the two nodes and a seed from torch's generator. On
    the CPU the lists become shorter, which saves work. On a GPU, dropped edges get weight 0
    instead, so that CUDA graphs can record the step; the result is the same.
    """

    share: float

    def __post_init__(self) -> None:
        checks.share("share", self.share)

    def __call__(self, neighbors: Neighbors) -> Neighbors:
        if self.share == 0.0:
            return neighbors
        keep = self.kept(neighbors)
        if neighbors.device.type == "cuda" and not isinstance(neighbors, PartNeighbors):
            return neighbors.masked(~keep)
        return neighbors.select(keep, neighbors.symmetric)

    def kept(self, neighbors: Neighbors) -> Tensor:
        """[E] bool: the edges that stay, at random."""
        source, target = neighbors.edge_index
        ends = torch.minimum(source, target), torch.maximum(source, target)
        drawn = dropout_masks.keep_entries(
            *ends, self.share, dropout_masks.new_seed(neighbors.device)
        )
        return (drawn > 0) | (source == target)


def recordable(sampler: EdgeSampler) -> bool:
    """Whether a CUDA graph can record a step that calls this sampler.

    Other samplers may draw random numbers that torch's device generator does not provide. Replayed,
    they would return the same edges every time.
    """
    return sampler in (all_edges, no_edges) or type(sampler) is DropEdge
