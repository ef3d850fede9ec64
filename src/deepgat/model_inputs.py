"""A user's graph, or the one in a model's folder, as the dataset that a model takes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data import NodeDataset, load_graph
from deepgat.data.kept_graph import KeptGraph
from deepgat.data.transforms import MASKS, SPLITS
from deepgat.errors import UserError
from deepgat.training.run import ModelCard

MOST_CLASSES = 10**7
"""Of a graph in memory."""


def as_dataset(
    graph: NodeDataset | Data | str, num_classes: int | None = None, multi_label: bool = False
) -> NodeDataset:
    """A dataset from its name, or from a PyG graph.

    A PyG graph without labels gets none of ``num_classes`` classes, or of as many independent
    labels with ``multi_label``. Masks that it lacks are empty.
    """
    if isinstance(graph, NodeDataset):
        return graph
    if isinstance(graph, str):
        return load_graph(graph)
    if not isinstance(graph, Data) or graph.x is None or graph.edge_index is None:
        raise UserError(
            f"graph is a {type(graph).__name__}: expected what load_graph returns, its name, or a "
            "PyG graph with x and edge_index"
        )
    whole, n = graph.clone(), graph.num_nodes
    if whole.y is None:
        whole.y = torch.zeros(n, num_classes or 0) if multi_label else torch.full((n,), -1)
    for part in SPLITS:
        if f"{part}_mask" not in whole:
            whole[f"{part}_mask"] = torch.zeros(n, dtype=torch.bool)
    multi = whole.y.dim() == 2
    if num_classes is None:
        num_classes = whole.y.size(1) if multi else _count_classes(whole.y)
    return NodeDataset(
        "graph", "the graph", (whole,), whole.num_features, num_classes, multi, "public"
    )


def _count_classes(y: Tensor) -> int:
    """The largest class number and one; 0 where y holds none, which the dataset's check tells."""
    if not y.numel() or y.is_complex() or y.is_floating_point():
        return 0
    count = max(0, int(y.max()) + 1)
    if count > MOST_CLASSES:
        raise UserError(
            f"y of the graph holds the class {count - 1}: classes are numbered from 0 to "
            f"{MOST_CLASSES - 1:,} at most; number yours by torch.unique(y, return_inverse=True)"
        )
    if count > y.numel():
        warnings.warn(
            f"y of the graph holds the class {count - 1:,}, but there are {y.numel():,} nodes: "
            "classes without a node cost time and memory; number yours by "
            "torch.unique(y, return_inverse=True)",
            stacklevel=4,
        )
    return count


def dataset_for(card: ModelCard, graph: NodeDataset | Data) -> NodeDataset:
    """The graph as a dataset of the classes that the card's model knows."""
    data = as_dataset(graph, card.num_classes, card.multi_label)
    found = data.graph
    weighted = found.edge_weight is not None
    check_columns(card, found.num_features, data.num_edge_features, weighted)
    if card.multi_label:
        known = found.y.dim() == 2 and found.y.size(1) == card.num_classes
    else:
        known = found.y.dim() == 1 and int(found.y.max()) < card.num_classes
    if not known:  # labels of another task are no labels of this one
        bare = found.clone()
        for name in ("y", *(f"{part}_mask" for part in SPLITS)):
            del bare[name]
        found = as_dataset(bare, card.num_classes, card.multi_label).graph
    return replace(
        data, graphs=(found,), num_classes=card.num_classes, multi_label=card.multi_label
    )


def check_columns(
    card: ModelCard,
    features: int,
    edge_features: int,
    edge_weights: bool,
    nodes: str = "the graph has",
    edges: str = "its edges have",
) -> None:
    """Refuse a graph, or new nodes, without exactly the values that the model was trained with.

    Args:
        card: of the model.
        features, edge_features: how many each node and each edge has.
        edge_weights: whether the edges have weights.
        nodes, edges: how the sentence begins.
    """
    if features != card.num_features:
        raise UserError(
            f"{nodes} {features} features per node but the model was trained with "
            f"{card.num_features}: give the nodes the same features"
        )
    if edge_features != card.edge_features:
        raise UserError(
            f"{edges} {edge_features} features each but the model was trained with "
            f"{card.edge_features}: give them the same columns"
        )
    if card.edge_weights and not edge_weights:
        raise UserError(
            f"{edges} no weights, but the model was trained with weights of the edges: give them "
            "some (1 each, if all weigh the same)"
        )
    if edge_weights and not card.edge_weights:
        raise UserError(f"{edges} weights, but the model was trained without: leave them out")


def kept_dataset(graph: KeptGraph, card: ModelCard) -> NodeDataset:
    """The graph in a model's folder, in memory, with the names of the model's classes."""
    lists, nodes = graph.all_lists(), np.arange(graph.num_nodes)
    source, target = lists.source.astype(np.int64), np.repeat(nodes, lists.length)
    given = source != target  # networks add self-loops of weight 1 and features 0 themselves
    if lists.log_weight is not None:
        given |= lists.log_weight[:, 0] != 0
    if lists.features is not None:
        given |= (lists.features != 0).any(1)
    y, part = np.array(graph.arrays["y"]), np.asarray(graph.arrays["part"])
    if not card.multi_label and not -1 <= int(y.min()) <= int(y.max()) < card.num_classes:
        raise graph.damaged("y holds classes that the model does not have")
    data = Data(
        x=graph.features(nodes),
        edge_index=torch.from_numpy(np.stack([source[given], target[given]])),
        y=torch.from_numpy(y),
        **{name: torch.from_numpy(part == number) for number, name in enumerate(MASKS, start=1)},
    )
    if lists.log_weight is not None:  # in double precision, so that the logarithm comes back
        weight = np.exp(lists.log_weight[given, 0].astype(np.float64))
        data.edge_weight = torch.from_numpy(weight.astype(np.float32))
    if lists.features is not None:
        data.edge_attr = torch.from_numpy(np.array(lists.features[given]))
    return NodeDataset(
        card.dataset,
        Path(card.dataset).name,  # people read it, whom no path concerns
        (data,),
        card.num_features,
        card.num_classes,
        card.multi_label,
        card.split,
        node_ids=() if graph.ids is None else graph.ids.texts(),
        class_names=tuple(card.class_names),
        feature_names=tuple(card.feature_names),
        reading=dict(card.reading),
        feature_plan=card.feature_plan,
    )


def without_scored_nodes(data: NodeDataset) -> NodeDataset:
    """The same graphs without validation and test nodes."""
    graphs = [graph.clone() for graph in data.graphs]
    for graph in graphs:
        graph.val_mask, graph.test_mask = (torch.zeros_like(graph.val_mask) for _ in range(2))
    return replace(data, graphs=tuple(graphs))


def with_classes_of(card: ModelCard, data: NodeDataset) -> NodeDataset:
    """Another graph of yours, with its classes numbered like the model's."""
    known, names = card.feature_names, list(data.feature_names)
    if names != known:
        found, trained = set(names), set(known)
        missing = [name for name in known if name not in found]
        more = [name for name in names if name not in trained]
        told = f"lacks {', '.join(missing[:5])}" if missing else f"has {', '.join(more[:5])}"
        raise UserError(
            f"{data.title} {told}, unlike the graph that the model was trained on: give it the "
            "same features"
        )
    classes = tuple(card.class_names)
    if data.class_names == classes:
        return data
    numbers = {name: k for k, name in enumerate(classes)}
    place = torch.tensor([numbers.get(name, -1) for name in data.class_names] + [-1])
    graph, y = data.graph.clone(), data.graph.y
    if data.multi_label:
        here = (place[:-1] >= 0).nonzero().squeeze(1)
        graph.y = torch.zeros(graph.num_nodes, len(classes))
        graph.y[:, place[here]] = y[:, here]
    else:
        graph.y = place[y]  # −1, unlabelled, is the last
        for part in SPLITS:
            graph[f"{part}_mask"] = graph[f"{part}_mask"] & (graph.y >= 0)
    return replace(data, graphs=(graph,), class_names=classes)
