"""Reads a graph from a path: a folder of tables, or one file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from deepgat.data.tables.columns import Source
from deepgat.data.tables.convert import graph_from_networkx, graph_from_tables
from deepgat.data.tables.delimited import csv_file, edge_list
from deepgat.data.tables.formats import ParquetTable, feature_array, networkx_file
from deepgat.data.tables.graph import OwnGraph
from deepgat.data.tables.npz import read_npz
from deepgat.data.tables.opening import kind_of, opened, shown
from deepgat.data.tables.options import ReadOptions
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
        files = [_table_file(place, "nodes"), _table_file(place, "edges")]
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


def folder_tables(folder: Path) -> tuple[Source, Source]:
    """The tables of nodes and edges in a folder."""
    nodes, edges = _table_file(folder, "nodes"), _table_file(folder, "edges")
    return open_table(nodes), open_table(edges)


def _table_file(folder: Path, stem: str) -> Path:
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


def open_table(path: Path) -> Source:
    """A CSV or Parquet file."""
    return ParquetTable(path) if path.suffix.lower() == ".parquet" else csv_file(path)


def _read_folder(folder: Path, options: ReadOptions) -> OwnGraph:
    return graph_from_tables(*folder_tables(folder), options, full_name(folder), title_of(folder))


def _read_single_table(path: Path, options: ReadOptions) -> OwnGraph:
    """One file of edges, with or without a header, and an optional file of nodes."""
    nodes: Source | None = None
    file = Path(options.nodes)
    if options.nodes:
        nodes = (
            feature_array(file, options.id) if file.suffix.lower() == ".npy" else open_table(file)
        )
    edges = open_edges(path, options)
    return graph_from_tables(nodes, edges, options, full_name(path), title_of(path))


def open_edges(path: Path, options: ReadOptions) -> Source:
    """A table of edges, with or without a header."""
    if path.suffix.lower() == ".parquet":
        return open_table(path)
    if path.suffix.lower() in (".csv", ".tsv"):
        try:
            table = csv_file(path)
        except UserError:  # "1,1" is not a header but an edge
            return edge_list(path, [options.source, options.target, options.weight])
        if {options.source.lower(), options.target.lower()} & {n.lower() for n in table.header}:
            return table
    return edge_list(path, [options.source, options.target, options.weight])


def full_name(path: Path) -> str:
    """The absolute path, so that a model finds its data from any folder."""
    return os.path.abspath(path)


def title_of(path: Path) -> str:
    return shown(Path(full_name(path)).name) or shown(path)


def _read_npz(path: Path, options: ReadOptions) -> OwnGraph:
    return read_npz(path, options, full_name(path), title_of(path))


def _read_networkx(path: Path, options: ReadOptions) -> OwnGraph:
    graph = networkx_file(path)
    return graph_from_networkx(graph, options, full_name(path), title_of(path), shown(path))


READERS: Mapping[str, Callable[[Path, ReadOptions], OwnGraph]] = {
    ".npz": _read_npz,
    ".graphml": _read_networkx,
    ".gml": _read_networkx,
    ".parquet": _read_single_table,
    **dict.fromkeys(EDGE_LISTS, _read_single_table),
}
