"""Who owns which node: METIS where pymetis is installed, a bandwidth ordering elsewhere."""

from __future__ import annotations

import importlib.util

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from deepgat.errors import UserError, unknown_name

METHODS = ("auto", "metis", "ordering")
NODE_WORK = 16
"""What a node costs beside its edges, in edges: dense products and activations (measured on CS)."""
_FEW = 8
"""Nodes per part below which METIS has nothing to choose."""


def has_metis() -> bool:
    return importlib.util.find_spec("pymetis") is not None


def owners(edge_index: Tensor, num_nodes: int, parts: int, method: str = "auto") -> Tensor:
    """[n] int64: the part of every node, from 0; parts have about the same work to do.

    Args:
        edge_index: [2, e]; edges are taken in both directions.
        num_nodes: n.
        parts: how many; some may stay empty where there are few nodes.
        method: "metis" cuts few edges; "ordering" puts the nodes in reverse Cuthill–McKee order,
            a breadth-first one that keeps neighbours close, and cuts it into stretches; "auto" is
            METIS where pymetis is installed. The same input gives the same parts.
    """
    if method not in METHODS:
        raise unknown_name("way to partition", method, METHODS)
    if parts < 1:
        raise UserError(f"the number of parts is {parts}: expected 1 or more")
    if method == "metis" and not has_metis():
        raise UserError(
            "METIS is not there: install it (pip install 'deepgat[metis]'), or choose ordering"
        )
    if parts == 1 or num_nodes == 0:
        return torch.zeros(num_nodes, dtype=torch.long)
    near = _both_ways(edge_index, num_nodes)
    work = np.diff(near.indptr) + NODE_WORK
    few = num_nodes < _FEW * parts
    if method == "metis" or (method == "auto" and has_metis() and not few):
        found = _metis(near, work, parts)
    else:
        found = _stretches(near, work, parts)
    return torch.from_numpy(found.astype(np.int64))


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
