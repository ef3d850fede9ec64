"""Measures of a trained model, by name. Each returns plain values for the run's record.

To add a measure, write a function of :class:`Trained` that returns numbers, strings, or lists and
dictionaries of them, and add it to :data:`MEASURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, TypeAlias

import torch

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
from deepgat.training.run import Run


class Trained(NamedTuple):
    """A finished run, and what every layer computed on each graph (on the CPU)."""

    run: Run
    dataset: NodeDataset
    outputs: list[LayerOutputs]
    neighbors: list[Neighbors]


Measure: TypeAlias = Callable[[Trained], Any]


def nearest_neighbor(trained: Trained) -> dict[str, Any] | None:
    """e_N of the test nodes on h^L, with bounds on the Bayes error; None for multi-label data.

    Prototypes are the training nodes, or training and validation nodes as in the authors' code.
    """
    dataset = trained.dataset
    if dataset.multi_label:
        return None
    if len(dataset.graphs) != 1:
        raise UserError(f"nearest-neighbor needs one graph, and {dataset.title} has several")
    graph, hidden = dataset.graph, trained.outputs[0].hidden[-1]
    sets = {"train": graph.train_mask, "train+val": graph.train_mask | graph.val_mask}
    found = {}
    for name, prototypes in sets.items():
        error = nearest_neighbor_error(hidden, graph.y, prototypes, graph.test_mask)
        bounds = bayes_error_bounds(error, dataset.num_classes)
        found[name] = {"error": error, "bayes_lower": bounds.lower, "bayes_upper": bounds.upper}
    return found


def layer_scores(trained: Trained) -> dict[str, dict[str, float]] | None:
    """Micro-F1 of each layer's prediction, by part; None for a model without layer predictions."""
    graphs, outputs = trained.dataset.graphs, trained.outputs
    layers = list(outputs[0].layer_logits)
    if len(layers) < 2:
        return None
    found: dict[str, dict[str, float]] = {}
    for part in ("val", "test"):
        masks = [graph[f"{part}_mask"] for graph in graphs]
        y = torch.cat([graph.y[mask] for graph, mask in zip(graphs, masks, strict=True)])
        if not len(y):
            continue
        pairs = list(zip(outputs, masks, strict=True))
        found[part] = {
            str(layer): float(
                micro_f1(torch.cat([out.layer_logits[layer][mask] for out, mask in pairs]), y)
            )
            for layer in layers
        }
    return found


def over_smoothing(trained: Trained) -> list[list[dict[str, Any]]]:
    """Energies, distances, ranks and attention of every layer, graph by graph.

    Attention is measured in runs that keep it (``analysis.attention``).
    """
    return [
        [
            asdict(row)
            for row in over_smoothing_profile(
                outputs, neighbors, graph.y, graph.test_mask if graph.test_mask.any() else None
            )
        ]
        for outputs, neighbors, graph in zip(
            trained.outputs, trained.neighbors, trained.dataset.graphs, strict=True
        )
    ]


MEASURES: Mapping[str, Measure] = {
    "nearest-neighbor": nearest_neighbor,
    "layer-scores": layer_scores,
    "over-smoothing": over_smoothing,
}
