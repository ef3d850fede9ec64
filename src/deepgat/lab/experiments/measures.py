"""Measures of a trained model, by name. Each returns plain values for the run's record.

To add a measure, write a function of the dataset and the outputs that returns numbers, strings, or
lists and dictionaries of them, and add it to :data:`MEASURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch_geometric.data import Data

from deepgat.analysis import (
    bayes_error_bounds,
    micro_f1,
    nearest_neighbor_error,
    over_smoothing_profile,
)
from deepgat.data import NodeDataset
from deepgat.errors import UserError
from deepgat.models import LayerOutputs
from deepgat.ops import Neighbors


class GraphOutputs(NamedTuple):
    """What every layer of a trained model computed on one graph (on the CPU)."""

    data: Data
    outputs: LayerOutputs
    neighbors: Neighbors


def nearest_neighbor(dataset: NodeDataset, graphs: list[GraphOutputs]) -> dict[str, Any] | None:
    """e_N of the test nodes on h^L, with bounds on the Bayes error; None for multi-label data.

    Prototypes are the training nodes, or training and validation nodes as in the authors' code.
    """
    if dataset.multi_label:
        return None
    if len(graphs) != 1:
        raise UserError(f"nearest-neighbor needs one graph, and {dataset.title} has several")
    graph, hidden = dataset.graph, graphs[0].outputs.hidden[-1]
    sets = {"train": graph.train_mask, "train+val": graph.train_mask | graph.val_mask}
    found = {}
    for name, prototypes in sets.items():
        error = nearest_neighbor_error(hidden, graph.y, prototypes, graph.test_mask)
        bounds = bayes_error_bounds(error, dataset.num_classes)
        found[name] = {"error": error, "bayes_lower": bounds.lower, "bayes_upper": bounds.upper}
    return found


def layer_scores(
    dataset: NodeDataset, graphs: list[GraphOutputs]
) -> dict[str, dict[str, float]] | None:
    """Micro-F1 of each layer's prediction, by part; None for a model without layer predictions."""
    layers = list(graphs[0].outputs.layer_logits)
    if len(layers) < 2:
        return None
    found: dict[str, dict[str, float]] = {}
    for part in ("val", "test"):
        pairs = [(graph, graph.data[f"{part}_mask"]) for graph in graphs]
        y = torch.cat([graph.data.y[mask] for graph, mask in pairs])
        if not len(y):
            continue
        found[part] = {}
        for layer in layers:
            logits = [graph.outputs.layer_logits[layer][mask] for graph, mask in pairs]
            found[part][str(layer)] = float(micro_f1(torch.cat(logits), y))
    return found


def layer_accuracy(dataset: NodeDataset, graphs: list[GraphOutputs]) -> dict[str, float] | None:
    """Share of the nodes outside the training set that each layer's prediction classifies right.

    Unlike "layer-scores", it counts every node that has a label and is not a training node. None
    for multi-label data, a model without layer predictions, or no such node.
    """
    layers = list(graphs[0].outputs.layer_logits)
    rest = [~graph.data.train_mask & (graph.data.y >= 0) for graph in graphs]
    if dataset.multi_label or len(layers) < 2 or not any(mask.any() for mask in rest):
        return None
    y = torch.cat([graph.data.y[mask] for graph, mask in zip(graphs, rest, strict=True)])
    found = {}
    for layer in layers:
        logits = [graph.outputs.layer_logits[layer] for graph in graphs]
        classes = [each[mask].argmax(-1) for each, mask in zip(logits, rest, strict=True)]
        found[str(layer)] = float((torch.cat(classes) == y).double().mean())
    return found


def over_smoothing(dataset: NodeDataset, graphs: list[GraphOutputs]) -> list[list[dict[str, Any]]]:
    """Energies, distances, ranks and attention of every layer, graph by graph.

    Attention is measured in runs that keep it (``analysis.attention``).
    """
    found = []
    for data, outputs, neighbors in graphs:
        mask = data.test_mask if data.test_mask.any() else None
        rows = over_smoothing_profile(outputs, neighbors, data.y, mask)
        found.append([asdict(row) for row in rows])
    return found


MEASURES: Mapping[str, Callable[[NodeDataset, list[GraphOutputs]], Any]] = {
    "nearest-neighbor": nearest_neighbor,
    "layer-scores": layer_scores,
    "layer-accuracy": layer_accuracy,
    "over-smoothing": over_smoothing,
}
