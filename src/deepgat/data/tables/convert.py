"""Converts graphs in memory: NetworkX, pandas, PyTorch Geometric."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from deepgat.data.tables.columns import Column, Columns, check_names, number_text
from deepgat.data.tables.edges import edges_of, merged
from deepgat.data.tables.graph import OwnGraph, own_graph
from deepgat.data.tables.ids import ids_of
from deepgat.data.tables.options import ReadOptions
from deepgat.data.tables.vocabulary import Vocabulary
from deepgat.errors import UserError

MASKS = ("train_mask", "val_mask", "test_mask")
MOST_CLASSES = 10**6


def id_text(value: Any) -> str:
    """An id or a label as text: 3, not 3.0."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
        return number_text(number) if np.isfinite(number) and abs(number) < 2**53 else str(value)
    return str(value)


def column_of(name: str, values: Sequence[Any], where: str) -> Column:
    """A column of numbers if all values are numbers (None and NaN are gaps), else of texts."""
    plain = [None if _is_gap(value) else value for value in values]
    if all(value is None or _is_number(value) for value in plain):
        try:
            found = [np.nan if value is None else float(value) for value in plain]
        except OverflowError:
            raise UserError(
                f"{where}, column {name!r}: a whole number is too large; expected up to 3e38"
            ) from None
        return Column(name, numbers=np.array(found, dtype=np.float64))
    known: dict[str, int] = {}
    codes = np.empty(len(plain), dtype=np.int32)
    for row, value in enumerate(plain):
        if value is not None and not isinstance(value, str | bool | numbers.Real | bytes):
            value = str(value)
        text = "" if value is None else id_text(value).strip()
        codes[row] = known.setdefault(text, len(known)) if text else -1
    return Column(name, codes=codes, texts=list(known))


def graph_from_networkx(
    graph: Any, options: ReadOptions, name: str, title: str, where: str
) -> OwnGraph:
    """Node and edge attributes become columns; a list of numbers becomes several columns."""
    nodes = list(graph.nodes)
    ids = [id_text(node) for node in nodes]
    if len(set(ids)) < len(ids):
        raise UserError(f"{where}: two nodes have the same id as text; rename one")
    place = {node: number for number, node in enumerate(nodes)}
    rows = [dict(graph.nodes[node]) for node in nodes]
    table = Columns(where, len(nodes), _attribute_columns(rows, where, options.id), _of(ids))
    pairs = list(graph.edges(data=True))
    ends = [(place[u], place[v]) for u, v, _ in pairs]
    index = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    edge_rows = [dict(attributes) for _, _, attributes in pairs]
    named = [f"{ids[u]} – {ids[v]}" for u, v in ends]
    edge_columns = _attribute_columns(edge_rows, where, "id")
    edge_table = Columns(where, len(pairs), edge_columns, lambda row: f"edge {named[row][:60]}")
    if not graph.is_directed() and not options.undirected:  # add the reverse of every edge
        proper = index[0] != index[1]
        again = np.concatenate([np.arange(len(pairs)), np.flatnonzero(proper)])
        doubled = [_rows_of(column, again) for column in edge_columns]
        index = np.concatenate([index, index[::-1][:, proper]], axis=1)
        edge_table = Columns(where, index.shape[1], doubled)
    edges = edges_of(edge_table, index[0], index[1], len(nodes), options)
    return own_graph(name, title, ids, table, edges, options)


def _rows_of(column: Column, rows: np.ndarray) -> Column:
    numbers = None if column.numbers is None else column.numbers[rows]
    codes = None if column.codes is None else column.codes[rows]
    return Column(column.name, numbers, codes, column.texts)


def graph_from_pandas(nodes: Any, edges: Any, options: ReadOptions) -> OwnGraph:
    """Two data frames with the columns of nodes.csv and edges.csv."""
    node_table, edge_table = _frame(nodes, "nodes"), _frame(edges, "edges")
    for table, wanted in (
        (node_table, (options.id,)),
        (edge_table, (options.source, options.target)),
    ):
        for column in wanted:
            if table.find(column) is None:
                found = ", ".join(item.name for item in table.columns[:8])
                raise UserError(
                    f"{table.name} has no column {column!r} among {found}: rename one, or name the "
                    "column in the options"
                )
    names = Vocabulary()
    ids_of(node_table, options.id, names, new=True)
    ends = [
        ids_of(edge_table, column, names, known=True).codes
        for column in (options.source, options.target)
    ]
    assert ends[0] is not None
    assert ends[1] is not None
    made = edges_of(edge_table, ends[0], ends[1], len(names), options)
    return own_graph("", "the data frames", names.texts(), node_table, made, options)


def graph_from_pyg(data: Any, options: ReadOptions) -> OwnGraph:
    """A Data object with x, edge_index, y and optionally masks, edge_weight and edge_attr."""
    if not isinstance(data, Data) or data.edge_index is None:
        raise UserError(
            f"from_pyg was given {type(data).__name__}: expected a torch_geometric Data with an "
            "edge_index"
        )
    n = int(data.num_nodes or 0)
    index = data.edge_index.detach().cpu().numpy()
    if index.ndim != 2 or index.shape[0] != 2 or not np.issubdtype(index.dtype, np.integer):
        raise UserError(f"edge_index has shape {list(index.shape)}: expected integers [2, edges]")
    if index.size and not 0 <= index.min() <= index.max() < n:
        raise UserError(f"edge_index names node {index.max()} but there are {n} nodes")
    weight = _edge_values(data, "edge_weight", index.shape[1])
    features = _edge_values(data, "edge_attr", index.shape[1])
    if weight is not None and (weight.ndim != 1 or (weight < 0).any()):
        raise UserError("edge_weight must be one number per edge, 0 or more")
    if features is not None:
        features = features.reshape(len(features), -1)
    names = () if features is None else tuple(f"edge_attr{i}" for i in range(features.shape[1]))
    edges = merged(
        index[0].astype(np.int64), index[1].astype(np.int64), n, weight, features, names,
        options.undirected,
    )  # fmt: skip
    x = None
    if data.x is not None:
        x = data.x.detach().cpu()
        x = x.float() if x.layout is not torch.strided else x.float().reshape(n, -1)
        values = x if x.layout is torch.strided else x.values()
        if not bool(values.isfinite().all()):
            raise UserError("x holds a number that is missing or infinite: expected finite numbers")
    columns = _pyg_columns(data, n, options)
    ids = [str(number) for number in range(n)]
    return own_graph("", "the graph", ids, Columns("the graph", n, columns), edges, options, x=x)


def _pyg_columns(data: Any, n: int, options: ReadOptions) -> list[Column]:
    columns = []
    y = data.y
    if y is not None:
        y = y.detach().cpu()
        if len(y) != n:
            raise UserError(f"y has {len(y)} rows for {n} nodes: expected one per node")
        if y.dim() == 2 and y.shape[1] > 1:
            columns.append(several_labels(options.label, y.numpy(), "y"))
        else:
            columns.append(_classes(options.label, y.view(-1)))
    if all(getattr(data, key, None) is not None for key in MASKS):
        masks = [getattr(data, key).detach().cpu() for key in MASKS]
        if any(mask.shape != (n,) or mask.dtype != torch.bool for mask in masks):
            raise UserError("the masks must be booleans, one per node: pick one split of several")
        together = torch.stack(masks)
        if bool((together.sum(0) > 1).any()):
            raise UserError("a node is in two of train_mask, val_mask and test_mask")
        part = torch.where(together.any(0), together.int().argmax(0), -1).int().numpy()
        columns.append(Column(options.part, codes=part, texts=["train", "val", "test"]))
    return columns


def _classes(title: str, y: torch.Tensor) -> Column:
    """Class numbers [n], −1 for "unlabelled"."""
    whole = y.long()
    if y.is_floating_point() and not torch.equal(whole.to(y.dtype), y):
        raise UserError("y must hold whole numbers, one class per node, with -1 for unlabelled")
    count = int(whole.max()) + 1 if len(whole) else 0
    if count > MOST_CLASSES or (len(whole) and int(whole.min()) < -1):
        raise UserError(
            f"y holds classes from {int(whole.min())} to {count - 1}: expected numbers from 0 on, "
            "with -1 for unlabelled"
        )
    texts = [str(number) for number in range(count)]
    return Column(title, codes=whole.int().numpy(), texts=texts)


def several_labels(title: str, y: np.ndarray, where: str, names: Sequence[str] = ()) -> Column:
    """Labels [n, C] of 0 and 1 as a column; a node without any is unlabelled."""
    if not np.isin(y, (0, 1)).all():
        raise UserError(f"{where}: labels of two dimensions must be 0 or 1, a column per label")
    titles = list(names) or [str(number) for number in range(y.shape[1])]
    if len(titles) != y.shape[1]:
        raise UserError(f"{where}: {len(titles)} class_names for {y.shape[1]} columns of labels")
    if any(";" in name for name in titles):
        raise UserError(f"{where}: the name of a label contains a semicolon; rename it")
    rows = [";".join(titles[i] for i in np.flatnonzero(row)) for row in y]
    column = column_of(title, [row or None for row in rows], where).as_texts()
    return Column(title, codes=column.codes, texts=column.texts, labels=titles)


def _edge_values(data: Any, key: str, count: int) -> np.ndarray | None:
    values = getattr(data, key, None)
    if values is None:
        return None
    found: np.ndarray = values.detach().cpu().double().numpy()
    if len(found) != count:
        raise UserError(f"{key} has {len(found)} rows for {count} edges: expected one per edge")
    if not np.isfinite(found).all():
        raise UserError(f"{key} holds a number that is missing or infinite")
    return found


def _frame(frame: Any, name: str) -> Columns:
    if not hasattr(frame, "columns") or not hasattr(frame, "__len__"):
        raise UserError(f"{name} is {type(frame).__name__}: expected a pandas DataFrame")
    titles = [str(title) for title in frame.columns]
    check_names(name, titles)
    columns = []
    for title, key in zip(titles, frame.columns, strict=True):
        series = frame[key]
        kind = getattr(series.dtype, "kind", "O")
        if kind in "iufb" and isinstance(series.dtype, np.dtype):
            columns.append(Column(title, numbers=series.to_numpy().astype(np.float64)))
        else:
            columns.append(column_of(title, series.tolist(), name))
    return Columns(name, len(frame), columns)


def _attribute_columns(rows: list[dict[Any, Any]], where: str, id_name: str) -> list[Column]:
    """One column per attribute; lists of numbers become name0, name1, …"""
    titles: dict[str, None] = {}
    spread: dict[str, int] = {}
    for row in rows:
        for key, value in row.items():
            titles.setdefault(str(key))
            if not isinstance(value, list | tuple | np.ndarray):
                continue
            if spread.setdefault(str(key), len(value)) != len(value):
                raise UserError(f"{where}, attribute {str(key)!r}: lists have different lengths")
    plain = [{str(key): value for key, value in row.items()} for row in rows]
    columns = []
    for title in titles:
        if title.lower() == id_name.lower():
            continue
        values = [row.get(title) for row in plain]
        if title not in spread:
            columns.append(column_of(title, values, where))
            continue
        for part in range(spread[title]):
            cells = [_part(value, part, where, title) for value in values]
            columns.append(column_of(f"{title}{part}", cells, where))
    check_names(where, [item.name for item in columns])
    return columns


def _part(value: Any, part: int, where: str, title: str) -> Any:
    if value is None:
        return None
    if not isinstance(value, list | tuple | np.ndarray):
        raise UserError(f"{where}, attribute {title!r}: some values are lists and some are not")
    return value[part]


def _of(ids: Sequence[str]) -> Any:
    return lambda row: f"node {ids[row][:40]!r}"


def _is_gap(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, float):
        return value != value
    return type(value).__name__ in ("NAType", "NaTType")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real)
