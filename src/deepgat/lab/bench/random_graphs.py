"""Graphs to measure on: random, hub-rich, or of the catalogue."""

from __future__ import annotations

import torch
from torch import Tensor

from deepgat.data import load_graph
from deepgat.ops import Neighbors


def like_physics(seed: int = 0) -> Neighbors:
    """A random undirected graph as large as Coauthor Physics: 34,493 nodes, 534 thousand edges."""
    return hub_rich(34_493, 250_000, seed)


def hub_rich(
    nodes: int, pairs: int, seed: int = 0, device: torch.device | None = None
) -> Neighbors:
    """An undirected graph whose degrees fall off like a power law.

    ``pairs`` undirected edges are drawn, their ends with a density that grows towards low numbers;
    pairs drawn twice and loops are dropped, so a few fewer remain.
    """
    generator = torch.Generator(device=device or "cpu").manual_seed(seed)

    def ends() -> Tensor:
        draw = torch.rand(pairs, generator=generator, device=device)
        return (nodes * draw**2).long().clamp(max=nodes - 1)

    source, target = ends(), ends()
    # hubs scattered over the numbers, as in a real graph
    places = torch.randperm(nodes, generator=generator, device=device)
    source, target = places[source], places[target]
    both = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    return Neighbors.from_edge_index(both, nodes)


def catalogue(name: str) -> Neighbors:
    graph = load_graph(name).graph
    return Neighbors.from_edge_index(graph.edge_index, graph.num_nodes)
