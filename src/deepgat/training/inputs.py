"""Inputs of a model: a graph, or this process's part of it, on its device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data import NodeDataset, PropagateLabels
from deepgat.data.transforms import SPLITS
from deepgat.distributed import (
    GraphPart,
    LivePart,
    PartDataset,
    Team,
    WholeGraphs,
    dealt,
    part_of,
)
from deepgat.errors import UserError
from deepgat.models import GraphClassifier, LayerOutputs, Network
from deepgat.models.outputs import Until
from deepgat.ops import (
    Columns,
    Features,
    Neighbors,
    Part,
    PartNeighbors,
    as_features,
    take_rows,
    use_part,
)

WEIGHT = "train_weight"
"""Attribute of a graph, [n] ≥ 0: weight of each training node in the loss; left out: all equal."""

Trained: TypeAlias = Network | GraphClassifier
"""What the loop trains: a model of nodes, or of whole graphs."""


@dataclass(frozen=True, eq=False)
class GraphInputs:
    """One graph, ready to run: on its device, neighbour lists built, labels propagated."""

    x: Features
    neighbors: Neighbors
    label_features: Tensor | None
    y: Tensor
    nodes: dict[str, Tensor]
    """The numbers of the nodes of each part: "train", "val", "test"."""
    counts: dict[str, int]
    """How many there are of each in the whole graph."""
    weight: Tensor | None = field(default=None, kw_only=True)
    """[k]: how much each training node counts in the loss, where not all count alike."""

    @property
    def part(self) -> Part | None:
        """The part of the graph that this is; None where it is whole."""
        return self.neighbors.part if isinstance(self.neighbors, PartNeighbors) else None

    def sampled(self, model: Trained) -> GraphInputs:
        """With the edges of one training step; evaluation always has them all."""
        return replace(self, neighbors=model.edge_sampler(self.neighbors))

    def run(self, model: Trained, with_attention: bool = False, segment: int = 0) -> LayerOutputs:
        assert isinstance(model, Network)
        labels = self.y if model.needs_labels else None
        with use_part(self.part):
            return model.run(
                self.x, self.neighbors, self.label_features, labels, with_attention, segment
            )

    def run_until(self, model: Network, until: Until) -> LayerOutputs:
        """As :meth:`run`, of a whole graph, through no more layers than ``until`` asks for."""
        labels = self.y if model.needs_labels else None
        return model.run(self.x, self.neighbors, self.label_features, labels, until=until)


class Inputs(Protocol):
    """The data of a training run: one step per item of ``training()``, drawn anew every epoch.

    Every process of a team has the same number of items.
    """

    validation: Sequence[GraphInputs]
    repeated: Sequence[GraphInputs]
    """The graphs, if every epoch takes one step on each of them: their steps may be recorded.
    Empty if batches are drawn anew."""
    most_nodes: int

    def training(self) -> Iterable[GraphInputs]: ...


class FixedInputs:
    """Graphs with parts of their nodes for training and validation, in random order.

    Args:
        graphs: all of them, whole; or this process's parts of them, with ``batch`` 1.
        batch: how many make a step, side by side.
        team: shares the graphs of a step, and those to validate on, each of them whole.
    """

    def __init__(
        self, graphs: Sequence[GraphInputs], batch: int = 1, team: Team | None = None
    ) -> None:
        self.graphs = [graph for graph in graphs if graph.counts["train"]]
        self.batch, self.team = batch, team
        validation = [graph for graph in graphs if graph.counts["val"]]
        self.validation: Sequence[GraphInputs] = whole_share(validation, team)
        self.repeated: Sequence[GraphInputs] = self.graphs if batch == 1 and team is None else ()
        sizes = sorted((graph.neighbors.square.num_nodes for graph in graphs), reverse=True)
        self.most_nodes = sum(sizes[: -(-batch // (1 if team is None else team.size))])

    def training(self) -> Iterator[GraphInputs]:
        count = len(self.graphs)
        order = torch.zeros(1, dtype=torch.long) if count == 1 else torch.randperm(count)
        for numbers in order.split(self.batch):
            graphs = [self.graphs[index] for index in numbers.tolist()]
            alone = len(graphs) == 1 and self.team is None
            yield graphs[0] if alone else side_by_side(graphs, self.team)


def side_by_side(graphs: Sequence[GraphInputs], team: Team | None) -> GraphInputs:
    """Several graphs as one of as many components; in a team, this process's share of them."""
    mine = list(graphs) if team is None else [graphs[i] for i in dealt(range(len(graphs)), team)]
    counts = {name: sum(graph.counts[name] for graph in graphs) for name in SPLITS}
    mine = mine or [empty_like(graphs[0])]
    lists = Neighbors.side_by_side([graph.neighbors for graph in mine])
    if team is not None:
        part = WholeGraphs.among(team, [graph.neighbors.num_nodes for graph in graphs])
        lists = PartNeighbors.of(lists, part)
    starts = [0, *accumulate(graph.neighbors.num_nodes for graph in mine)][:-1]
    labels = [graph.label_features for graph in mine if graph.label_features is not None]
    return GraphInputs(
        x=torch.cat([_dense(graph.x) for graph in mine]),
        neighbors=lists,
        label_features=torch.cat(labels) if labels else None,
        y=torch.cat([graph.y for graph in mine]),
        nodes={
            name: torch.cat([g.nodes[name] + s for g, s in zip(mine, starts, strict=True)])
            for name in SPLITS
        },
        counts=counts,
    )


def whole_share(graphs: Sequence[GraphInputs], team: Team | None) -> list[GraphInputs]:
    """This process's share of the graphs, filled up with empty ones: as many in every process."""
    if team is None:
        return list(graphs)
    mine = [graphs[i] for i in dealt(range(len(graphs)), team)]
    return mine + [empty_like(graphs[0])] * (-(-len(graphs) // team.size) - len(mine))


def empty_like(graph: GraphInputs) -> GraphInputs:
    """A graph without nodes."""
    device = graph.y.device
    assert not isinstance(graph.x, Columns)
    lists = Neighbors.from_edge_index(torch.empty(2, 0, dtype=torch.long, device=device), 0)
    weight, features = graph.neighbors.log_weight, graph.neighbors.features
    return GraphInputs(
        x=take_rows(graph.x, graph.nodes["train"][:0]),
        neighbors=replace(
            lists,
            log_weight=None if weight is None else weight[:0],
            features=None if features is None else features[:0],
        ),
        label_features=None if graph.label_features is None else graph.label_features[:0],
        y=graph.y[:0],
        nodes={name: numbers[:0] for name, numbers in graph.nodes.items()},
        counts=graph.counts,
    )


def _dense(x: Features) -> Tensor:
    if not isinstance(x, Tensor):
        raise UserError(
            "batch_graphs is above 1, but the features are sparse: several graphs in a step need "
            "dense ones"
        )
    return x


def prepare(
    model: Network,
    dataset: NodeDataset | PartDataset,
    device: torch.device,
    team: Team | None = None,
) -> list[GraphInputs]:
    """The inputs of every graph of the data for this model; done once, before any epoch."""
    if team is not None:
        if isinstance(dataset, NodeDataset) and any(WEIGHT in each for each in dataset.graphs):
            raise UserError(f"{WEIGHT} is for one process alone: leave it out, or train in one")
        return [_of_part(model, part, team) for part in part_of(dataset, team).parts]
    if isinstance(dataset, PartDataset):
        raise UserError(
            f"{dataset.title} is a part of a dataset: train on it with {dataset.of} processes"
        )
    propagate = None
    if model.label_hops:
        propagate = PropagateLabels(
            model.label_hops, model.first_labels, num_classes=dataset.num_classes
        )
    inputs = []
    for graph in dataset.graphs:
        labelled = graph if propagate is None else propagate(graph)
        z = None if propagate is None else labelled.label_features.to(device)
        masks = {name: graph[f"{name}_mask"] for name in SPLITS}
        inputs.append(
            GraphInputs(
                x=_on(graph.x, device),
                neighbors=_lists(graph, graph.num_nodes).to(device),
                label_features=z,
                y=graph.y.to(device),
                nodes=_nodes(masks, device),
                counts={name: int(mask.sum()) for name, mask in masks.items()},
                weight=graph[WEIGHT][graph.train_mask].to(device) if WEIGHT in graph else None,
            )
        )
    return inputs


def _of_part(model: Network, part: GraphPart, team: Team) -> GraphInputs:
    device = team.device
    live = LivePart.meet(team, part.own, part.ids, part.halo_counts.tolist(), part.num_nodes)
    square = _lists(part, part.ids.numel()).to(device)
    own_counts = torch.tensor([int(part.masks[name].sum()) for name in SPLITS], device=device)
    counts = team.sum(own_counts).tolist()
    return GraphInputs(
        x=_on(part.x, device),
        neighbors=PartNeighbors.of(square, live),
        label_features=_label_features(model, part, device),
        y=part.y.to(device),
        nodes=_nodes(part.masks, device),
        counts=dict(zip(SPLITS, counts, strict=True)),
    )


def _label_features(model: Network, part: GraphPart, device: torch.device) -> Tensor | None:
    """z_1, z_2, … for this model, from what the part keeps."""
    if not model.label_hops:
        return None
    if part.label_features is None:
        raise UserError(
            "label propagation needs one class per node, but this data has several labels per "
            "node: turn label propagation off for it"
        )
    kept = part.label_features.size(1)
    if model.label_hops > kept:
        raise UserError(
            f"label_hops is {model.label_hops} but a divided graph keeps {kept} hops: lower it"
        )
    z = part.label_features.to(device)
    if model.first_labels == "zero":
        z = torch.cat([torch.zeros_like(z[:, :1]), z[:, 1:]], 1)
    return z


def _lists(graph: Data | GraphPart, num_nodes: int) -> Neighbors:
    """The neighbour lists with the edges' weights and features, where there are any."""
    lists = Neighbors.from_edge_index(graph.edge_index, num_nodes)
    if graph.edge_weight is None and graph.edge_attr is None:
        return lists
    return lists.with_values(graph.edge_index, graph.edge_weight, graph.edge_attr)


def _nodes(masks: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: mask.nonzero().squeeze(1).to(device) for name, mask in masks.items()}


def _on(x: Features, device: torch.device) -> Features:
    x = as_features(x)
    assert not isinstance(x, Columns)
    return x.to(device)
