"""Label propagation that excludes each node's own label: z = rm_diag(Â^k) Y.

N_v holds the sources of the edges into v, and v itself: self-loops of the input are removed,
repeated edges merged, and one self-loop per node added. Â_vu = 1/|N_v| for u ∈ N_v. Y [n, C] holds
the one-hot labels of the training nodes and zero rows elsewhere. rm_diag sets the diagonal to zero.

The row of a node is *exactly* independent of its own label: changing it leaves the row bitwise
equal. Subtracting diag(Â^k)·Y afterwards would leave rounding errors that depend on the label.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from deepgat.errors import UserError, unknown_name

FIRST_HOPS = ("zero", "neighbor-counts")
BLOCK_BYTES = 64 * 2**20
"""Limit on the size of temporary arrays; rows are computed in blocks."""


class Neighborhoods(NamedTuple):
    """The sets N_v as a matrix: row v has ones in the columns u ∈ N_v, in ascending order."""

    others: sp.csr_matrix
    """[n, n] without the diagonal."""
    closed: sp.csr_matrix
    """[n, n] with the full diagonal."""
    size: np.ndarray
    """|N_v| [n, 1], at least 1."""


def neighborhoods(edge_index: Tensor, num_nodes: int) -> Neighborhoods:
    """The closed neighbourhoods of ``edge_index`` [2, e] (source, target), duplicates merged."""
    source, target = edge_index.detach().cpu().numpy()
    proper = source != target
    shape = (num_nodes, num_nodes)
    ones = np.ones(int(proper.sum()))
    others = sp.csr_matrix((ones, (target[proper], source[proper])), shape=shape)
    others.sum_duplicates()
    others.data[:] = 1
    closed = sp.csr_matrix(others + sp.identity(num_nodes, format="csr"))
    closed.sort_indices()
    size = np.diff(closed.indptr).astype(np.float64)[:, None]
    return Neighborhoods(others, closed, size)


def power_without_diagonal(near: Neighborhoods, Y: np.ndarray, k: int) -> np.ndarray:
    """rm_diag(Â^k) Y [n, C] in double precision, for one-hot (or zero) rows Y [n, C].

    No power of Â is formed. For unlabelled nodes, whose row of Y is zero, k products with Y
    suffice. For labelled nodes, their own label is excluded explicitly. The cost is O(k·e·C) for
    k ≤ 2. For larger k, every labelled node needs k sparse products from its unit vector, in blocks
    of at most ``BLOCK_BYTES``.
    """
    if k == 0:
        return np.zeros_like(Y)
    if k == 1:
        return (near.others @ Y) / near.size
    labelled = np.flatnonzero(Y.any(axis=1))
    result = Y
    for _ in range(k):
        result = (near.closed @ result) / near.size
    if k == 2:
        result[labelled] = _two_hop_rows(near, Y, labelled)
    else:
        result[labelled] = _many_hop_rows(near, Y, labelled, k)
    return result


def _two_hop_rows(near: Neighborhoods, Y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    count = near.closed @ Y
    degree = np.diff(near.closed.indptr)[rows]
    per_block = max(1, BLOCK_BYTES // (8 * 3 * max(1, Y.shape[1])))
    result = np.empty((len(rows), Y.shape[1]))
    block_of = np.cumsum(degree) // per_block
    # Entry (v, u) is 2 where v ∈ N_u, too, else 1.
    flags = sp.csr_matrix(near.closed + near.closed.multiply(near.closed.T))
    for start, stop in runs(block_of):
        block = rows[start:stop]
        part = flags[block]
        u, mutual = part.indices, part.data == 2
        result[start:stop] = two_hop_rows(part.indptr, count[u], near.size[u], Y[block], mutual)
    return result


def two_hop_rows(
    ptr: np.ndarray, count: np.ndarray, size: np.ndarray, own: np.ndarray, mutual: np.ndarray
) -> np.ndarray:
    """Row v of rm_diag(Â²) Y = (1/|N_v|) Σ_{u ∈ N_v} (count_u − [v ∈ N_u] Y_v) / |N_u|, [k, C].

    count_u [C] counts the labels in N_u. Counts are integers, so subtracting v's own is exact.

    Args:
        ptr: [k + 1], where the list N_v of each of k nodes begins; m entries in all.
        count, size: count_u [m, C] and |N_u| [m, 1] of every entry.
        own: Y_v [k, C].
        mutual: [m] bool, whether v ∈ N_u.
    """
    degree = np.diff(ptr)
    terms = (count - np.repeat(own, degree, axis=0) * mutual[:, None]) / size
    edges = np.arange(len(terms))
    adder = sp.csr_matrix((np.ones(len(terms)), edges, ptr), shape=(len(degree), len(terms)))
    return (adder @ terms) / degree[:, None]


def _many_hop_rows(near: Neighborhoods, Y: np.ndarray, rows: np.ndarray, k: int) -> np.ndarray:
    """Row v of rm_diag(Â^k) Y from row v of Â^k = e_vᵀ Â ⋯ Â, its entry v set to zero."""
    step = sp.csr_matrix(near.closed.multiply(1 / near.size))
    per_block = max(1, BLOCK_BYTES // (2 * 16 * near.closed.shape[0]))
    result = np.empty((len(rows), Y.shape[1]))
    for start in range(0, len(rows), per_block):
        block = rows[start : start + per_block]
        power = sp.identity(near.closed.shape[0], format="csr")[block]
        for _ in range(k):
            power = power @ step
        own = power.indices == np.repeat(block, np.diff(power.indptr))
        power.data[own] = 0
        result[start : start + len(block)] = power @ Y
    return result


def runs(values: np.ndarray) -> list[tuple[int, int]]:
    """The (start, stop) of every run of equal consecutive values."""
    if not len(values):
        return []
    cuts = np.flatnonzero(np.diff(values)) + 1
    return list(zip([0, *cuts.tolist()], [*cuts.tolist(), len(values)], strict=True))


def one_hot_labels(y: Tensor, mask: Tensor, num_classes: int) -> Tensor:
    """Y [n, C] float64: one-hot labels of the labelled nodes in ``mask``, zero rows elsewhere.

    Labels outside the mask are not read.
    """
    if y.dim() != 1:
        raise UserError(
            "label propagation needs one class per node, but this data has several labels per "
            "node: turn label propagation off for it"
        )
    Y = torch.zeros(len(y), num_classes, dtype=torch.float64, device=y.device)
    index = (mask & (y >= 0)).nonzero().view(-1)
    if len(index) and int(y[index].max()) >= num_classes:
        raise UserError(
            f"a training node has the class {int(y[index].max())}, but there are only "
            f"{num_classes} classes, numbered from 0"
        )
    Y[index, y[index]] = 1
    return Y


def propagate_labels(
    edge_index: Tensor, y_one_hot: Tensor, num_nodes: int, hops: int, first: str = "zero"
) -> Tensor:
    """z_l = rm_diag(Â^(l−1)) Y for the layers l = 1..hops.

    Args:
        edge_index: [2, e], source and target of every edge.
        y_one_hot: Y [n, C], one-hot rows for training nodes and zero rows elsewhere.
        num_nodes: n.
        hops: number of layers.
        first: z_1. ``"zero"``: rm_diag(I) Y = 0, as in the paper. ``"neighbor-counts"``: the
            number of neighbours with each label, A Y without v itself, as in the authors' code,
            where Â^0 is A + I.

    Returns:
        [n, hops, C] float64, on the device of ``y_one_hot``.
    """
    if first not in FIRST_HOPS:
        raise unknown_name("first hop of the label propagation", first, FIRST_HOPS)
    if hops < 1:
        raise UserError(f"label propagation needs at least one hop, not {hops}")
    near = neighborhoods(edge_index, num_nodes)
    Y = y_one_hot.detach().cpu().numpy().astype(np.float64)
    z = np.empty((num_nodes, hops, Y.shape[1]))
    for layer in range(hops):
        z[:, layer] = power_without_diagonal(near, Y, layer)
    if first == "neighbor-counts":
        z[:, 0] = near.others @ Y
    return torch.from_numpy(z).to(y_one_hot.device)
