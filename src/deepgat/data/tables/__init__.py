"""Your own graph, from files or from NetworkX, pandas and PyTorch Geometric."""

from __future__ import annotations

from deepgat.data.tables.convert import from_networkx, from_pandas, from_pyg
from deepgat.data.tables.folder import fingerprint, read_graph
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
    "read_graph",
    "stream_graph",
    "to_dataset",
    "undirected_matrix",
]
