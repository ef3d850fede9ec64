"""Inputs of a model: a graph, or this process's part of it, on its device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data import NodeDataset, PropagateLabels
from deepgat.data.transforms import SPLITS
from deepgat.distributed import HaloPart, PartDataset, Team, WholeGraphs, dealt, part_of
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


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphInputs:
    """One graph, ready to run: on its device, neighbour lists built, labels propagated.

    Where whole graphs are classified, it may be several graphs side by side. ``y`` and ``nodes``
    then count graphs instead of nodes.
    """

    x: Features
    neighbors: Neighbors
    label_features: Tensor | None = None
    y: Tensor
    nodes: dict[str, Tensor]
    """The numbers of the nodes of each part: "train", "val", "test"."""
    counts: dict[str, int]
    """The number of nodes of each part in the whole graph."""
    weight: Tensor | None = None
    """[k]: weight of each training node in the loss; None: all equal."""
    graph_of: Tensor | None = None
    """[n]: the graph of each node, where whole graphs are classified."""

    @property
    def part(self) -> Part | None:
        """The part of the graph that this is; None for a whole graph."""
        return self.neighbors.part if isinstance(self.neighbors, PartNeighbors) else None

    def gathered(self, rows: Tensor) -> Tensor | None:
        """Rows of all nodes, by their numbers, in the first process of a team; None elsewhere."""
        return rows if self.part is None else self.part.gathered(rows)

    def sampled(self, model: Trained) -> GraphInputs:
        """With the edges of one training step; evaluation always has them all."""
        return replace(self, neighbors=model.edge_sampler(self.neighbors))

    def run(
        self,
        model: Trained,
        with_attention: bool = False,
        segment: int = 0,
        until: Until | None = None,
    ) -> LayerOutputs:
        """The arguments are those of :meth:`Network.run`."""
        with use_part(self.part):
            if isinstance(model, GraphClassifier):
                assert self.graph_of is not None
                return model.run(self.x, self.neighbors, self.graph_of, len(self.y))
            labels = self.y if model.needs_labels else None
            known = (self.x, self.neighbors, self.label_features, labels)
            return model.run(*known, with_attention, segment, until)


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


class GraphBatches:
    """Whole graphs in random order.

    Args:
        graphs: to train on, whole; or this process's parts of them, with ``batch`` 1.
        validation: to validate on.
        batch: how many make a step, side by side.
        team: shares the graphs of a step, each of them whole.
    """

    def __init__(
        self,
        graphs: Sequence[GraphInputs],
        validation: Sequence[GraphInputs],
        batch: int = 1,
        team: Team | None = None,
    ) -> None:
        self.graphs, self.validation = graphs, validation
        self.batch, self.team = batch, team
        self.repeated: Sequence[GraphInputs] = graphs if batch == 1 and team is None else ()
        sizes = sorted((graph.neighbors.square.num_nodes for graph in graphs), reverse=True)
        self.most_nodes = sum(sizes[: -(-batch // (1 if team is None else team.size))])

    def training(self) -> Iterator[GraphInputs]:
        count = len(self.graphs)
        order = torch.zeros(1, dtype=torch.long) if count == 1 else torch.randperm(count)
        steps = [numbers.tolist() for numbers in order.split(self.batch)]
        if self.graphs[0].graph_of is not None and len(steps) > 1 and len(steps[-1]) == 1:
            # batch norm cannot train on one graph alone: it joins the batch before it
            steps[-2] += steps.pop()
        for numbers in steps:
            graphs = [self.graphs[index] for index in numbers]
            alone = len(graphs) == 1 and self.team is None
            yield graphs[0] if alone else side_by_side(graphs, self.team)


def side_by_side(graphs: Sequence[GraphInputs], team: Team | None = None) -> GraphInputs:
    """Several graphs as one of as many components; in a team, this process's share of them."""
    mine = graphs if team is None else dealt(graphs, team) or [empty_like(graphs[0])]
    lists = Neighbors.side_by_side([graph.neighbors for graph in mine])
    if team is not None:
        part = WholeGraphs.among(team, [graph.neighbors.num_nodes for graph in graphs])
        lists = PartNeighbors.of(lists, part)
    starts = [0, *accumulate(len(graph.y) for graph in mine)][:-1]

    def joined(items: list[Tensor]) -> Tensor:
        return torch.cat([item + start for item, start in zip(items, starts, strict=True)])

    labels = [graph.label_features for graph in mine if graph.label_features is not None]
    graph_of = [graph.graph_of for graph in mine if graph.graph_of is not None]
    return GraphInputs(
        x=torch.cat([_dense(graph.x) for graph in mine]),
        neighbors=lists,
        label_features=torch.cat(labels) if labels else None,
        y=torch.cat([graph.y for graph in mine]),
        nodes={name: joined([graph.nodes[name] for graph in mine]) for name in mine[0].nodes},
        counts={name: sum(graph.counts[name] for graph in graphs) for name in mine[0].counts},
        graph_of=joined(graph_of) if graph_of else None,
    )


def shared(graphs: Sequence[GraphInputs], team: Team) -> list[GraphInputs]:
    """This process's share of the graphs, filled up with empty ones: as many in every process."""
    mine = dealt(graphs, team)
    return mine + [empty_like(graphs[0])] * (-(-len(graphs) // team.size) - len(mine))


def empty_like(graph: GraphInputs) -> GraphInputs:
    """A graph without nodes."""
    assert not isinstance(graph.x, Columns)
    none = torch.empty(2, 0, dtype=torch.long, device=graph.y.device)
    weight, features = graph.neighbors.log_weight, graph.neighbors.features
    return replace(
        graph,
        x=take_rows(graph.x, none[0]),
        neighbors=replace(
            Neighbors.from_edge_index(none, 0),
            log_weight=None if weight is None else weight[:0],
            features=None if features is None else features[:0],
        ),
        label_features=None if graph.label_features is None else graph.label_features[:0],
        y=graph.y[:0],
        nodes={name: numbers[:0] for name, numbers in graph.nodes.items()},
        graph_of=None if graph.graph_of is None else graph.graph_of[:0],
    )


def _dense(x: Features) -> Tensor:
    if not isinstance(x, Tensor):
        raise UserError(
            "batches=graphs, but the features are sparse: several graphs in a step need dense ones"
        )
    return x


def prepare(
    model: Network, dataset: NodeDataset, device: torch.device, team: Team | None = None
) -> list[GraphInputs]:
    """The inputs of every graph of the data for this model; done once, before any epoch."""
    if team is not None:
        if not isinstance(dataset, PartDataset):
            dataset.check()
        if any(WEIGHT in graph for graph in dataset.graphs):
            raise UserError(f"{WEIGHT} is for one process alone: leave it out, or train in one")
        return [_of_part(model, part, team) for part in part_of(dataset, team).graphs]
    if isinstance(dataset, PartDataset):
        raise UserError(
            f"{dataset.title} is a part of a dataset: train on it with {dataset.of} processes"
        )
    dataset.check()
    inputs = []
    for graph in dataset.graphs:
        z = None
        if model.label_hops:
            propagate = PropagateLabels(
                model.label_hops, model.first_labels, num_classes=dataset.num_classes
            )
            z = propagate(graph).label_features.to(device)
        nodes = _nodes(graph, device)
        inputs.append(
            GraphInputs(
                x=_on(graph.x, device),
                neighbors=_lists(graph, graph.num_nodes).to(device),
                label_features=z,
                y=(graph.y.long() if graph.y.dim() == 1 else graph.y).to(device),
                nodes=nodes,
                counts={name: numbers.numel() for name, numbers in nodes.items()},
                weight=graph[WEIGHT][graph.train_mask].to(device) if WEIGHT in graph else None,
            )
        )
    return inputs


def prepare_graph(graph: Data, device: torch.device) -> GraphInputs:
    """The inputs of a graph that has a class of its own, ``y`` [1]."""
    itself = torch.zeros(1, dtype=torch.long, device=device)
    return GraphInputs(
        x=_on(graph.x, device),
        neighbors=Neighbors.from_edge_index(graph.edge_index, graph.num_nodes).to(device),
        y=graph.y.to(device),
        nodes={"train": itself, "val": itself},
        counts={"train": 1, "val": 1},
        graph_of=itself.expand(graph.num_nodes),
    )


def _of_part(model: Network, part: Data, team: Team) -> GraphInputs:
    device = team.device
    halo = HaloPart.meet(team, part.own, part.ids, part.halo_counts.tolist(), part.num_nodes)
    square = _lists(part, part.ids.numel()).to(device)
    nodes = _nodes(part, device)
    counts = team.sum(torch.tensor([nodes[name].numel() for name in SPLITS], device=device))
    return GraphInputs(
        x=_on(part.x, device),
        neighbors=PartNeighbors.of(square, halo),
        label_features=_label_features(model, part, device),
        y=part.y.to(device),
        nodes=nodes,
        counts=dict(zip(SPLITS, counts.tolist(), strict=True)),
    )


def _label_features(model: Network, part: Data, device: torch.device) -> Tensor | None:
    """z_1, z_2, … for this model, from what the part keeps."""
    if not model.label_hops:
        return None
    if "label_features" not in part:
        raise UserError(
            "label propagation needs one class per node, but this data has several labels per "
            "node: set label_hops=0"
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


def _lists(graph: Data, num_nodes: int) -> Neighbors:
    """The neighbour lists, with the edges' weights and features if they have any."""
    lists = Neighbors.from_edge_index(graph.edge_index, num_nodes)
    if graph.edge_weight is None and graph.edge_attr is None:
        return lists
    return lists.with_values(graph.edge_index, graph.edge_weight, graph.edge_attr)


def _nodes(graph: Data, device: torch.device) -> dict[str, Tensor]:
    return {name: graph[f"{name}_mask"].nonzero().squeeze(1).to(device) for name in SPLITS}


def _on(x: Features, device: torch.device) -> Features:
    x = as_features(x)
    assert not isinstance(x, Columns)
    return x.to(device)
