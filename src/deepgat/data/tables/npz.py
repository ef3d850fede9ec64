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
    check_finite,
    open_npz,
    sparse_matrix,
)
from deepgat.data.tables.column_features import SPARSE_BELOW
from deepgat.data.tables.columns import Tell
from deepgat.data.tables.convert import id_text
from deepgat.data.tables.edges import Given, merged
from deepgat.data.tables.graph import Labels, OwnGraph, own_graph
from deepgat.data.tables.opening import shown
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.data.transforms import MASKS
from deepgat.errors import UserError


def read_npz(path: Path, options: ReadOptions, name: str, title: str) -> OwnGraph:
    """The graph of a file, in memory."""
    found = NpzGraph.of(open_npz(path), shown(path), options)
    edges = merged(found.edges(found.n), found.n, options.undirected)
    x = None
    if found.attributes is not None:
        rows = found.rows(0, found.n)
        x = csr_from_scipy(rows) if sp.issparse(rows) else torch.from_numpy(rows)
    return own_graph(
        name, title, found.ids, None, edges, options, x=x, labels=found.labels, masks=found.masks
    )


@dataclass(frozen=True, eq=False)
class NpzGraph:
    """The arrays of a file, checked; they may be memory-mapped, since none is copied whole."""

    file: str
    n: int
    adjacency: sp.csr_matrix
    attributes: Any
    """[n, d], a CSR matrix or an array; None if the file has no features."""
    ids: list[str]
    labels: Labels
    masks: torch.Tensor | None
    """[3, n] bool: train, val, test."""
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
        adjacency = sparse_matrix(arrays, "adj", file)
        n = adjacency.shape[0]
        if n != adjacency.shape[1]:
            raise UserError(f"{file}: adj_shape is {n} × {adjacency.shape[1]}; expected a square")
        ids = [str(number) for number in range(n)]
        if "node_names" in arrays:
            ids = [id_text(value) for value in arrays["node_names"]().tolist()]
            _one_per_node(file, "node_names", len(ids), n)
            if len(set(ids)) < n:
                raise UserError(f"{file}: node_names has a name twice; names must be unique")
        dropped = {name.lower() for name in listed(options.drop)}
        weighted = options.weight.lower() not in dropped and _has_weights(adjacency, file)
        attributes, labels = _attributes(arrays, file, n), _labels(arrays, file, n)
        masks = _masks(arrays, file, n)
        return NpzGraph(file, n, adjacency, attributes, ids, labels, masks, weighted)

    @property
    def width(self) -> int:
        """d."""
        return 0 if self.attributes is None else self.attributes.shape[1]

    @property
    def sparse(self) -> bool:
        """Whether the features stay sparse."""
        if not sp.issparse(self.attributes):
            return False
        return self.attributes.nnz < SPARSE_BELOW * max(self.n * self.width, 1)

    def rows(self, begin: int, end: int) -> Any:
        """The features [end − begin, d] float32, dense or CSR."""
        rows = self.attributes[begin:end]
        if not sp.issparse(rows):
            return rows.astype(np.float32)
        rows = rows.astype(np.float64)
        return canonical_rows(rows) if self.sparse else rows.toarray().astype(np.float32)

    def edges(self, rows: int, tell: Tell | None = None) -> Iterator[Given]:
        """The edges, ``rows`` sources at a time."""
        for begin in range(0, max(self.n, 1), max(rows, 1)):
            pairs = self.adjacency[begin : begin + rows].astype(np.float64).tocoo()
            proper = pairs.data != 0
            yield Given(
                pairs.row[proper].astype(np.int64) + begin,
                pairs.col[proper].astype(np.int64),
                pairs.data[proper] if self.weighted else None,
            )
            if tell is not None:
                tell(min(1.0, (begin + rows) / max(self.n, 1)))


def _has_weights(adjacency: sp.csr_matrix, file: str) -> bool:
    plain = True
    for begin in range(0, len(adjacency.data), CHECKED):
        weight = np.asarray(adjacency.data[begin : begin + CHECKED])
        if (weight < 0).any():
            raise UserError(f"{file}: adj_data holds a negative weight; weights must be 0 or more")
        plain = plain and bool(((weight == 1) | (weight == 0)).all())
    return not plain


def _attributes(arrays: Arrays, file: str, n: int) -> sp.csr_matrix | np.ndarray | None:
    if "attr_data" in arrays:
        attributes = sparse_matrix(arrays, "attr", file)
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


def _masks(arrays: Arrays, file: str, n: int) -> torch.Tensor | None:
    """[3, n] bool, from masks or from lists of node numbers."""
    masks = torch.zeros(len(MASKS), n, dtype=torch.bool)
    found = False
    for mask, name in zip(masks, MASKS, strict=True):
        for key in (name, f"idx_{name.removesuffix('_mask')}"):
            if key not in arrays:
                continue
            chosen = arrays[key]()
            if chosen.ndim != 1 or (chosen.dtype == bool and len(chosen) != n):
                raise UserError(f"{file}: {key} must have one entry per node")
            if chosen.dtype != bool and (
                not np.issubdtype(chosen.dtype, np.integer)
                or (len(chosen) and not 0 <= chosen.min() <= chosen.max() < n)
            ):
                raise UserError(f"{file}: {key} must hold node numbers from 0 to {n - 1}")
            if chosen.dtype != bool:  # to torch, numbers of 8 bits without sign are a mask
                chosen = chosen.astype(np.int64)
            if bool(masks.any(0)[torch.tensor(chosen)].any()):
                raise UserError(f"{file}: {key} holds a node that is in another part too")
            mask[torch.tensor(chosen)] = True
            found = True
    return masks if found else None


def _labels(arrays: Arrays, file: str, n: int) -> Labels:
    """Classes [n] with −1 for "unlabelled", by name if the file has names; or labels [n, C]."""
    if "labels" not in arrays:
        return Labels.none(n)
    labels = arrays["labels"]()
    _one_per_node(file, "labels", len(labels) if labels.ndim else 0, n)
    names: tuple[str, ...] = ()

    def place(row: int) -> str:
        return f"{file}, row {row + 1} of labels"

    if "class_names" in arrays:
        names = tuple(id_text(name) for name in np.atleast_1d(arrays["class_names"]()).tolist())
    if np.iscomplexobj(labels):
        raise UserError(f"{file}: labels holds complex numbers; expected a class per node")
    if labels.ndim == 2:
        return Labels.several(np.asarray(labels), file, names)
    if labels.ndim == 1 and labels.dtype.kind in "US":
        known, codes = np.unique(labels, return_inverse=True)
        names = tuple(id_text(text).strip() for text in known.tolist())
        return Labels.of_codes(np.where(np.array(names)[codes] == "", -1, codes), names, place)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.number):
        raise UserError(f"{file}: labels holds {labels.dtype} values; expected a class per node")
    if not np.isfinite(labels).all() or (labels != np.round(labels)).any():
        raise UserError(f"{file}: labels must be whole numbers, with -1 for unlabelled")
    whole = labels.astype(np.int64)
    if whole.min(initial=0) < -1:
        raise UserError(f"{file}: labels holds {whole.min()}; expected 0 or more, -1: unlabelled")
    if names and whole.max(initial=-1) >= len(names):
        raise UserError(
            f"{file}: labels goes up to class {whole.max()}, but class_names has {len(names)} "
            "names; expected one for each, from class 0 on"
        )
    if not names:
        classes = np.unique(whole[whole >= 0])
        names = tuple(map(str, classes.tolist()))
        whole = np.where(whole < 0, -1, np.searchsorted(classes, whole))
    return Labels.of_codes(whole, names, place)


def _one_per_node(file: str, what: str, count: int, n: int) -> None:
    if count != n:
        raise UserError(f"{file}: {what} has {count} rows for {n} nodes; expected one per node")
