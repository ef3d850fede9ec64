"""Statistics of a graph: degrees, hubs, diameter, density, clustering.

The paper's Table 1 counts every edge in both directions and a self-loop twice, so its "degree" of
a node is 2(deg + 1). This module computes both the true and the printed numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, shortest_path
from torch import Tensor

from deepgat.data import undirected_matrix

HUB_DEGREE = 30
"""The minimum degree of a hub."""
BLOCK_ROWS = 1024
"""Rows of the squared adjacency matrix that are in memory at once."""


class Degrees(NamedTuple):
    """The statistics that depend on how edges are counted."""

    mean: float
    largest: int
    hub_rate: float
    """Share of nodes with a degree of at least 30."""
    density: float
    """Edges over pairs of nodes."""


class GraphStatistics(NamedTuple):
    """A row of Table 1; for several graphs, means are over all their nodes."""

    nodes: int
    edges: int
    """Ordered pairs u ≠ v."""
    printed: Degrees
    """Degree 2(deg + 1), density (edges + n)/(n(n − 1)), as the paper prints them."""
    true: Degrees
    """Degree deg, density edges/(n(n − 1))."""
    diameter: int
    """The largest finite distance."""
    clustering: float
    """Mean local clustering coefficient, 0 for nodes of degree below 2."""
    components: int


def graph_statistics(graphs: Sequence[tuple[Tensor, int]]) -> GraphStatistics:
    """Statistics of one or several graphs, each an ``edge_index`` [2, e] with its n.

    Edges are taken as undirected; repeated edges and self-loops are ignored.
    """
    matrices = [undirected_matrix(edges.cpu().numpy(), nodes) for edges, nodes in graphs]
    degree = np.concatenate([np.diff(matrix.indptr) for matrix in matrices])
    nodes, edges = len(degree), int(degree.sum())
    pairs = sum(n * (n - 1) for n in (matrix.shape[0] for matrix in matrices)) or 1
    local = np.concatenate([local_clustering(matrix) for matrix in matrices])
    return GraphStatistics(
        nodes,
        edges,
        _degrees(2 * (degree + 1), (edges + nodes) / pairs),
        _degrees(degree, edges / pairs),
        max(diameter(matrix) for matrix in matrices),
        float(local.mean()),
        sum(connected_components(matrix, directed=False)[0] for matrix in matrices),
    )


def diameter(matrix: sp.csr_matrix) -> int:
    """The largest finite distance between two nodes, exactly.

    A breadth-first search from v gives its eccentricity e. It bounds the eccentricity of every w in
    the same component between max(d(v,w), e − d(v,w)) and e + d(v,w). Nodes whose upper bound does
    not exceed the largest eccentricity found are dropped. Searches alternate between the node with
    the largest upper bound and the one with the smallest lower bound, until no node is left. Real
    graphs need dozens of searches, not n.
    """
    _, component = connected_components(matrix, directed=False)
    sizes = np.bincount(component)
    best = 0
    for number in np.argsort(-sizes, kind="stable"):
        if sizes[number] - 1 <= best:  # not even a path could be longer
            break
        best = max(best, _component_diameter(matrix, component == number, best))
    return best


def _component_diameter(matrix: sp.csr_matrix, members: np.ndarray, best: int) -> int:
    degree = np.diff(matrix.indptr)
    lower = np.zeros(len(members))
    upper = np.full(len(members), np.inf)
    left = members.copy()
    outermost = False  # begin with the node of the highest degree
    while left.any():
        index = np.flatnonzero(left)
        rank = upper[index] if outermost else -lower[index]
        ties = index[rank == rank.max()]
        start = int(ties[np.argmax(degree[ties])])
        distance = shortest_path(matrix, method="D", unweighted=True, indices=start)
        eccentricity = int(distance[members].max())  # within one component everything is reached
        best = max(best, eccentricity)
        lower = np.maximum(lower, np.maximum(distance, eccentricity - distance))
        upper = np.minimum(upper, eccentricity + distance)
        left[start] = False
        left &= upper > best
        outermost = not outermost
    return best


def local_clustering(matrix: sp.csr_matrix) -> np.ndarray:
    """[n]: the share of pairs of neighbours that are joined; 0 for fewer than two neighbours."""
    degree = np.diff(matrix.indptr)
    joined = np.zeros(len(degree))  # ordered pairs, so that every triangle counts twice
    for begin in range(0, len(degree), BLOCK_ROWS):
        rows = matrix[begin : begin + BLOCK_ROWS]
        joined[begin : begin + BLOCK_ROWS] = (rows @ matrix).multiply(rows).sum(1).ravel()
    possible = degree * (degree - 1)
    return np.divide(joined, possible, out=np.zeros(len(degree)), where=possible > 0)


def _degrees(degree: np.ndarray, density: float) -> Degrees:
    hubs = float((degree >= HUB_DEGREE).mean())
    return Degrees(float(degree.mean()), int(degree.max()), hubs, density)
