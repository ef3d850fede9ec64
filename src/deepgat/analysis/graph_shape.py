"""Statistics of a graph: degrees, hubs, diameter, density, clustering.

The paper's Table 1 counts every edge in both directions and a self-loop twice, so its "degree" of
a node is 2(deg + 1). This module computes both the true and the printed numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, connected_components
from torch import Tensor

from deepgat.data import undirected_matrix

HUB_DEGREE = 30
"""The minimum degree of a hub."""
BLOCK_ROWS = 4096


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
    matrices = [adjacency(edge_index, nodes) for edge_index, nodes in graphs]
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


def adjacency(edge_index: Tensor, nodes: int) -> sp.csr_matrix:
    """The adjacency matrix [n, n]: ones, symmetric, no diagonal, rows sorted."""
    return undirected_matrix(edge_index.cpu().numpy(), nodes)


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
    lower = np.zeros(len(members), dtype=np.int64)
    upper = np.full(len(members), len(members), dtype=np.int64)
    left = members.copy()
    outermost = False  # begin with the node of the highest degree
    while left.any():
        index = np.flatnonzero(left)
        rank = upper[index] if outermost else -lower[index]
        ties = index[rank == rank.max()]
        start = int(ties[np.argmax(degree[ties])])
        order, distance = _search(matrix, start)
        eccentricity = int(distance[-1])
        best = max(best, eccentricity)
        # Within one component everything is reached.
        lower[order] = np.maximum(lower[order], np.maximum(distance, eccentricity - distance))
        upper[order] = np.minimum(upper[order], eccentricity + distance)
        left[start] = False
        left &= upper > best
        outermost = not outermost
    return best


def _search(matrix: sp.csr_matrix, start: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes reached from ``start`` in breadth-first order, and their distances."""
    order, before = breadth_first_order(matrix, start, directed=True)
    place = np.empty(matrix.shape[0], dtype=np.int64)
    place[order] = np.arange(len(order))
    parents = place[before[order[1:]]]  # ascending
    distance = np.zeros(len(order), dtype=np.int64)
    begin, level = 1, 1
    while begin < len(order):
        # The next level begins with the first node whose parent is on this level.
        end = 1 + int(np.searchsorted(parents, begin))
        distance[begin:end] = level
        begin, level = end, level + 1
    return order, distance


def local_clustering(matrix: sp.csr_matrix) -> np.ndarray:
    """[n]: the share of pairs of neighbours that are joined; 0 for fewer than two neighbours.

    Edges are directed from lower to higher degree. So every triangle is found once, as a → b → c
    with a → c, and no node has more than sqrt(2·edges) successors.
    """
    degree = np.diff(matrix.indptr)
    n = matrix.shape[0]
    rank = np.empty(n, dtype=np.int64)
    rank[np.lexsort((np.arange(n), degree))] = np.arange(n)
    coo = matrix.tocoo()
    up = rank[coo.row] < rank[coo.col]
    forward = sp.csr_matrix((np.ones(int(up.sum())), (coo.row[up], coo.col[up])), shape=(n, n))
    backward = forward.T.tocsr()
    triangles = np.zeros(n)
    for begin in range(0, n, BLOCK_ROWS):
        rows = forward[begin : begin + BLOCK_ROWS]
        outer = (rows @ forward).multiply(rows)  # [a, c]: number of b between them
        inner = (rows @ backward).multiply(rows)  # [a, b]: number of common successors c
        triangles[begin : begin + BLOCK_ROWS] += np.asarray(outer.sum(1)).ravel()
        triangles += np.asarray(outer.sum(0)).ravel() + np.asarray(inner.sum(0)).ravel()
    possible = degree * (degree - 1) / 2
    return np.divide(triangles, possible, out=np.zeros(n), where=possible > 0)


def _degrees(degree: np.ndarray, density: float) -> Degrees:
    hubs = float((degree >= HUB_DEGREE).mean())
    return Degrees(float(degree.mean()), int(degree.max()), hubs, density)
