"""Reads a graph from a path: a folder of tables, or one file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from deepgat.data.tables.columns import Column, Columns
from deepgat.data.tables.delimited import Kind, Wanted, read_csv, read_edge_list, read_header
from deepgat.data.tables.edges import edges_of
from deepgat.data.tables.formats import read_feature_array, read_networkx_file, read_parquet
from deepgat.data.tables.graph import OwnGraph, own_graph
from deepgat.data.tables.ids import ids_of
from deepgat.data.tables.npz import read_npz
from deepgat.data.tables.opening import kind_of, opened, shown
from deepgat.data.tables.options import ReadOptions
from deepgat.data.tables.vocabulary import Vocabulary
from deepgat.errors import UserError

PathLike = str | os.PathLike[str]
TABLES = (".csv", ".parquet")
EDGE_LISTS = (".txt", ".edges", ".edgelist", ".el", ".tsv", ".csv")
EXPECTED = (
    "a folder with nodes.csv and edges.csv (or .parquet), a .npz, .graphml or .gml file, or an "
    "edge list (.txt, .edges, .tsv, .csv)"
)


def looks_like_a_path(name: str) -> bool:
    """Whether a text is a path rather than a dataset of the catalogue."""
    if "/" in name or os.sep in name or name in (".", ".."):
        return True
    return Path(name).suffix.lower() in READERS or os.path.lexists(name)


def read_graph(path: PathLike, options: ReadOptions) -> OwnGraph:
    """The graph in a folder or a file; a :class:`UserError` describes any mistake in it."""
    place = Path(path)
    kind = kind_of(place)
    if not kind:
        raise UserError(f"{shown(place)} is not there: expected {EXPECTED}")
    if kind == "folder":
        return _read_folder(place, options)
    reader = READERS.get(place.suffix.lower())
    if reader is None:
        raise UserError(f"{shown(place)} has an unknown format: expected {EXPECTED}")
    return reader(place, options)


def fingerprint(path: PathLike, options: ReadOptions) -> str:
    """A hash of the content of a graph's files, 16 hexadecimal digits."""
    place = Path(path)
    files = [place]
    if kind_of(place) == "folder":
        files = [table_file(place, "nodes"), table_file(place, "edges")]
    elif not kind_of(place):
        raise UserError(f"{shown(place)} is not there: expected {EXPECTED}")
    if options.nodes:
        files.append(Path(options.nodes))
    whole = hashlib.sha256()
    for file in files:
        with opened(file) as content:
            status = os.fstat(content.fileno())
        whole.update(_digest(os.path.abspath(file), status.st_size, status.st_mtime_ns))
    return whole.hexdigest()[:16]


@lru_cache(maxsize=256)
def _digest(path: str, size: int, changed: int) -> bytes:
    """Cached per state of a file, since many runs use the same file."""
    with opened(Path(path)) as content:
        return hashlib.file_digest(content, "sha256").digest()  # type: ignore[arg-type]


def _read_folder(folder: Path, options: ReadOptions) -> OwnGraph:
    nodes_file, edges_file = table_file(folder, "nodes"), table_file(folder, "edges")
    nodes, names = _read_nodes(nodes_file, options)
    return _with_edges(folder, nodes, names, edges_file, options)


def _with_edges(
    path: Path, nodes: Columns, names: Vocabulary, edges_file: Path, options: ReadOptions
) -> OwnGraph:
    ends = Wanted(Kind.KNOWN_ID, names)
    table = _read_edges(edges_file, ends, options)
    source, target = (codes_of(table, name) for name in (options.source, options.target))
    edges = edges_of(table, source, target, len(names), options)
    return own_graph(full_name(path), title_of(path), names.texts(), nodes, edges, options)


def table_file(folder: Path, stem: str) -> Path:
    """nodes.csv or nodes.parquet."""
    found = [folder / f"{stem}{suffix}" for suffix in TABLES]
    found = [file for file in found if kind_of(file) or os.path.lexists(file)]
    if not found:
        raise UserError(f"{shown(folder)} has no {stem}.csv: expected {EXPECTED}")
    if len(found) > 1:
        raise UserError(
            f"{shown(folder)} has both {found[0].name} and {found[1].name}: remove one of them"
        )
    if kind_of(found[0]) != "file":
        raise UserError(f"{shown(found[0])} is not a file: expected a table")
    return found[0]


def _read_nodes(path: Path, options: ReadOptions) -> tuple[Columns, Vocabulary]:
    names = Vocabulary()
    special = _planned_kinds(options) | {
        options.id.lower(): Wanted(Kind.NEW_ID, names),
        options.label.lower(): Wanted(Kind.TEXT, Vocabulary()),
        options.part.lower(): Wanted(Kind.TEXT, Vocabulary()),
    }
    if path.suffix.lower() == ".parquet":
        table = read_parquet(path)
        _require(table.name, [item.name for item in table.columns], options.id, "id")
        ids_of(table, options.id, names, new=True)
        return table, names
    require_column(path, options.id, "id")
    return read_csv(path, special), names


def _planned_kinds(options: ReadOptions) -> dict[str, Wanted]:
    """Columns keep the kind that they had in training."""
    columns = () if options.plan is None else options.plan.columns
    return {
        item.name.lower(): (
            Wanted(Kind.NUMBER) if item.kind == "number" else Wanted(Kind.TEXT, Vocabulary())
        )
        for item in columns
        if item.kind != "structure"
    }


def _read_edges(path: Path, ends: Wanted, options: ReadOptions) -> Columns:
    wanted: Mapping[str, Wanted] = {
        options.source.lower(): ends,
        options.target.lower(): ends,
        options.weight.lower(): Wanted(Kind.NUMBER),
    }
    if path.suffix.lower() == ".parquet":
        table = read_parquet(path)
        header = [item.name for item in table.columns]
    else:
        header = read_header(path).names
    for option in ("source", "target"):
        _require(shown(path), header, getattr(options, option), option)
    if options.source.lower() == options.target.lower():
        raise UserError("source and target name the same column: name two different ones")
    if path.suffix.lower() != ".parquet":
        return read_csv(path, wanted)
    assert ends.names is not None
    known = ends.kind is Kind.KNOWN_ID
    for name in (options.source, options.target):
        column = ids_of(table, name, ends.names, known=known)
        columns = [column if item.name == column.name else item for item in table.columns]
        table = Columns(table.name, table.rows, columns, table.place)
    return table


def require_column(path: Path, column: str, option: str) -> None:
    """Refuse a CSV file whose first line lacks a column."""
    _require(shown(path), read_header(path).names, column, option)


def _require(file: str, header: list[str], column: str, option: str) -> None:
    if column.strip().lower() in (name.lower() for name in header):
        return
    found = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
    raise UserError(
        f"{file}, line 1: there is no column {column!r} among {found}; rename one, or name the "
        f"column with {option}=…"
    )


def codes_of(table: Columns, name: str) -> np.ndarray:
    column = table.find(name)
    assert column is not None
    assert column.codes is not None
    return column.codes


def _read_single_table(path: Path, options: ReadOptions) -> OwnGraph:
    """One file of edges, with or without a header, and an optional file of nodes."""
    if not options.nodes:
        names = Vocabulary()
        table = _edge_table(path, Wanted(Kind.ANY_ID, names), options)
        nodes = Columns(shown(path), len(names))
    else:
        nodes, names = _nodes_of(Path(options.nodes), options)
        table = _edge_table(path, Wanted(Kind.KNOWN_ID, names), options)
    source, target = (codes_of(table, name) for name in (options.source, options.target))
    edges = edges_of(table, source, target, len(names), options)
    return own_graph(full_name(path), title_of(path), names.texts(), nodes, edges, options)


def _nodes_of(path: Path, options: ReadOptions) -> tuple[Columns, Vocabulary]:
    if path.suffix.lower() != ".npy":
        return _read_nodes(path, options)
    features = read_feature_array(path)
    names = Vocabulary([str(number) for number in range(len(features))])
    columns = [Column(f"x{i}", numbers=features[:, i]) for i in range(features.shape[1])]
    return Columns(shown(path), len(features), columns), names


def _edge_table(path: Path, ends: Wanted, options: ReadOptions) -> Columns:
    if path.suffix.lower() == ".parquet":
        return _read_edges(path, ends, options)
    if path.suffix.lower() in (".csv", ".tsv"):
        try:
            header = [name.lower() for name in read_header(path).names]
        except UserError:  # "1,1" is not a header but an edge
            header = []
        if options.source.lower() in header or options.target.lower() in header:
            return _read_edges(path, ends, options)
    table = read_edge_list(path, ends)
    named = {"source": options.source, "target": options.target, "weight": options.weight}
    columns = [
        Column(named[item.name], item.numbers, item.codes, item.texts) for item in table.columns
    ]
    return Columns(table.name, table.rows, columns, table.place)


def full_name(path: Path) -> str:
    """The absolute path, so that a model finds its data from any folder."""
    return os.path.abspath(path)


def title_of(path: Path) -> str:
    return shown(Path(full_name(path)).name) or shown(path)


def _read_npz(path: Path, options: ReadOptions) -> OwnGraph:
    return read_npz(path, options, full_name(path), title_of(path))


def _read_networkx(path: Path, options: ReadOptions) -> OwnGraph:
    return read_networkx_file(path, options, full_name(path), title_of(path))


READERS: Mapping[str, Callable[[Path, ReadOptions], OwnGraph]] = {
    ".npz": _read_npz,
    ".graphml": _read_networkx,
    ".gml": _read_networkx,
    ".parquet": _read_single_table,
    **dict.fromkeys(EDGE_LISTS, _read_single_table),
}
