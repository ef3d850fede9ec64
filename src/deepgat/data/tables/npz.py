"""Reads the layout of the gnn-benchmark files: adj_*, attr_* (CSR, or attr_matrix), labels.

Features are not scaled. ``node_names``, ``class_names`` and split masks or indices (train_mask or
idx_train, …) are optional.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from deepgat.data.feature_matrix import canonical_rows, csr_from_scipy
from deepgat.data.tables.arrays import (
    CHECKED,
    Arrays,
    SparseParts,
    check_finite,
    open_npz,
    sparse_parts,
)
from deepgat.data.tables.column_features import SPARSE_BELOW
from deepgat.data.tables.columns import Column, Columns
from deepgat.data.tables.convert import column_of, id_text, several_labels
from deepgat.data.tables.edges import Given, merged
from deepgat.data.tables.graph import OwnGraph, own_graph
from deepgat.data.tables.opening import shown
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.errors import UserError


def read_npz(path: Path, options: ReadOptions, name: str, title: str) -> OwnGraph:
    """The graph of a file, in memory."""
    found = NpzGraph.of(open_npz(path), shown(path), options)
    (edges,) = found.edges(found.n)
    merged_edges = merged(
        edges.source, edges.target, found.n, edges.weight, None, (), options.undirected
    )
    x = None
    if found.attributes is not None:
        rows = found.rows(0, found.n)
        x = csr_from_scipy(rows) if sp.issparse(rows) else torch.from_numpy(rows)
    return own_graph(name, title, found.ids, found.table, merged_edges, options, x=x)


@dataclass(frozen=True, eq=False)
class NpzGraph:
    """The arrays of a file, checked; they may be memory-mapped, since none is copied whole."""

    file: str
    n: int
    adjacency: SparseParts
    attributes: SparseParts | np.ndarray | None
    """[n, d]."""
    ids: list[str]
    table: Columns
    """Labels and split."""
    weighted: bool
    """Whether edges have weights; False if all weights are 1 or the column is dropped."""

    @staticmethod
    def of(arrays: Arrays, file: str, options: ReadOptions) -> NpzGraph:
        if "adj_data" not in arrays:
            found = ", ".join(sorted(arrays)[:8]) or "nothing"
            raise UserError(
                f"{file} has no adj_data but {found}: expected adj_data, adj_indices, adj_indptr, "
                "adj_shape, the same for attr, and labels"
            )
        adjacency = sparse_parts(arrays, "adj", file)
        n = adjacency.shape[0]
        if n != adjacency.shape[1]:
            raise UserError(f"{file}: adj_shape is {n} × {adjacency.shape[1]}; expected a square")
        ids = [str(number) for number in range(n)]
        if "node_names" in arrays:
            ids = [id_text(value) for value in arrays["node_names"]().tolist()]
            _one_per_node(file, "node_names", len(ids), n)
            if len(set(ids)) < n:
                raise UserError(f"{file}: node_names has a name twice; names must be unique")
        table = Columns(file, n, _columns(file, arrays, n, options))
        dropped = {name.lower() for name in listed(options.drop)}
        weighted = options.weight.lower() not in dropped and _has_weights(adjacency, file)
        return NpzGraph(file, n, adjacency, _attributes(arrays, file, n), ids, table, weighted)

    @property
    def width(self) -> int:
        """d."""
        return 0 if self.attributes is None else self.attributes.shape[1]

    @property
    def sparse(self) -> bool:
        """Whether the features stay sparse."""
        if not isinstance(self.attributes, SparseParts):
            return False
        return len(self.attributes.data) < SPARSE_BELOW * max(self.n * self.width, 1)

    def rows(self, begin: int, end: int) -> Any:
        """The features [end − begin, d] float32, dense or CSR."""
        if isinstance(self.attributes, SparseParts):
            rows = self.attributes.rows(begin, end)
            return canonical_rows(rows) if self.sparse else rows.toarray().astype(np.float32)
        assert self.attributes is not None
        return self.attributes[begin:end].astype(np.float32)

    def edges(self, rows: int) -> Iterator[Given]:
        """The edges, ``rows`` sources at a time."""
        for begin in range(0, max(self.n, 1), max(rows, 1)):
            pairs = self.adjacency.rows(begin, min(begin + rows, self.n)).tocoo()
            proper = pairs.data != 0
            yield Given(
                pairs.row[proper].astype(np.int64) + begin,
                pairs.col[proper].astype(np.int64),
                pairs.data[proper] if self.weighted else None,
            )


def _has_weights(adjacency: SparseParts, file: str) -> bool:
    plain = True
    for begin in range(0, len(adjacency.data), CHECKED):
        weight = np.asarray(adjacency.data[begin : begin + CHECKED])
        if (weight < 0).any():
            raise UserError(f"{file}: adj_data holds a negative weight; weights must be 0 or more")
        plain = plain and bool(((weight == 1) | (weight == 0)).all())
    return not plain


def _attributes(arrays: Arrays, file: str, n: int) -> SparseParts | np.ndarray | None:
    if "attr_data" in arrays:
        attributes = sparse_parts(arrays, "attr", file)
        _one_per_node(file, "attr_shape", attributes.shape[0], n)
        return attributes
    if "attr_matrix" not in arrays:
        return None
    matrix = arrays["attr_matrix"]()
    if matrix.ndim != 2 or not np.issubdtype(matrix.dtype, np.number):
        raise UserError(f"{file}: attr_matrix must be numbers, one row per node")
    _one_per_node(file, "attr_matrix", len(matrix), n)
    step = max(1, CHECKED // max(1, matrix.shape[1]))
    for begin in range(0, n, step):
        check_finite(matrix[begin : begin + step], f"{file}: attr_matrix")
    return matrix


def _columns(file: str, arrays: Arrays, n: int, options: ReadOptions) -> list[Column]:
    columns = []
    if "labels" in arrays:
        labels = arrays["labels"]()
        _one_per_node(file, "labels", len(labels) if labels.ndim else 0, n)
        columns.append(_labels(file, arrays, labels, options.label))
    texts = ["train", "val", "test"]
    part = np.full(n, -1, dtype=np.int32)
    found = False
    for number, text in enumerate(texts):
        for key in (f"{text}_mask", f"idx_{text}"):
            if key in arrays:
                chosen = arrays[key]()
                if chosen.ndim != 1 or (chosen.dtype == bool and len(chosen) != n):
                    raise UserError(f"{file}: {key} must have one entry per node")
                if chosen.dtype != bool and (
                    not np.issubdtype(chosen.dtype, np.integer)
                    or (len(chosen) and not 0 <= chosen.min() <= chosen.max() < n)
                ):
                    raise UserError(f"{file}: {key} must hold node numbers from 0 to {n - 1}")
                if (part[chosen] >= 0).any():
                    raise UserError(f"{file}: {key} holds a node that is in another part too")
                part[chosen] = number
                found = True
    if found:
        columns.append(Column(options.part, codes=part, texts=texts))
    return columns


def _labels(file: str, arrays: Arrays, labels: np.ndarray, title: str) -> Column:
    """Classes [n] with −1 for "unlabelled", by name if the file has names; or labels [n, C]."""
    names = None
    if "class_names" in arrays:
        names = [id_text(value) for value in np.atleast_1d(arrays["class_names"]()).tolist()]
    if labels.ndim == 2:
        return several_labels(title, labels, file, names or ())
    if labels.dtype.kind in "US":
        return column_of(title, labels.tolist(), file)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.number):
        raise UserError(f"{file}: labels holds {labels.dtype} values; expected a class per node")
    if not np.isfinite(labels).all() or (labels != np.round(labels)).any():
        raise UserError(f"{file}: labels must be whole numbers, with -1 for unlabelled")
    whole = labels.astype(np.int64)
    if whole.min(initial=0) < -1:
        raise UserError(f"{file}: labels holds {whole.min()}; expected 0 or more, -1: unlabelled")
    if names is not None and whole.max(initial=-1) < len(names):
        return Column(title, codes=whole.astype(np.int32), texts=names)
    return column_of(title, [None if label < 0 else label for label in whole.tolist()], file)


def _one_per_node(file: str, what: str, count: int, n: int) -> None:
    if count != n:
        raise UserError(f"{file}: {what} has {count} rows for {n} nodes; expected one per node")
