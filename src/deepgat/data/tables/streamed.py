"""A graph that need not fit into memory: edges and features stay on disk.

Memory grows with the number of nodes (ids, labels, parts of the split, degrees), not with the
edges or the features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepgat.data.dataset import NodeDataset
from deepgat.data.tables.arrays import open_npz
from deepgat.data.tables.buckets import EdgeBuckets
from deepgat.data.tables.edges import Given, given_edges
from deepgat.data.tables.feature_file import FeatureFile
from deepgat.data.tables.folder import folder_tables, full_name, title_of
from deepgat.data.tables.graph import own_graph, to_dataset
from deepgat.data.tables.nodes import read_nodes
from deepgat.data.tables.npz import NpzGraph
from deepgat.data.tables.opening import kind_of, shown
from deepgat.data.tables.options import ReadOptions

OnProgress = Callable[[str, float], None]
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
    """Whether a path is a folder of tables or an .npz file that can be read in pieces.

    Bags of words and structural features need all nodes or edges in memory.
    """
    if options.text or options.structure:
        return False
    return kind_of(path) == "folder" or (kind_of(path) == "file" and path.suffix.lower() == ".npz")


def stream_graph(
    path: Path,
    options: ReadOptions,
    split: str | None,
    scratch: Path,
    told: OnProgress = lambda what, share: None,
    stretch: int | None = None,
) -> StreamedGraph:
    """Read a graph into files of ``scratch``, an empty folder on a disk with enough room.

    Errors are those of :func:`~deepgat.data.tables.read_graph`, and the dataset is the one that
    :func:`~deepgat.data.tables.to_dataset` makes.
    """

    def buckets(nodes: int, pieces: Iterable[Given]) -> EdgeBuckets:
        size = stretch or -(-nodes // (BUCKETS * STRETCH)) * STRETCH or STRETCH
        edges = EdgeBuckets(scratch / "edges", nodes, size, options.undirected, pieces)
        for share in edges.merge():
            told("sorting the edges", share)
        return edges

    name, title = full_name(path), title_of(path)
    if kind_of(path) == "folder":
        nodes, links = folder_tables(path)
        ids, table = read_nodes(nodes, options, scratch / "nodes", partial(told, "reading nodes"))
        tell = partial(told, "reading edges")
        edges = buckets(len(ids), given_edges(links, ids, options, tell=tell))
        x = FeatureFile(
            scratch / "x", len(ids), len(nodes.header), partial(told, "making features")
        )
        graph = own_graph(
            name, title, ids.texts(), table, edges.summary(links.header), options,
            header=nodes.header, store=x,
        )  # fmt: skip
        return StreamedGraph(to_dataset(graph, split), edges, x.rows, x.sparse)
    unpacked = scratch / "arrays"
    unpacked.mkdir()
    file = NpzGraph.of(open_npz(path, unpacked), shown(path), options)
    mean_degree = max(1, file.adjacency.nnz // max(file.n, 1))
    step = max(1, EDGES_AT_ONCE // mean_degree)
    edges = buckets(file.n, file.edges(step, partial(told, "reading edges")))
    features = torch.zeros(1, 1).expand(file.n, file.width)
    graph = own_graph(
        name, title, file.ids, None, edges.summary(), options,
        x=features, labels=file.labels, masks=file.masks,
    )  # fmt: skip
    return StreamedGraph(to_dataset(graph, split), edges, file.rows, file.sparse)
