"""Converts graphs in memory: NetworkX, pandas, PyTorch Geometric."""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from deepgat.data.dataset import NodeDataset
from deepgat.data.splits import Split
from deepgat.data.tables.columns import Rows, Source, Tell, check_names, number_text
from deepgat.data.tables.edges import Given, given_edges, merged
from deepgat.data.tables.graph import Labels, OwnGraph, own_graph, to_dataset
from deepgat.data.tables.nodes import read_nodes
from deepgat.data.tables.options import ReadOptions
from deepgat.data.tables.vocabulary import Vocabulary
from deepgat.data.transforms import MASKS
from deepgat.errors import UserError

MOST_CLASSES = 10**6
TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


class MemoryTable:
    """Columns in memory, a :class:`~deepgat.data.tables.columns.Source`."""

    def __init__(
        self,
        name: str,
        columns: Mapping[str, Any],
        place: Callable[[int], str] = lambda row: f"row {row + 1}",
    ) -> None:
        self.name, self.header, self.columns, self.place = name, list(columns), columns, place

    def rows(
        self,
        texts: Collection[str],
        skip: Collection[str] = (),
        tell: Tell | None = None,
        size: int = 0,
    ) -> Iterator[Rows]:
        """See :meth:`~deepgat.data.tables.columns.Source.rows`."""
        columns = {
            name: typed(self.name, name, values, name.lower() in texts)
            for name, values in self.columns.items()
            if name.lower() not in skip
        }
        yield Rows(self.name, len(next(iter(columns.values()))), columns, self.place)


def typed(table: str, name: str, values: Any, text: bool) -> Any:
    """An Arrow array as doubles, or as texts if it holds none or ``text`` is asked for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise UserError(
            f"{table}, column {name!r}: it holds {str(kind).split('<')[0]} values; expected "
            "numbers or texts, one per cell"
        )
    if pa.types.is_temporal(kind):
        raise UserError(
            f"{table}, column {name!r}: it holds dates or times ({kind}); make numbers of them, "
            f"such as days since the first, or texts, or leave it out with drop={name}"
        )
    real = pa.types.is_floating(kind)
    if real or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        if not text:
            return pa.chunked_array([values.cast(pa.float64(), safe=False)])
        if real:
            found = values.cast(pa.float64()).to_pylist()
            values = pa.array([None if is_gap(v) else number_text(v) for v in found], pa.string())
        elif pa.types.is_boolean(kind):
            values = values.cast(pa.int8())
    texts = pc.utf8_trim_whitespace(values.cast(pa.string()).fill_null(""))
    return pa.chunked_array([texts])


def arrow_column(values: Sequence[Any], table: str, name: str) -> Any:
    """Python values as an Arrow array of numbers, if all are numbers or gaps, or of texts."""
    import pyarrow as pa

    plain = [None if is_gap(value) else value for value in values]
    if any(isinstance(value, TIMES) for value in plain):
        return pa.nulls(len(plain), pa.timestamp("s"))  # refused, unless the column is left out
    if any(isinstance(value, complex | np.complexfloating) for value in plain):
        raise UserError(f"{table}, column {name!r}: it holds complex numbers; expected real ones")
    if all(isinstance(value, numbers.Integral) for value in plain):
        try:
            return pa.array(list(map(int, values)), pa.int64())
        except OverflowError:
            pass
    if all(value is None or isinstance(value, numbers.Real) for value in plain):
        try:
            return pa.array([None if value is None else float(value) for value in plain])
        except OverflowError:
            raise UserError(
                f"{table}, column {name!r}: a whole number is too large; expected up to 3e38"
            ) from None
    return pa.array([None if value is None else id_text(value) for value in plain], pa.string())


def id_text(value: Any) -> str:
    """An id or a label as text: 3, not 3.0."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
        return number_text(number) if np.isfinite(number) and abs(number) < 2**53 else str(value)
    return str(value).encode(errors="replace").decode()


def is_gap(value: Any) -> bool:
    """Whether a value stands for "missing": None, NaN, or what pandas has for it."""
    if value is None:
        return True
    if isinstance(value, float):
        return value != value
    return type(value).__name__ in ("NAType", "NaTType")


def from_networkx(graph: Any, split: str | Split | None = None, **options: Any) -> NodeDataset:
    """A dataset from a NetworkX graph with attributes ``label``, ``split`` and features.

    Node and edge attributes correspond to the columns of ``nodes.csv`` and ``edges.csv``. An
    attribute that is a list of numbers becomes several features.

    Args:
        graph: any NetworkX graph; its node names become ``node_ids``.
        split: as in :func:`~deepgat.data.load_graph`.
        options: fields of :class:`ReadOptions`.
    """
    if not hasattr(graph, "is_directed"):
        raise UserError(f"from_networkx was given {type(graph).__name__}: expected a graph")
    chosen = ReadOptions.of(options)
    return to_dataset(graph_from_networkx(graph, chosen, "", "the graph", "the graph"), split)


def from_pandas(
    nodes: Any, edges: Any, split: str | Split | None = None, **options: Any
) -> NodeDataset:
    """A dataset from two data frames with the columns of ``nodes.csv`` and ``edges.csv``."""
    tables = frame_table(nodes, "nodes"), frame_table(edges, "edges")
    graph = graph_from_tables(*tables, ReadOptions.of(options), "", "the data frames")
    return to_dataset(graph, split)


def from_pyg(data: Any, split: str | Split | None = None, **options: Any) -> NodeDataset:
    """A dataset from a ``torch_geometric.data.Data``; its masks are the split "public".

    Features do not change, and classes are named by their numbers.
    """
    return to_dataset(graph_from_pyg(data, ReadOptions.of(options)), split)


def graph_from_networkx(
    graph: Any, options: ReadOptions, name: str, title: str, where: str
) -> OwnGraph:
    """Node and edge attributes become columns; a list of numbers becomes several columns."""
    import pyarrow as pa

    ids = {node: id_text(node) for node in graph.nodes}
    nodes = _attributes([graph.nodes[node] for node in ids], where, {options.id})
    nodes = {options.id: pa.array(list(ids.values()), pa.string()), **nodes}
    texts = list(ids.values())
    table = MemoryTable(where, nodes, lambda row: f"node {texts[row][:40]!r}")
    pairs = list(graph.edges(data=True))
    if not graph.is_directed() and not options.undirected:  # add the reverse of every edge
        pairs += [(v, u, attributes) for u, v, attributes in pairs if u != v]
    ends = [(ids[u], ids[v]) for u, v, _ in pairs]
    columns = {
        options.source: pa.array([source for source, _ in ends], pa.string()),
        options.target: pa.array([target for _, target in ends], pa.string()),
        **_attributes([row for _, _, row in pairs], where, {options.source, options.target, "id"}),
    }
    edges = MemoryTable(where, columns, lambda row: f"edge {' – '.join(ends[row])[:60]}")
    return graph_from_tables(table, edges, options, name, title)


def graph_from_tables(
    nodes: Source | None, edges: Source, options: ReadOptions, name: str, title: str
) -> OwnGraph:
    """The graph of two tables, or of a table of edges alone."""
    ids, table = (Vocabulary(), None) if nodes is None else read_nodes(nodes, options)
    pieces = list(given_edges(edges, ids, options, known=nodes is not None))
    made = merged(pieces, len(ids), options.undirected, edges.header)
    header = () if nodes is None else nodes.header
    return own_graph(name, title, ids.texts(), table, made, options, header=header)


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
    edges = merged([Given(index[0], index[1], weight, features, names)], n, options.undirected)
    x = None
    if data.x is not None:
        x = data.x.detach().cpu()
        if x.is_complex():
            raise UserError("x holds complex numbers: expected real ones")
        x = x.float() if x.layout is not torch.strided else x.float().reshape(n, -1)
        values = x if x.layout is torch.strided else x.values()
        if not bool(values.isfinite().all()):
            raise UserError("x holds a number that is missing or infinite: expected finite numbers")
    ids = [str(number) for number in range(n)]
    part = None
    if all(getattr(data, key, None) is not None for key in MASKS):
        masks = [getattr(data, key).detach().cpu() for key in MASKS]
        if any(mask.shape != (n,) or mask.dtype != torch.bool for mask in masks):
            raise UserError("the masks must be booleans, one per node: pick one split of several")
        part = torch.stack(masks)
        if bool((part.sum(0) > 1).any()):
            raise UserError("a node is in two of train_mask, val_mask and test_mask")
    labels = Labels.none(n) if data.y is None else _labels(data.y.detach().cpu(), n)
    return own_graph("", "the graph", ids, None, edges, options, x=x, labels=labels, masks=part)


def _labels(y: torch.Tensor, n: int) -> Labels:
    """Class numbers [n], −1 for "unlabelled"; or labels [n, C] of 0 and 1."""
    if len(y) != n:
        raise UserError(f"y has {len(y)} rows for {n} nodes: expected one per node")
    if y.dim() == 2 and y.shape[1] > 1:
        return Labels.several(y.numpy(), "y")
    y = y.reshape(-1)
    if y.is_complex():
        raise UserError("y holds complex numbers: expected classes from 0 on")
    whole = y.long()
    if y.is_floating_point() and not torch.equal(whole.to(y.dtype), y):
        raise UserError("y must hold whole numbers, one class per node, with -1 for unlabelled")
    count = int(whole.max()) + 1 if len(whole) else 0
    if count > MOST_CLASSES or (len(whole) and int(whole.min()) < -1):
        raise UserError(
            f"y holds classes from {int(whole.min())} to {count - 1}: expected numbers from 0 on, "
            "with -1 for unlabelled"
        )
    return Labels(whole, tuple(map(str, range(count))), (whole >= 0).numpy())


def _edge_values(data: Any, key: str, count: int) -> np.ndarray | None:
    values = getattr(data, key, None)
    if values is None:
        return None
    if values.is_complex():
        raise UserError(f"{key} holds complex numbers: expected real ones")
    found: np.ndarray = values.detach().cpu().double().numpy()
    if len(found) != count:
        raise UserError(f"{key} has {len(found)} rows for {count} edges: expected one per edge")
    if not np.isfinite(found).all():
        raise UserError(f"{key} holds a number that is missing or infinite")
    return found


def records_table(rows: Sequence[Mapping[str, Any]], name: str) -> MemoryTable:
    """A table from a dictionary per row; a list of numbers becomes several columns."""
    return MemoryTable(name, _attributes(rows, name, set()))


def frame_table(frame: Any, name: str) -> MemoryTable:
    """A table from a data frame."""
    import pyarrow as pa

    if not hasattr(frame, "columns") or not hasattr(frame, "__len__"):
        raise UserError(f"{name} is {type(frame).__name__}: expected a pandas DataFrame")
    titles = [str(title) for title in frame.columns]
    check_names(name, titles)
    columns = {}
    for title, key in zip(titles, frame.columns, strict=True):
        series = frame[key]
        if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iufb":
            columns[title] = pa.array(series.to_numpy())
        else:
            columns[title] = arrow_column(series.tolist(), name, title)
    return MemoryTable(name, columns)


def _attributes(rows: Sequence[Mapping[Any, Any]], where: str, taken: set[str]) -> dict[str, Any]:
    """One column per attribute that is not ``taken``; lists become name0, name1, …"""
    plain = [{str(key): value for key, value in row.items()} for row in rows]
    lowered = {name.lower() for name in taken}
    columns: dict[str, Any] = {}
    for title in dict.fromkeys(key for row in plain for key in row):
        if title.lower() in lowered:
            continue
        values = [row.get(title) for row in plain]
        filled = [value for value in values if value is not None]
        lengths = {len(v) if isinstance(v, list | tuple | np.ndarray) else -1 for v in filled}
        if len(lengths) > 1 and max(lengths) >= 0:
            raise UserError(
                f"{where}, attribute {title!r}: expected a list of the same length for every node "
                "or edge, or for none"
            )
        if lengths <= {-1}:
            columns[title] = arrow_column(values, where, title)
            continue
        for part in range(max(lengths)):
            cells = [None if value is None else value[part] for value in values]
            columns[f"{title}{part}"] = arrow_column(cells, where, f"{title}{part}")
    check_names(where, list(columns))
    return columns
