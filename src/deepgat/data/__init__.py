"""Graphs to train on: the catalogue, splits, label propagation and synthetic graphs."""

from deepgat.data.catalogue.load import Listing, is_path, list_datasets, load_graph
from deepgat.data.dataset import NodeDataset
from deepgat.data.label_features import propagate_labels
from deepgat.data.splits import Split, parse_split
from deepgat.data.synthetic import csbm_graph, digits_graph, hops_graph
from deepgat.data.tables import (
    FeaturePlan,
    OwnGraph,
    ReadOptions,
    fingerprint,
    from_networkx,
    from_pandas,
    from_pyg,
    read_graph,
    undirected_matrix,
)
from deepgat.data.transforms import PropagateLabels, SplitNodes

__all__ = [
    "FeaturePlan",
    "Listing",
    "NodeDataset",
    "OwnGraph",
    "PropagateLabels",
    "ReadOptions",
    "Split",
    "SplitNodes",
    "csbm_graph",
    "digits_graph",
    "fingerprint",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "hops_graph",
    "is_path",
    "list_datasets",
    "load_graph",
    "parse_split",
    "propagate_labels",
    "read_graph",
    "undirected_matrix",
]
