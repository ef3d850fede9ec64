"""What the page of a model shows, as JSON values: nodes, layers, attention, scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from deepgat.analysis import (
    Calibration,
    dirichlet_energy,
    micro_f1,
    neighbor_distance,
    rayleigh_quotient,
)
from deepgat.data import NodeDataset
from deepgat.data.names import Names
from deepgat.data.transforms import SPLITS
from deepgat.errors import UserError, cut_middle
from deepgat.machine import free_memory
from deepgat.models import LayerOutputs, Network
from deepgat.models.ensemble import Ensemble
from deepgat.ops import Neighbors, as_neighbors
from deepgat.training.run import ModelCard, versions
from deepgat.view.encoding import (
    evenly_chosen,
    packed,
    packed_classes,
    packed_positions,
    packed_shares,
    packed_weights,
)
from deepgat.view.layout import check_layout, chosen_layout, positions
from deepgat.view.sample import Sample, sample_graph

MOST_WEIGHTS = 16_000_000
"""Attention weights on a page, of all layers together: a byte each."""
MOST_PREDICTIONS = 8_000_000
"""Predictions of nodes by layers on a page: two or three bytes each."""
LIKELIEST = 5
"""Classes whose probabilities after the last layer are shown."""
LONGEST_NAME = 200
LAYOUT_NAMES = {"tsne": "t-SNE", "pca": "principal components"}


class TrainedModel(Protocol):
    """What a page needs of :class:`deepgat.Model`."""

    @property
    def network(self) -> Network: ...
    @property
    def card(self) -> ModelCard: ...
    @property
    def calibration(self) -> Calibration: ...
    @property
    def training_data(self) -> NodeDataset: ...
    def leaderboard(self) -> list[dict[str, Any]]: ...
    def outputs(self, graph: NodeDataset, with_attention: bool = False) -> LayerOutputs: ...


def check_can_show(model: TrainedModel, layout: str = "auto") -> None:
    """Refuse what no page can show; call it before long work."""
    check_layout(layout)
    if model.card.multi_label:
        raise UserError(
            "the page shows one class per node, and this model predicts independent labels: use "
            "deepgat predict and deepgat inspect"
        )


def page_contents(
    model: TrainedModel,
    data: NodeDataset | None = None,
    layout: str = "auto",
    on_step: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """All that the page shows; arguments as in :func:`deepgat.view.page`."""
    tell = on_step or (lambda what, share: None)
    check_can_show(model, layout)
    tell("reading the graph", 0.0)
    data = model.training_data if data is None else data
    if len(data.graphs) != 1:
        raise UserError(
            f"{data.title} has {len(data.graphs)} graphs and the page shows one: give one of them"
        )
    graph, n = data.graph, int(data.graph.num_nodes)
    if not n:
        raise UserError(f"{data.title} has no nodes: there is nothing to show")
    near = as_neighbors(graph.edge_index.cpu(), n)
    tell(f"computing every layer for {n:,} nodes", 0.1)
    with_attention = _has_room(model.network, near)
    outputs = model.outputs(data, with_attention=with_attention)
    sample = sample_graph(near.ptr.numpy(), near.source.numpy())
    found = chosen_layout(layout, len(sample.nodes))
    name = "t-SNE" if found == "tsne" else "PCA"
    tell(f"drawing the map of {len(sample.nodes):,} nodes ({name})", 0.3)
    states = (outputs.hidden[-1] if outputs.hidden else outputs.logits).float().cpu().numpy()
    places = positions(states[sample.nodes], found)
    tell("measuring over-smoothing", 0.8)
    y = graph.y.cpu()
    if y.dim() != 1 or int(y.max()) >= model.card.num_classes:  # labels of another task
        y = torch.full((n,), -1)
    smoothing = list(_smoothing(outputs, near, y, graph.test_mask.cpu()))
    tell("packing the page", 0.95)
    notes = _notes(sample, n, len(near.source), with_attention, bool(outputs.hidden))
    return {
        "title": cut_middle(data.title, LONGEST_NAME),
        "version": versions()["deepgat"],
        "split": data.split,
        "system": _system(model),
        "layers": model.network.num_layers,
        "graph": {"nodes": n, "edges": len(near.source) - n},
        "classes": [
            cut_middle(Names((), model.card.class_names).label(c), LONGEST_NAME)
            for c in range(model.card.num_classes)
        ],
        "scores": _scores(outputs.logits, data, y),
        "notes": notes,
        "layout": LAYOUT_NAMES[found],
        "nodes": _nodes(sample, data, y, places),
        "edges": {"ptr": packed(sample.ptr.astype(np.uint32)),
                  "source": packed(sample.source.astype(np.uint32))},
        "predictions": _predictions(outputs, sample, model.calibration),
        "attention": _attention(outputs, sample, model.network),
        "attention_missing": not with_attention,
        "smoothing": smoothing,
        "leaderboard": model.leaderboard(),
    }  # fmt: skip


def _has_room(network: Network, near: Neighbors) -> bool:
    """Whether the attention of all layers fits into half of the memory that is free."""
    config = _network_shown(network).config
    heads = int(getattr(config, "heads", 1))
    rows = len(near.source) * heads + (len(near.ptr) - 1) * heads * config.hidden_channels
    return 4.0 * network.num_layers * rows < free_memory(torch.device("cpu")) / 2


def _network_shown(network: Network) -> Network:
    """The network whose layers the page shows: of an ensemble, its heaviest member."""
    if isinstance(network, Ensemble):
        return cast(Network, network.members[network.heaviest])
    return network


def _system(model: TrainedModel) -> dict[str, Any]:
    """The system's name; of an ensemble also its members, with their shares."""
    network, members = model.network, []
    if isinstance(network, Ensemble):
        members = [
            {"name": member["system"], "share": share, "speaks": place == network.heaviest}
            for place, (member, share) in enumerate(
                zip(network.config.members, network.shares, strict=True)
            )
        ]
    return {"name": model.card.system, "members": members}


def _notes(sample: Sample, n: int, edges: int, with_attention: bool, hidden: bool) -> list[str]:
    """What the page leaves out, a sentence each."""
    notes = []
    kept, whole = len(sample.nodes), int(sample.whole.sum())
    if kept < n:
        notes.append(
            f"The graph has {n:,} nodes. This page has {kept:,} of them: {whole:,} drawn at "
            "random, and all neighbours of these. Only the scores count every node."
        )
    elif whole < n:
        notes.append(
            f"The graph has {edges:,} edges, self-loops included. This page has "
            f"{len(sample.edges):,}: all edges into {whole:,} nodes drawn at random."
        )
    if not with_attention:
        notes.append(
            "The attention of all layers did not fit into the memory of the machine that made "
            "this page. Edges are drawn plainly."
        )
    if not hidden:
        notes.append(
            "The network was run in chunks, which keep only its output: the map is drawn from "
            "the logits, and over-smoothing is not measured."
        )
    return notes


def _scores(logits: Tensor, data: NodeDataset, y: Tensor) -> dict[str, Any]:
    """Micro-F1 and number of the labelled nodes of each part; parts without any are left out."""
    found = {}
    for part in SPLITS:
        mask = data.graph[f"{part}_mask"].cpu() & (y >= 0)
        if mask.any():
            score = micro_f1(logits.cpu()[mask], y[mask]).item()
            found[part] = {"micro_f1": score, "nodes": int(mask.sum())}
    return found


def _nodes(sample: Sample, data: NodeDataset, y: Tensor, places: np.ndarray) -> dict[str, Any]:
    n, nodes = int(data.graph.num_nodes), sample.nodes
    part = np.zeros(n, np.uint8)
    for number, name in enumerate(SPLITS, start=1):
        part[data.graph[f"{name}_mask"].cpu().numpy()] = number
    ids: list[str] | None = None
    if data.node_ids:
        ids = [cut_middle(data.node_ids[node], LONGEST_NAME) for node in nodes]
    elif len(nodes) < n:
        ids = [str(node) for node in nodes]
    return {
        "count": len(nodes),
        "ids": ids,
        "parts": list(SPLITS),
        "part": packed(part[nodes]),
        "label": packed(y.numpy()[nodes].astype(np.int16)),
        "whole": None if sample.whole.all() else packed(sample.whole.astype(np.uint8)),
        "position": packed_positions(places),
    }


def _predictions(outputs: LayerOutputs, sample: Sample, calibration: Calibration) -> dict[str, Any]:
    """The class and its probability after every layer that predicts, and the likeliest classes.

    Probabilities are calibrated as in ``Model.predict`` and ``Model.explain``.
    """
    nodes, num_classes = torch.from_numpy(sample.nodes), outputs.logits.size(1)

    def shares_of(logits: Tensor) -> Tensor:
        return calibration.probabilities(logits.float().cpu()[nodes], False)

    layers = sorted(outputs.layer_logits)
    kept = evenly_chosen(len(layers), max(1, MOST_PREDICTIONS // len(nodes)))
    classes, sure = [], []
    for place in kept:
        best = shares_of(outputs.layer_logits[layers[place]]).max(1)
        classes.append(packed_classes(best.indices.numpy(), num_classes))
        sure.append(packed_shares(best.values.numpy()))
    top = shares_of(outputs.logits).topk(min(LIKELIEST, num_classes))
    return {
        "layers": [layers[place] for place in kept],
        "of": len(layers),
        "class": classes,
        "confidence": sure,
        "likeliest": top.indices.size(1),
        "likeliest_class": packed_classes(top.indices.numpy(), num_classes),
        "likeliest_share": packed_shares(top.values.numpy()),
    }


def _attention(outputs: LayerOutputs, sample: Sample, network: Network) -> dict[str, Any] | None:
    """α of every layer, heads averaged; None where the system has none, or too little memory."""
    if not outputs.attention:
        return None
    count, edges = len(outputs.attention), torch.from_numpy(sample.edges)
    kept = evenly_chosen(count, max(1, MOST_WEIGHTS // max(1, len(edges))))
    weights = [outputs.attention[place].weight.float().cpu().mean(1)[edges] for place in kept]
    return {
        "layers": [place + 1 for place in kept],
        "of": count,
        "fixed": network.fixed_attention,
        "weights": [packed_weights(each.numpy()) for each in weights],
    }


def _smoothing(
    outputs: LayerOutputs, near: Neighbors, y: Tensor, test: Tensor
) -> Iterable[dict[str, Any]]:
    """A row per layer: measures of its output h, and the score of its own prediction."""
    known = test & (y >= 0)
    for layer in range(len(outputs.hidden) + 1):
        row: dict[str, Any] = {"layer": layer}
        if layer in outputs.layer_logits and known.any():
            logits = outputs.layer_logits[layer].cpu()
            row["micro_f1"] = micro_f1(logits[known], y[known]).item()
        if layer:
            h = outputs.hidden[layer - 1].cpu()
            row["energy"] = dirichlet_energy(h, near)
            row["relative_energy"] = rayleigh_quotient(h, near)
            row["neighbor_distance"] = neighbor_distance(h, near)
        if len(row) > 1:
            yield row
