"""Your own graph, from files or from NetworkX, pandas and PyTorch Geometric."""

from __future__ import annotations

from typing import Any

from deepgat.data.dataset import NodeDataset
from deepgat.data.splits import Split
from deepgat.data.tables.convert import graph_from_networkx, graph_from_pandas, graph_from_pyg
from deepgat.data.tables.folder import fingerprint, looks_like_a_path, read_graph
from deepgat.data.tables.graph import OwnGraph, to_dataset
from deepgat.data.tables.options import ReadOptions
from deepgat.data.tables.plan import FeaturePlan
from deepgat.data.tables.streamed import StreamedGraph, can_stream, stream_graph
from deepgat.data.tables.structure_features import undirected_matrix

__all__ = [
    "FeaturePlan",
    "OwnGraph",
    "ReadOptions",
    "StreamedGraph",
    "can_stream",
    "fingerprint",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "looks_like_a_path",
    "read_graph",
    "stream_graph",
    "to_dataset",
    "undirected_matrix",
]


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
        from deepgat.errors import UserError

        raise UserError(f"from_networkx was given {type(graph).__name__}: expected a graph")
    chosen = ReadOptions.of(options)
    return to_dataset(graph_from_networkx(graph, chosen, "", "the graph", "the graph"), split)


def from_pandas(
    nodes: Any, edges: Any, split: str | Split | None = None, **options: Any
) -> NodeDataset:
    """A dataset from two data frames with the columns of ``nodes.csv`` and ``edges.csv``."""
    return to_dataset(graph_from_pandas(nodes, edges, ReadOptions.of(options)), split)


def from_pyg(data: Any, split: str | Split | None = None, **options: Any) -> NodeDataset:
    """A dataset from a ``torch_geometric.data.Data``; its masks are the split "public".

    Features do not change, and classes are named by their numbers.
    """
    return to_dataset(graph_from_pyg(data, ReadOptions.of(options)), split)
