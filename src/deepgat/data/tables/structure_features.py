"""Structural node features, computed from the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import scipy.sparse as sp

from deepgat.errors import UserError

EIGENVECTORS = 16
DAMPING, ROUNDS = 0.85, 50


def degree(matrix: sp.csr_matrix) -> dict[str, np.ndarray]:
    """log(1 + degree), and its mean over the neighbours (0 for isolated nodes)."""
    count = np.diff(matrix.indptr)
    own = np.log1p(count)
    near = np.divide(matrix @ own, count, out=np.zeros(len(own)), where=count > 0)
    return {"degree": own, "neighbours' degree": near}


def pagerank(matrix: sp.csr_matrix) -> dict[str, np.ndarray]:
    """log(n·r) with r = 0.85 Pᵀ r + 0.15/n after 50 rounds; isolated nodes jump anywhere."""
    n, count = matrix.shape[0], np.diff(matrix.indptr)
    share = np.divide(1.0, count, out=np.zeros(n), where=count > 0)
    rank = np.full(n, 1.0 / n)
    for _ in range(ROUNDS):
        stuck = rank[count == 0].sum()
        rank = DAMPING * (matrix.T @ (share * rank) + stuck / n) + (1 - DAMPING) / n
    return {"pagerank": np.log(n * rank)}


def spectral(matrix: sp.csr_matrix) -> dict[str, np.ndarray]:
    """The first eigenvectors of (D+I)^-½ (A+I) (D+I)^-½, at most 16, times √n.

    The very first, which depends on the degrees only, is omitted. The entry of largest absolute
    value is positive in each.
    """
    n = matrix.shape[0]
    scale = sp.diags(1 / np.sqrt(np.diff(matrix.indptr) + 1.0))
    normal = scale @ (matrix + sp.identity(n)) @ scale
    wanted = min(EIGENVECTORS + 1, n)
    if n <= 64:  # small enough for a dense solver
        _, vectors = np.linalg.eigh(normal.toarray())
        vectors = vectors[:, ::-1][:, :wanted]
    else:
        from scipy.sparse.linalg import ArpackNoConvergence, eigsh

        start = np.random.default_rng(0).standard_normal(n)
        try:
            values, vectors = eigsh(normal, k=wanted, which="LA", v0=start, tol=1e-4)
        except ArpackNoConvergence:
            raise UserError(
                "the eigenvectors of this graph do not converge: use structure=degree,pagerank "
                "without spectral"
            ) from None
        vectors = vectors[:, np.argsort(-values)]
    vectors = vectors[:, 1:]
    if vectors.size:
        largest = vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])]
        vectors = vectors * np.sign(largest) * np.sqrt(n)
    return {f"spectral {i + 1}": vectors[:, i] for i in range(vectors.shape[1])}


STRUCTURES: Mapping[str, Callable[[sp.csr_matrix], dict[str, np.ndarray]]] = {
    "degree": degree,
    "pagerank": pagerank,
    "spectral": spectral,
}
"""Functions of the adjacency matrix [n, n]: ones, symmetric, without diagonal."""


def undirected_matrix(edge_index: np.ndarray, nodes: int) -> sp.csr_matrix:
    """The adjacency matrix [n, n] of edges [2, e]: ones, symmetric, no diagonal, rows sorted."""
    a, b = edge_index
    proper = a != b
    ones = np.ones(int(proper.sum()))
    one_way = sp.csr_matrix((ones, (a[proper], b[proper])), shape=(nodes, nodes))
    both = sp.csr_matrix(one_way + one_way.T)
    both.data[:] = 1
    both.sort_indices()
    return both
