"""Converts arrays of scikit-learn users to graphs and labels for the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data import NodeDataset, Split
from deepgat.data.feature_matrix import csr_from_scipy
from deepgat.data.splits import draw_masks
from deepgat.errors import UserError

UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class Labels:
    """The classes, and the class of every row."""

    classes: np.ndarray
    """The classes in ascending order; 0 … C−1 for an indicator matrix."""
    codes: Tensor
    """[n] places in ``classes``, −1 where unlabelled; or [n, C] 0/1, rows of 0 where unlabelled."""
    known: Tensor
    """[n] bool."""

    @property
    def multi_label(self) -> bool:
        return self.codes.dim() == 2

    def only(self, rows: Tensor) -> Labels:
        """The same classes, with the labels of some rows [n] bool alone."""
        known = self.known & rows
        if not known.any():
            raise UserError(
                "sample_weight is zero for every labelled row: at least one must weigh more"
            )
        codes = self.codes.clone()
        codes[~known] = 0 if self.multi_label else UNLABELLED
        return Labels(self.classes, codes, known)


def read_labels(y: Any) -> Labels:
    """Labels of nodes: −1, NaN or None mean "unlabelled"; a row of −1 or NaN in a matrix."""
    if sp.issparse(y):
        y = y.toarray()
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] > 1:
        return _read_indicator(values)
    values = column_or_1d(values, warn=True)
    if values.dtype.kind == "c":
        raise UserError("y holds complex numbers: expected classes")
    known = np.array([v is not None and v == v and v != UNLABELLED for v in values], dtype=bool)
    if not known.any():
        raise UserError("y labels no node: at least two nodes need a class other than -1")
    given = values[known]
    if values.dtype.kind == "O":
        given = np.array(given.tolist())  # texts, or numbers that None had made objects of
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise UserError("y holds infinity: expected classes")
    check_classification_targets(given)
    classes, codes = np.unique(given, return_inverse=True)
    found = np.full(len(values), UNLABELLED, dtype=np.int64)
    found[known] = codes
    return Labels(classes, torch.from_numpy(found), torch.from_numpy(known))


def _read_indicator(values: np.ndarray) -> Labels:
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise UserError("y has several columns: expected an indicator matrix of 0 and 1") from error
    unknown = (np.isnan(numbers) | (numbers == UNLABELLED)).all(axis=1)
    if not np.isin(numbers[~unknown], (0, 1)).all():
        raise UserError(
            "y has several columns: expected 0 and 1, or a whole row of -1 for an unlabelled node"
        )
    if unknown.all():
        raise UserError("y labels no node: at least two rows need 0 and 1 instead of -1")
    codes = torch.from_numpy(np.where(unknown[:, None], 0.0, numbers)).float()
    return Labels(np.arange(values.shape[1]), codes, torch.from_numpy(~unknown))


def as_scipy(x: Any) -> Any:
    """Torch's sparse layouts as scipy's, tensors as arrays; everything else as it is."""
    if not isinstance(x, Tensor):
        return x
    x = x.detach().cpu()
    if x.layout == torch.strided:
        return x.numpy()
    x = x.to_sparse_csr()
    parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return sp.csr_matrix(parts, shape=tuple(x.shape))


def as_tensor(x: Any) -> Tensor:
    """A checked array, dense or scipy's sparse, as float32 features."""
    return csr_from_scipy(x) if sp.issparse(x) else torch.from_numpy(x.astype(np.float32))


def read_weighted_edges(edge_index: Any, edge_weight: Any, num_nodes: int) -> Data:
    """A graph's ``edge_index`` [2, e] and, where the edges do not all weigh 1, ``edge_weight`` [e].

    From PyG's form, or from a square scipy adjacency (row: source), whose values are the weights;
    None: no edges. An edge of weight 0 is none.
    """
    if sp.issparse(edge_index):
        if edge_weight is not None:
            raise UserError(
                "edge_weight is given, but edge_index is a sparse adjacency, whose values are the "
                "weights: leave edge_weight out"
            )
        if edge_index.shape != (num_nodes, num_nodes):
            raise UserError(
                f"edge_index is a sparse matrix of shape {edge_index.shape}: expected the "
                f"adjacency of the {num_nodes} nodes of X"
            )
        matrix = edge_index.tocoo()
        edge_index, edge_weight = np.stack([matrix.row, matrix.col]), matrix.data
    pairs = np.asarray([] if edge_index is None else as_scipy(edge_index))
    if pairs.size == 0:
        pairs = np.empty((2, 0), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[0] != 2 or pairs.dtype.kind not in "iu":
        raise UserError(
            f"edge_index has shape {list(pairs.shape)} and type {pairs.dtype}: expected whole "
            "numbers [2, number of edges], sources in row 0 and targets in row 1"
        )
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < num_nodes:
        raise UserError(
            f"edge_index names nodes {pairs.min()} to {pairs.max()} but X has {num_nodes} rows: "
            "give every node a row; for cross validation give the graph to the estimator, "
            "DeepGATClassifier(graph=(X, edge_index)), and node numbers in place of X"
        )
    edges = torch.from_numpy(pairs.astype(np.int64))
    if edge_weight is None:
        return Data(edge_index=edges)
    weight = non_negative("edge_weight", edge_weight, edges.size(1), "edge")
    if (weight == 1).all():
        return Data(edge_index=edges)
    there = torch.from_numpy(weight > 0)
    return Data(edge_index=edges[:, there], edge_weight=torch.from_numpy(weight).float()[there])


def non_negative(name: str, given: Any, count: int, of: str) -> np.ndarray:
    """Weights [count] ≥ 0."""
    try:
        weight = np.asarray(as_scipy(given), dtype=np.float64)
    except (TypeError, ValueError):
        weight = np.array(np.nan)
    if weight.shape != (count,) or not np.isfinite(weight).all() or (weight < 0).any():
        raise UserError(
            f"{name} has shape {list(weight.shape)}: expected one finite number of at least 0 per "
            f"{of}, {count} in all"
        )
    return weight


def read_graph(graph: Any) -> Data:
    """The ``graph`` parameter: a PyG graph, a dataset of one, or (X, edge_index[, edge_weight]).

    The features of edges are those of a dataset alone, whose form is known.
    """
    features = None
    if isinstance(graph, NodeDataset):
        graph = graph.graph
        features = graph.edge_attr
    if isinstance(graph, Data):
        if graph.x is None:
            raise UserError("graph has no features: set its x")
        graph = (graph.x, graph.edge_index, graph.edge_weight)
    if not isinstance(graph, tuple | list) or len(graph) not in (2, 3):
        raise UserError(
            f"graph is a {type(graph).__name__}: expected (X, edge_index), (X, edge_index, "
            "edge_weight), a PyG graph or what load_graph returns"
        )
    x = check_array(as_scipy(graph[0]), accept_sparse="csr", dtype=np.float32, input_name="graph X")
    made = read_weighted_edges(graph[1], graph[2] if len(graph) == 3 else None, x.shape[0])
    made.x = as_tensor(x)
    if features is not None:  # of every edge: none of a dataset weighs 0
        made.edge_attr = features
    return made


def read_nodes(X: Any, num_nodes: int) -> Tensor:
    """Node numbers [k], from [k] or [k, 1], where the estimator holds the graph."""
    nodes = np.asarray(as_scipy(X))
    nodes = nodes[:, 0] if nodes.ndim == 2 and nodes.shape[1] == 1 else nodes
    if nodes.ndim != 1 or nodes.dtype.kind not in "iu":
        raise UserError(
            f"X has shape {list(nodes.shape)} and type {nodes.dtype}, but the estimator holds the "
            "graph: expected node numbers, such as np.flatnonzero(y != -1)"
        )
    if nodes.size and not 0 <= nodes.min() <= nodes.max() < num_nodes:
        raise UserError(
            f"X names nodes {nodes.min()} to {nodes.max()}, but the graph has {num_nodes}: node "
            f"numbers run from 0 to {num_nodes - 1}"
        )
    return torch.from_numpy(nodes.astype(np.int64))


def validation_rows(labels: Labels, given: Any, fraction: float, seed: int) -> Tensor:
    """[n] bool: the labelled rows that early stopping looks at, given or drawn by class."""
    known = labels.known
    count = int(known.sum())
    if given is not None:
        return _given_rows(given, known)
    if isinstance(fraction, bool) or not 0 < fraction < 1:
        raise UserError(f"validation_fraction is {fraction}: expected a share between 0 and 1")
    if count < 2:
        raise UserError(
            f"n_samples={count} labelled: expected at least two, as early stopping needs a "
            "validation node besides the training nodes"
        )
    share = min(max(fraction, 1 / count), 1 - 1 / count)
    split = Split("fractions", seed, 1 - share, share)
    _, drawn, rest = draw_masks(split, labels.codes[known])
    rows = torch.zeros(len(known), dtype=torch.bool)
    rows[known] = drawn | rest
    return rows


def _given_rows(given: Any, known: Tensor) -> Tensor:
    mask = np.zeros(len(known), dtype=bool)
    try:
        mask[as_scipy(given)] = True
    except IndexError as error:
        raise UserError(
            f"validation names other rows than those of y: expected a mask with an entry per row "
            f"({len(known)}), or the numbers of rows"
        ) from error
    rows = torch.from_numpy(mask)
    if bool((rows & ~known).any()) or not bool(rows.any()) or not bool((known & ~rows).any()):
        raise UserError(
            "validation must name some labelled rows of y, and leave some labelled ones to train on"
        )
    return rows
