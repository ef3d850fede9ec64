"""The other files a graph may come in: Parquet, .npz, .npy, GraphML and GML."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
import torch
from torch import Tensor

from deepgat.data.features import csr_from_scipy
from deepgat.data.own.arrays import open_npz, read_npy, sparse_matrix
from deepgat.data.own.columns import Column, Columns, check_names
from deepgat.data.own.convert import column_of, graph_from_networkx, id_text, several_labels
from deepgat.data.own.edges import Edges, merged
from deepgat.data.own.graph import OwnGraph, own_graph
from deepgat.data.own.opening import opened, shown
from deepgat.data.own.options import ReadOptions
from deepgat.errors import UserError

SPARSE_BELOW = 0.1


def read_parquet(path: Path) -> Columns:
    """A table of a Parquet file; needs pyarrow."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(
            f"{shown(path)} is a Parquet file, which pyarrow reads: install it with pip install "
            "pyarrow, or save the table as CSV"
        ) from None
    name = shown(path)
    with opened(path) as file:
        try:
            table = parquet.read_table(file)
        except Exception as error:  # Arrow's errors have no common parent
            why = " ".join(str(error).split())[:120]
            raise UserError(f"{name} is not a whole Parquet file ({why}): save it again") from error
    check_names(name, table.column_names)
    columns = []
    for title in table.column_names:
        values = table.column(title)
        kind = str(values.type)
        if kind.startswith(("list", "struct", "map", "binary")):
            raise UserError(
                f"{name}, column {title!r}: it holds {kind.split('<')[0]} values; expected "
                "numbers or texts, one per cell"
            )
        columns.append(column_of(title, values.to_pylist(), name))
    return Columns(name, table.num_rows, columns)


def read_feature_array(path: Path) -> np.ndarray:
    """[n, d] doubles of a .npy file; row i belongs to the node whose id is i."""
    array = read_npy(path)
    numeric = np.issubdtype(array.dtype, np.number) and not np.iscomplexobj(array)
    if array.ndim != 2 or not (numeric or array.dtype == bool):
        raise UserError(
            f"{shown(path)} holds an array of {array.dtype} of {array.ndim} dimensions: expected "
            "numbers, one row per node"
        )
    return array.astype(np.float64)


def read_npz(path: Path, options: ReadOptions, name: str, title: str) -> OwnGraph:
    """The layout of the gnn-benchmark files: adj_*, attr_* (CSR parts, or attr_matrix), labels.

    Features are taken as they are. ``node_names``, ``class_names`` and the split masks or indices
    (train_mask or idx_train, …) are read where they are there.
    """
    file = shown(path)
    arrays = open_npz(path)
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
    x: Tensor | None = None
    if "attr_data" in arrays:
        attributes = sparse_matrix(arrays, "attr", file)
        _one_per_node(file, "attr_shape", attributes.shape[0], n)
        dense = attributes.nnz >= SPARSE_BELOW * max(attributes.shape[0] * attributes.shape[1], 1)
        x = (
            torch.from_numpy(attributes.toarray().astype(np.float32))
            if dense
            else csr_from_scipy(attributes)
        )
    elif "attr_matrix" in arrays:
        matrix = arrays["attr_matrix"]()
        if matrix.ndim != 2 or not np.issubdtype(matrix.dtype, np.number):
            raise UserError(f"{file}: attr_matrix must be numbers, one row per node")
        _one_per_node(file, "attr_matrix", len(matrix), n)
        if not np.isfinite(matrix).all() or np.abs(matrix).max(initial=0) > 3.4e38:
            raise UserError(f"{file}: attr_matrix holds a number that is missing or too large")
        x = torch.from_numpy(matrix.astype(np.float32))
    ids = [str(number) for number in range(n)]
    if "node_names" in arrays:
        ids = [id_text(value) for value in arrays["node_names"]().tolist()]
        _one_per_node(file, "node_names", len(ids), n)
        if len(set(ids)) < n:
            raise UserError(f"{file}: node_names has a name twice; give every node its own")
    columns = _npz_columns(file, arrays, n, options)
    table = Columns(file, n, columns)
    return own_graph(name, title, ids, table, _npz_edges(adjacency, file, options), options, x=x)


def _npz_edges(adjacency: Any, file: str, options: ReadOptions) -> Edges:
    pairs = adjacency.tocoo()
    weight = pairs.data
    if (weight < 0).any():
        raise UserError(f"{file}: adj_data holds a negative weight; weights must be 0 or more")
    proper = weight != 0
    plain = bool((weight[proper] == 1).all()) or options.weight in options.drop.split(",")
    source, target = (item[proper].astype(np.int64) for item in (pairs.row, pairs.col))
    weights = None if plain else weight[proper]
    return merged(source, target, adjacency.shape[0], weights, None, (), options.undirected)


def _npz_columns(file: str, arrays: Any, n: int, options: ReadOptions) -> list[Column]:
    columns = []
    if "labels" in arrays:
        labels = arrays["labels"]()
        _one_per_node(file, "labels", len(labels) if labels.ndim else 0, n)
        columns.append(_npz_labels(file, arrays, labels, options.label))
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
                    raise UserError(f"{file}: {key} must hold numbers of nodes from 0 to {n - 1}")
                if (part[chosen] >= 0).any():
                    raise UserError(f"{file}: {key} holds a node that another part has too")
                part[chosen] = number
                found = True
    if found:
        columns.append(Column(options.part, codes=part, texts=texts))
    return columns


def _npz_labels(file: str, arrays: Any, labels: np.ndarray, title: str) -> Column:
    """Classes [n] with −1 for "unlabelled", by their names where the file has them; or [n, C]."""
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
        raise UserError(f"{file}: {what} has {count} rows for {n} nodes; expected one each")


def read_networkx_file(path: Path, options: ReadOptions, name: str, title: str) -> OwnGraph:
    """GraphML or GML through NetworkX; a document type, and so any entity, is refused."""
    try:
        import networkx as nx
    except ImportError:
        raise UserError(
            f"{shown(path)} is read by NetworkX: install it with pip install networkx"
        ) from None
    graphml = path.suffix.lower() == ".graphml"
    if graphml:
        _refuse_entities(path)
    with opened(path) as file:
        try:
            graph = nx.read_graphml(file) if graphml else nx.read_gml(file)
        except Exception as error:  # its parsers raise whatever they stumble over
            why = " ".join(str(error).split())[:160] or type(error).__name__
            kind = "GraphML" if graphml else "GML"
            raise UserError(
                f"{shown(path)} is not {kind} that NetworkX can read ({why}): export it again"
            ) from error
    return graph_from_networkx(graph, options, name, title, shown(path))


def _refuse_entities(path: Path) -> None:
    """A document type can define entities that expand to gigabytes, or name other files."""
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise UserError(
            f"{shown(path)} has a document type (<!DOCTYPE …>), which can define entities: remove "
            "it; GraphML needs none"
        )

    parser.StartDoctypeDeclHandler = refuse
    with opened(path) as file:
        try:
            parser.ParseFile(file)
        except expat.ExpatError as error:
            raise UserError(
                f"{shown(path)}, line {error.lineno}: {expat.ErrorString(error.code)}; this is "
                "not whole GraphML"
            ) from error
        except (LookupError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"{shown(path)} is in an encoding that is not known: save it as UTF-8"
            ) from error
