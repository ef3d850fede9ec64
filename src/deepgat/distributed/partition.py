"""Graph partitioning: METIS, reverse Cuthill–McKee, or greedy streaming in O(n) memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from deepgat.errors import UserError, unknown_name

METHODS = ("auto", "metis", "order", "stream")
NODE_WORK = 16
"""Work per node in units of edges: dense products and activations (measured on CS)."""
ROUNDS = 10
"""Passes of "stream" over all nodes."""
SLACK = 1.05
"""Capacity of a part of "stream", relative to the mean work."""
_FEW = 8
"""With fewer nodes per part, "auto" does not use METIS."""


def has_metis() -> bool:
    return importlib.util.find_spec("pymetis") is not None


def chosen_method(method: str, num_nodes: int, parts: int) -> str:
    """Resolve "auto"; raise a :class:`UserError` for a method that is not available."""
    if method not in METHODS:
        raise unknown_name("partitioning method", method, METHODS)
    if parts < 1:
        raise UserError(f"the number of parts is {parts}: expected 1 or more")
    if method == "metis" and not has_metis():
        raise UserError(
            "METIS is not installed: install it (pip install 'deepgat[metis]'), or choose stream"
        )
    if method != "auto":
        return method
    return "metis" if has_metis() and num_nodes >= _FEW * parts else "stream"


def owners(edge_index: Tensor, num_nodes: int, parts: int, method: str = "auto") -> Tensor:
    """[n] int64: the part of every node, from 0; parts have about equal work. Deterministic.

    Args:
        edge_index: [2, e], taken as undirected.
        num_nodes: n.
        parts: number of parts; on a small graph some may be empty.
        method: "metis" cuts few edges; "order" splits the reverse Cuthill–McKee order, which keeps
            neighbours close, into contiguous ranges; "stream" is :func:`stream_owners`; "auto" is
            METIS if pymetis is installed, else "stream".
    """
    method = chosen_method(method, num_nodes, parts)
    if parts == 1 or num_nodes == 0:
        return torch.zeros(num_nodes, dtype=torch.long)
    return torch.from_numpy(owners_of(_both_ways(edge_index, num_nodes), parts, method))


def owners_of(near: sp.csr_matrix, parts: int, method: str) -> np.ndarray:
    """As :func:`owners`, from a symmetric adjacency matrix with sorted rows and no diagonal."""
    degree = np.diff(near.indptr)
    if method == "stream":
        return stream_owners(lambda: iter([near.indices]), degree, parts)
    divide = _metis if method == "metis" else _stretches
    return divide(near, degree + NODE_WORK, parts).astype(np.int64)


def stream_owners(
    lists: Callable[[], Iterator[np.ndarray]],
    degree: np.ndarray,
    parts: int,
    tell: Callable[[float], None] = lambda share: None,
) -> np.ndarray:
    """Linear deterministic greedy with restreaming (Stanton and Kliot 2012; Nishimura and Ugander).

    Nodes are placed in the order of their numbers, a batch at a time. Each goes to the part p that
    maximises |N_v ∩ p| · (1 − load_p / capacity): few edges are cut, and no part overflows. Ten
    passes refine the result; each starts from the parts of the pass before. Memory holds O(n)
    numbers and one piece of the lists.

    Args:
        lists: iterates over the neighbours of all nodes in order, in pieces that hold whole lists
            of a multiple of :func:`batch_size` nodes (the last may hold fewer).
        degree: [n], the length of each list.
        parts: number of parts.
        tell: called with the share that is done.
    """
    n = len(degree)
    work = degree + float(NODE_WORK)
    capacity = SLACK * work.sum() / parts
    owner = np.full(n, -1, dtype=np.int64)
    load = np.zeros(parts)
    batch = batch_size(n)
    for number in range(ROUNDS):
        begin = 0
        for piece in lists():
            at = 0
            while at < len(piece) or (begin < n and not degree[begin : begin + batch].any()):
                end = min(begin + batch, n)
                size = int(degree[begin:end].sum())
                _place(piece[at : at + size], degree, work, begin, end, owner, load, capacity)
                at, begin = at + size, end
            tell((number + begin / n) / ROUNDS)
    return owner


def batch_size(num_nodes: int) -> int:
    """Nodes per batch of :func:`stream_owners`: about n/4096, a power of two up to 4096."""
    return min(1 << max(0, num_nodes.bit_length() - 13), 4096)


def _place(
    near: np.ndarray,
    degree: np.ndarray,
    work: np.ndarray,
    begin: int,
    end: int,
    owner: np.ndarray,
    load: np.ndarray,
    capacity: float,
) -> None:
    """Assign the nodes ``begin`` … ``end`` − 1, with neighbours ``near``, to parts; in place."""
    parts, count = len(load), end - begin
    found = owner[near]
    row = np.repeat(np.arange(count), degree[begin:end])
    known = found >= 0
    votes = np.bincount(row[known] * parts + found[known], minlength=count * parts)
    before, cost = owner[begin:end], work[begin:end]
    placed = before >= 0
    load -= np.bincount(before[placed], weights=cost[placed], minlength=parts)
    room = np.maximum(1 - load / capacity, 0)
    score = votes.reshape(count, parts) * room + 1e-3 * room  # breaks ties by the emptiest part
    owner[begin:end] = score.argmax(1)
    load += np.bincount(owner[begin:end], weights=cost, minlength=parts)


def _both_ways(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    source, target = edge_index.cpu().numpy()
    proper = source != target
    source, target = source[proper], target[proper]
    one_way = sp.csr_matrix(
        (np.ones(len(source), np.int8), (target, source)), shape=(num_nodes, num_nodes)
    )
    near = (one_way + one_way.T).tocsr()
    near.sum_duplicates()
    near.sort_indices()
    return near


def _metis(near: sp.csr_matrix, work: np.ndarray, parts: int) -> np.ndarray:
    import pymetis

    _, found = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(near.indptr, near.indices),
        vweights=work.tolist(),
        options=pymetis.Options(seed=0),
    )
    return np.asarray(found)


def _stretches(near: sp.csr_matrix, work: np.ndarray, parts: int) -> np.ndarray:
    order = reverse_cuthill_mckee(near, symmetric_mode=True)
    done = np.cumsum(work[order])
    found = np.empty(len(order), np.int64)
    found[order] = np.minimum((done - work[order] / 2) * parts // done[-1], parts - 1)
    return found
