"""Random graphs with hubs."""

from __future__ import annotations

import torch
from torch import Tensor

from deepgat.ops import Neighbors


def like_physics() -> Neighbors:
    """A random graph of the size of Coauthor Physics: 34,493 nodes, 534 thousand edges."""
    return hub_rich(34_493, 250_000)


def hub_rich(
    nodes: int, pairs: int, seed: int = 0, device: torch.device | None = None
) -> Neighbors:
    """An undirected graph with a power-law-like degree distribution.

    Draws ``pairs`` undirected edges whose ends are denser at low indices, then drops duplicates
    and loops.
    """
    generator = torch.Generator(device=device or "cpu").manual_seed(seed)

    def ends() -> Tensor:
        draw = torch.rand(pairs, generator=generator, device=device)
        return (nodes * draw**2).long().clamp(max=nodes - 1)

    source, target = ends(), ends()
    # a real graph does not number its hubs first
    places = torch.randperm(nodes, generator=generator, device=device)
    source, target = places[source], places[target]
    both = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    return Neighbors.from_edge_index(both, nodes)
