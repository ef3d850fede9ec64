"""A graph that need not fit into memory: edges and features stay on disk.

Memory grows with the number of nodes (ids, labels, parts of the split, degrees), not with the
edges or the features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from deepgat.data.dataset import NodeDataset
from deepgat.data.tables.arrays import map_npz
from deepgat.data.tables.buckets import EdgeBuckets
from deepgat.data.tables.delimited import Kind, Wanted, read_csv_pieces, read_header
from deepgat.data.tables.edges import given_edges
from deepgat.data.tables.folder import codes_of, full_name, require_column, table_file, title_of
from deepgat.data.tables.graph import own_graph, to_dataset
from deepgat.data.tables.npz import NpzGraph
from deepgat.data.tables.opening import kind_of, shown
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.data.tables.spilled import FeatureFile, NodeTable
from deepgat.errors import UserError

Told = Callable[[str, float], None]
"""Receives the name of a step and the share of it that is done."""
EDGES_AT_ONCE = 2**20
BUCKETS = 256
STRETCH = 4096
"""A bucket of edges holds the targets of a 256th of the nodes, in multiples of this."""


@dataclass(frozen=True, eq=False)
class StreamedGraph:
    """A graph on disk, valid as long as its scratch folder exists."""

    dataset: NodeDataset
    """The dataset without features and edges: its only graph has ``y`` and the masks."""
    edges: EdgeBuckets
    rows: Callable[[int, int], Any]
    """x[begin:end] float32: a NumPy array, or a CSR matrix."""
    sparse: bool
    """Whether the features are kept sparse."""


def can_stream(path: Path, options: ReadOptions) -> bool:
    """Whether a path is a folder of CSV tables or an .npz file that can be read in pieces.

    Bags of words and structural features need all nodes or edges in memory.
    """
    if options.text or options.structure:
        return False
    if kind_of(path) == "folder":
        return all(kind_of(path / f"{stem}.csv") == "file" for stem in ("nodes", "edges"))
    return kind_of(path) == "file" and path.suffix.lower() == ".npz"


def stream_graph(
    path: Path,
    options: ReadOptions,
    split: str | None,
    scratch: Path,
    told: Told = lambda what, share: None,
    stretch: int | None = None,
) -> StreamedGraph:
    """Read a graph into files of ``scratch``, an empty folder on a disk with enough room.

    Errors are those of :func:`~deepgat.data.tables.read_graph`, and the dataset is the one that
    :func:`~deepgat.data.tables.to_dataset` makes.
    """
    read = _read_folder if kind_of(path) == "folder" else _read_npz
    return read(path, options, split, scratch, told, stretch)


def _stretch(nodes: int, stretch: int | None) -> int:
    return stretch or -(-nodes // (BUCKETS * STRETCH)) * STRETCH or STRETCH


def _merge(edges: EdgeBuckets, told: Told) -> None:
    for share in edges.merge():
        told("sorting the edges", share)


def _read_folder(
    folder: Path,
    options: ReadOptions,
    split: str | None,
    scratch: Path,
    told: Told,
    stretch: int | None,
) -> StreamedGraph:
    files = {stem: table_file(folder, stem) for stem in ("nodes", "edges")}
    require_column(files["nodes"], options.id, "id")
    nodes = NodeTable(files["nodes"], options, scratch, lambda share: told("reading nodes", share))
    n = len(nodes.names)
    if not n:
        raise UserError(f"{shown(files['nodes'])} has no nodes: expected at least one")
    edges = _csv_edges(files["edges"], nodes, options, scratch, told, _stretch(n, stretch))
    _merge(edges, told)
    x = FeatureFile(nodes, options, scratch / "x", lambda share: told("making features", share))
    header = [*nodes.header, *read_header(files["edges"]).names]
    graph = own_graph(
        full_name(folder),
        title_of(folder),
        nodes.names.texts(),
        replace(nodes.table, columns=nodes.special),
        edges.summary(tuple(name.lower() for name in header)),
        options,
        x=torch.zeros(1, 1).expand(n, len(x.names)),
        notes=x.notes,
    )
    dataset = to_dataset(replace(graph, feature_names=x.names), split)
    dataset = replace(dataset, feature_plan=x.plan.plain())
    return StreamedGraph(dataset, edges, x.rows, x.sparse)


def _csv_edges(
    path: Path,
    nodes: NodeTable,
    options: ReadOptions,
    scratch: Path,
    told: Told,
    stretch: int,
) -> EdgeBuckets:
    for option in ("source", "target"):
        require_column(path, getattr(options, option), option)
    if options.source.lower() == options.target.lower():
        raise UserError("source and target name the same column: name two")
    ends = {options.source.lower(), options.target.lower()}
    dropped = {name.lower() for name in listed(options.drop)} - ends
    wanted: dict[str, Wanted] = {}
    header = read_header(path).names
    for name in header:
        kind = Kind.SKIP if name.lower() in dropped else Kind.NUMBER
        wanted[name.lower()] = Wanted(kind)
    wanted |= dict.fromkeys(ends, Wanted(Kind.KNOWN_ID, nodes.names))
    kept = [name for name in header if name.lower() not in ends | dropped]
    weight = options.weight.lower()
    edges = EdgeBuckets(
        scratch / "edges",
        len(nodes.names),
        stretch,
        options.undirected,
        weighted=any(name.lower() == weight for name in kept),
        feature_names=tuple(name for name in kept if name.lower() != weight),
    )
    for piece in read_csv_pieces(path, wanted, lambda share: told("reading edges", share)):
        source, target = (codes_of(piece, name) for name in (options.source, options.target))
        edges.add(given_edges(piece, source, target, options))
    return edges


def _read_npz(
    path: Path,
    options: ReadOptions,
    split: str | None,
    scratch: Path,
    told: Told,
    stretch: int | None,
) -> StreamedGraph:
    unpacked = scratch / "arrays"
    unpacked.mkdir()
    file = NpzGraph.of(map_npz(path, unpacked), shown(path), options)
    edges = EdgeBuckets(
        scratch / "edges", file.n, _stretch(file.n, stretch), options.undirected, file.weighted
    )
    mean_degree = max(1, len(file.adjacency.data) // max(file.n, 1))
    done = 0
    for piece in file.edges(max(1, EDGES_AT_ONCE // mean_degree)):
        edges.add(piece)
        done += len(piece.source)
        told("reading edges", done / max(1, len(file.adjacency.data)))
    _merge(edges, told)
    graph = own_graph(
        full_name(path),
        title_of(path),
        file.ids,
        file.table,
        edges.summary(()),
        options,
        x=torch.zeros(1, 1).expand(file.n, file.width),
    )
    return StreamedGraph(to_dataset(graph, split), edges, file.rows, file.sparse)
