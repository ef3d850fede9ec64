"""Which nodes and edges of a graph its page holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_NODES = 100_000
MOST_EDGES = 1_500_000


@dataclass(frozen=True)
class Sample:
    """The nodes of a page, and the edges among them."""

    nodes: np.ndarray
    """[k] numbers in the graph, rising."""
    whole: np.ndarray
    """[k] bool: whether the page has all edges into the node."""
    ptr: np.ndarray
    """[k + 1]: the edges into node i are ptr[i] … ptr[i + 1] − 1."""
    source: np.ndarray
    """[E] numbers among ``nodes``."""
    edges: np.ndarray
    """[E] the edges' numbers in the graph's lists."""


def sample_graph(
    ptr: np.ndarray, source: np.ndarray, most_nodes: int = MOST_NODES, most_edges: int = MOST_EDGES
) -> Sample:
    """All of a graph where it fits into a page, else random nodes with all of their neighbours.

    ptr [n + 1] and source [E] are the neighbour lists. A graph of at most ``most_nodes`` nodes
    keeps them all; edges into some of them are left out where there are too many.
    """
    n, degree = len(ptr) - 1, np.diff(ptr)
    if n <= most_nodes and len(source) <= most_edges:
        return Sample(np.arange(n), np.ones(n, bool), ptr, source, np.arange(len(source)))
    on_page = np.full(n, n <= most_nodes)
    chosen = np.zeros(n, bool)
    room, edges_left = most_nodes - int(on_page.sum()), most_edges
    for node in np.random.default_rng(0).permutation(n):
        near = source[ptr[node] : ptr[node + 1]]  # the node itself is one of them
        more = near[~on_page[near]]
        if degree[node] > edges_left or len(more) > room:
            if edges_left <= 0 or (room <= 0 and n > most_nodes):
                break
            continue
        on_page[more] = chosen[node] = True
        room, edges_left = room - len(more), edges_left - int(degree[node])
    nodes = on_page.nonzero()[0]
    whole = chosen[nodes]
    kept = np.where(whole, degree[nodes], 0)
    edges = chosen.repeat(degree).nonzero()[0]
    place = np.cumsum(on_page) - 1
    return Sample(nodes, whole, np.append(0, kept.cumsum()), place[source[edges]], edges)
