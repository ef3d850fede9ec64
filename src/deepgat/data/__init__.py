"""Graphs to train on: the catalogue, splits, label propagation and synthetic graphs."""

from deepgat.data.dataset import NodeDataset
from deepgat.data.datasets import Listing, catalogue, is_path, load_graph
from deepgat.data.labels import label_propagation, propagate_labels
from deepgat.data.own import (
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
from deepgat.data.splits import Split, parse_split
from deepgat.data.synthetic import class_regular_graph, csbm_graph, digits_graph
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
    "catalogue",
    "class_regular_graph",
    "csbm_graph",
    "digits_graph",
    "fingerprint",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "is_path",
    "label_propagation",
    "load_graph",
    "parse_split",
    "propagate_labels",
    "read_graph",
    "undirected_matrix",
]
