"""Estimates the memory of a training run before it starts, and saves memory where it is short.

The first of these that fits is chosen: keep everything; recompute projections, layers or segments
(same results); train on clusters of the graph, and evaluate some nodes at a time; refuse to train.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from deepgat.data import NodeDataset
from deepgat.errors import UserError
from deepgat.machine import free_memory, give_back_freed_memory
from deepgat.models import Network
from deepgat.nn.checkpoint import CHECKPOINTS, choose_checkpoint, step_bytes
from deepgat.nn.norms import PairNorm
from deepgat.training.device import choose_device
from deepgat.training.inputs import WEIGHT
from deepgat.training.settings import TrainSettings

TRUST = 1.5
"""Factor by which estimates, and what the machine reports as free, may be wrong. Unless the user
sets a bound, a run that exceeds free memory by less is neither refused nor approximated."""
BATCH = 4
"""Clusters of a batch."""
LEAST_NODES = 500
"""Of a batch; with fewer a step says little of the graph."""
LIST, BUILDING, CHUNKED = 20, 110, 90
"""Bytes per edge: of neighbour lists, while they are built, and of the lists of chunks."""
LIBRARIES = 2**23
"""Bytes of libraries that are loaded during training."""
UNITS = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T"))}
WAYS = {
    "projections": "the backward pass recomputes projections",
    "layer": "the backward pass recomputes every layer",
    "sqrt": "the backward pass recomputes segments of layers",
}


def read_memory(size: str | float | None) -> float | None:
    """ "4G", "500 MiB" or a number of bytes → bytes."""
    if size is None:
        return None
    text = "" if isinstance(size, bool) else str(size).strip()
    found = re.fullmatch(r"(\d+\.?\d*(?:e\+?\d+)?) *([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    value = float(found[1]) * UNITS[found[2].upper()] if found else 0.0
    if not 1 <= value <= 2**60:
        raise UserError(
            f"max_memory is {size!r}: expected a size such as 4G or 500M, from 1 byte to 2^60"
        )
    return value


class NoRoom(UserError):  # noqa: N818 - what is wrong
    """A training run needs more memory than there is, even in the smallest batches."""


@dataclass(frozen=True)
class Choice:
    """How a training run fits into memory."""

    training: TrainSettings
    """Its settings, as asked unless the graph is cut into clusters."""
    checkpoint: str
    record: dict[str, Any] = field(default_factory=dict)
    """Estimates and choice for the record of the run, with the settings that were asked for and
    replaced; empty where everything is kept."""

    @property
    def settings(self) -> TrainSettings:
        """To train with."""
        return replace(self.training, checkpoint=self.checkpoint)

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that took the place of those."""
        return {name: getattr(self.training, name) for name in self.record.get("asked", ())}


def choose(
    model: Network,
    dataset: NodeDataset,
    asked: TrainSettings,
    begun: Mapping[str, Any] | None = None,
    *,
    in_batches: bool = True,
) -> Choice:
    """The choice that fits into free memory and recomputes and approximates least.

    A warning tells what was changed.

    Args:
        model: to be trained.
        dataset: to train on.
        asked: the settings as the user has them.
        begun: of a resumed run, the settings that replaced some of them when it began.
        in_batches: whether batches are of use; if not, what needs them has no room.
    """
    device = choose_device(asked.device)
    free, most = (min(free_memory(device, trust), 2.0**60) for trust in (1.0, TRUST))
    need = _Need(model, dataset, asked, device)
    whole = need.training(need.step_nodes(asked), "none", asked)
    training = asked.with_changes(begun or {}, "training setting")
    nodes = need.step_nodes(training)
    around = need.training(nodes, "none", training) - need.step(nodes, "none")
    needed = model.layer_bytes(nodes)
    checkpoint = choose_checkpoint(asked.checkpoint, model.num_layers, *needed, free - around)
    if need.training(nodes, checkpoint, training) > most:
        obstacle = _obstacle(model, dataset, asked) if begun is None else "the run was begun so"
        if not in_batches:
            obstacle = "no mean is made of a model that was trained in batches"
        found = None if obstacle else need.batches(asked, free) or need.batches(asked, most)
        if found is None:
            raise NoRoom(_refusal(need, nodes, training, free, obstacle))
        training, checkpoint = found
    if training == asked and checkpoint in ("none", asked.checkpoint):
        return Choice(asked, checkpoint)
    if device.type == "cpu" and checkpoint in WAYS:
        give_back_freed_memory()
    now = training.to_dict()
    changed = {name: value for name, value in asked.to_dict().items() if now[name] != value}
    if asked.checkpoint == "auto" or changed:
        warnings.warn(_told(whole, free, training, checkpoint, changed), stacklevel=3)
    record = {"estimate": int(whole), "free": int(free), "checkpoint": checkpoint, "asked": changed}
    return Choice(training, checkpoint, record)


def _obstacle(model: Network, dataset: NodeDataset, asked: TrainSettings) -> str:
    """Why this run cannot train on parts of the graph; empty if it can."""
    if asked.in_parts:
        return "these are batches already"
    if any(isinstance(module, PairNorm) for module in model.modules()):
        return "PairNorm takes its means over all nodes, so batches would train another model"
    if model.reads_node_numbers:
        return "which nodes are wrong depends on their numbers in the whole graph"
    if asked.batches == "graphs":
        return "batches=graphs joins whole graphs"
    if any(WEIGHT in graph for graph in dataset.graphs):
        return "weights of nodes need steps on the whole graph"
    return ""


def _told(
    whole: float, free: float, training: TrainSettings, checkpoint: str, changed: dict[str, Any]
) -> str:
    parts = [WAYS[checkpoint]] if checkpoint in WAYS else []
    if changed:
        parts.append(
            f"a step sees {BATCH} of {training.clusters} clusters of the graph, and evaluation "
            f"{training.most_nodes:,} nodes at a time"
        )
    if "self_training" in changed:
        parts.append("there is no self-training")
    return (
        f"keeping everything would take about {_size(whole)} of the {_size(free)} of memory that "
        f"may be used, so {'; '.join(parts)}"
    )


def _refusal(need: _Need, nodes: int, asked: TrainSettings, free: float, obstacle: str) -> str:
    least = min(need.training(nodes, way, asked) for way in need.ways)
    told = f"training takes about {_size(least)}"
    if asked.checkpoint == "auto":
        told += " even if layers are recomputed"
    if obstacle:
        told += f" ({obstacle})"
    else:
        told += f", and about {_size(need.smallest(asked))} in the smallest batches"
    return (
        f"{told}, but {_size(free)} more memory may be used: choose fewer or narrower layers "
        "(num_layers, hidden_channels, heads), or allow more memory (max_memory)"
    )


def _size(size: float) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if size >= 2**power:
            return f"{size / 2**power:,.1f} {unit}"
    return f"{size / 2**10:,.0f} KiB"


class _Need:
    """Bytes that training needs on its device, beyond the data and the model's weights."""

    def __init__(
        self, model: Network, dataset: NodeDataset, asked: TrainSettings, device: torch.device
    ) -> None:
        self.model, self.on_gpu = model, device.type == "cuda"
        self.ways = CHECKPOINTS[1:] if asked.checkpoint == "auto" else (asked.checkpoint,)
        self.sizes = sorted((graph.num_nodes for graph in dataset.graphs), reverse=True)
        self.nodes = max(1, sum(self.sizes))
        self.edges = self.nodes + sum(graph.edge_index.numel() // 2 for graph in dataset.graphs)
        copies = 5 + bool(asked.ema)  # gradients, Adam's two, the best and spare weights
        self.weights = 4.0 * copies * sum(p.numel() for p in model.parameters())
        features = sum(_feature_bytes(graph.x) for graph in dataset.graphs)
        self.row = features / self.nodes
        self.labels = 4.0 * self.nodes * model.label_hops * model.out_channels

    def step_nodes(self, training: TrainSettings) -> int:
        """The most nodes that a step sees."""
        if training.batches == "neighbours":
            return min(training.most_nodes, self.sizes[0])
        if training.batches == "clusters":
            return math.ceil(self.sizes[0] * min(1, training.per_batch / training.clusters))
        return sum(self.sizes[: training.graphs_per_step])

    def step(self, nodes: float, checkpoint: str) -> float:
        """The activations of a step on so many nodes."""
        kept, inputs = self.model.layer_bytes(1)
        if checkpoint == "sqrt" and self.model.reads_every_layer:
            checkpoint = "layer"  # as Network.run has it
        return nodes * step_bytes(checkpoint, self.model.num_layers, kept, inputs)

    def training(self, nodes: float, checkpoint: str, settings: TrainSettings) -> float:
        """All of it, where a step sees so many nodes."""
        kept, inputs = self.model.layer_bytes(1)
        whole = not settings.in_parts
        held = self.weights + LIBRARIES
        step = nodes * (kept / 2 + 2 * self.row)  # gradients of a layer, dropped features
        step += nodes * (4 * inputs if self.model.has_encoder else 0)
        step += self.step(nodes, checkpoint)
        lists = LIST * self.edges + self.labels
        if self.on_gpu:  # where batches leave the graph on the CPU
            return held + step + (1 if whole else nodes / self.nodes) * lists + nodes * self.row
        building = held + BUILDING * self.edges + self.labels
        if whole:
            return max(held + lists + step, building)
        held += lists + CHUNKED * self.edges
        states = 1 + (self.model.num_layers if self.model.reads_every_layer else 2)
        evaluation = self.nodes * (kept + states * inputs) + settings.most_nodes * kept
        return max(held + max(step, evaluation), building)

    def batches(self, asked: TrainSettings, free: float) -> tuple[TrainSettings, str] | None:
        """Settings and checkpoint of batches of clusters that fit; None: there are none."""
        largest = self.sizes[0]
        for checkpoint in self.ways:
            nodes = largest // 2
            while nodes >= min(LEAST_NODES, largest // 2) > 0:
                found = _in_clusters(asked, largest, nodes)
                # clusters are equal in work, so they may differ in nodes
                if self.training(1.5 * nodes, checkpoint, found) <= free:
                    return found, checkpoint
                nodes = nodes * 3 // 4
        return None

    def smallest(self, asked: TrainSettings) -> float:
        nodes = max(1, min(LEAST_NODES, self.sizes[0] // 2))
        found = _in_clusters(asked, self.sizes[0], nodes)
        return min(self.training(1.5 * nodes, way, found) for way in self.ways)


def _in_clusters(asked: TrainSettings, largest: int, nodes: int) -> TrainSettings:
    """With batches of about so many nodes."""
    return asked.with_changes(
        {
            "batches": "clusters",
            "clusters": min(10**6, math.ceil(BATCH * largest / nodes)),
            "batch_size": BATCH,
            "most_nodes": nodes,
            "self_training": 0.0,
        }
    )


def _feature_bytes(x: Tensor) -> float:
    """In single precision; of a sparse matrix the numbers, their columns and their order."""
    return 4.0 * x.numel() if x.layout is torch.strided else 16.0 * x._nnz()
