"""Classes of whole graphs, measured by cross validation.

Every fold tests once; of the other graphs a ninth, drawn by class, validates and chooses the epoch.
(The usual protocol for these datasets chooses the epoch on the test folds; this one does not.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data.catalogue.graph_sets import GraphDataset
from deepgat.distributed import Team, WholeGraphs, dealt
from deepgat.errors import UserError
from deepgat.models import GIN, ConvStack, GraphClassifier, LayerOutputs, build_network
from deepgat.models.convolutions import CONVS
from deepgat.ops import Neighbors, PartNeighbors, use_part
from deepgat.training.loop import Epoch, GraphInputs, Trained, choose_device, fit_inputs, scores_of
from deepgat.training.recipes import recipe
from deepgat.training.settings import TrainSettings


@dataclass(frozen=True, eq=False)
class BatchInputs(GraphInputs):
    """Several graphs as one of many components; ``nodes`` are the numbers of *graphs* here."""

    graph_of: Tensor
    """[n]: the graph of each node."""

    def run(self, model: Trained, with_attention: bool = False, segment: int = 0) -> LayerOutputs:
        assert isinstance(model, GraphClassifier)
        with use_part(self.part):
            return model.run(self.x, self.neighbors, self.graph_of, len(self.y))


def as_batch(
    graphs: Sequence[Data],
    device: torch.device,
    team: Team | None = None,
    dtype: torch.dtype = torch.float32,
) -> BatchInputs:
    """The graphs side by side: their neighbour lists are the blocks of one diagonal.

    In a team, this process's share of the graphs, each whole.
    """
    mine = list(graphs) if team is None else [graphs[i] for i in dealt(range(len(graphs)), team)]
    sizes = torch.tensor([graph.num_nodes for graph in mine], dtype=torch.long)
    starts = sizes.cumsum(0) - sizes
    none = torch.empty(2, 0, dtype=torch.long)
    shifted = [none, *(g.edge_index + s for g, s in zip(mine, starts.tolist(), strict=True))]
    lists = Neighbors.from_edge_index(torch.cat(shifted, 1), int(sizes.sum())).to(device)
    if team is not None:
        whole = WholeGraphs.among(team, [int(graph.num_nodes or 0) for graph in graphs])
        lists = PartNeighbors.of(lists, whole)
    every = torch.arange(len(mine), device=device)
    first = graphs[0]
    return BatchInputs(
        x=torch.cat([first.x[:0], *(graph.x for graph in mine)]).to(device, dtype),
        neighbors=lists,
        label_features=None,
        y=torch.cat([first.y[:0], *(graph.y for graph in mine)]).to(device),
        nodes={"train": every, "val": every},
        counts={"train": len(graphs), "val": len(graphs)},
        graph_of=torch.repeat_interleave(torch.arange(len(mine)), sizes).to(device),
    )


class GraphBatches:
    """Mini-batches of graphs, drawn anew every epoch."""

    repeated: Sequence[GraphInputs] = ()

    def __init__(
        self,
        train: Sequence[Data],
        val: Sequence[Data],
        size: int,
        device: torch.device,
        team: Team | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.graphs, self.size = train, size
        self.as_batch = partial(as_batch, device=device, team=team, dtype=dtype)
        self.validation: Sequence[GraphInputs] = [self.as_batch(val)]
        largest = sorted((graph.num_nodes or 0 for graph in train), reverse=True)
        self.most_nodes = sum(largest[: -(-size // (1 if team is None else team.size))])

    def training(self) -> Iterator[GraphInputs]:
        order = torch.randperm(len(self.graphs)).split(self.size)
        # Batch norm cannot train on one graph alone: a single last graph joins the batch before it.
        parts = [part.tolist() for part in order]
        if len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2] += parts.pop()
        for part in parts:
            yield self.as_batch([self.graphs[i] for i in part])


@dataclass(frozen=True)
class Fold:
    """One fold: accuracies, and how its training went."""

    number: int
    test: float
    val: float
    best_epoch: int
    epochs: int
    seconds: float
    stopped: str


def folds(y: Tensor, count: int, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(train, validation, test) numbers of graphs, by class; every graph tests once."""
    from sklearn.model_selection import StratifiedKFold  # here: importing it takes a second

    if count < 3:
        raise UserError(f"folds is {count}: expected 3 or more, for training, validation and test")
    smallest = int(torch.bincount(y).min())
    if smallest < count:
        raise UserError(
            f"the smallest class has {smallest} graphs, fewer than the {count} folds: ask for fewer"
        )
    splitter = StratifiedKFold(count, shuffle=True, random_state=seed)
    parts = [torch.from_numpy(test) for _, test in splitter.split(y, y)]
    found = []
    for number, test in enumerate(parts):
        val = parts[(number + 1) % count]
        rest = [part for part in parts if part is not test and part is not val]
        found.append((torch.cat(rest).sort().values, val, test))
    return found


def build_classifier(
    data: GraphDataset, model: str, settings: Mapping[str, Any], pool: str, seed: int
) -> GraphClassifier:
    """The model of whole graphs, its weights drawn from the seed.

    Args:
        data: the graphs.
        model: "gin", a convolution of :class:`~deepgat.models.ConvStack`, or another system.
        settings: fields of its configuration.
        pool: "mean", "sum" or "max" over the nodes of a graph.
        seed: of the weights.
    """
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return GraphClassifier(_body(data.num_features, data.num_classes, model, settings), pool)


def _body(features: int, classes: int, model: str, settings: Mapping[str, Any]) -> Any:
    if model == "gin":
        return GIN(features, out_channels=classes, **{**GIN.Config().to_dict(), **settings})
    if model in CONVS:
        whole = {**ConvStack.Config().to_dict(), "conv": model, **settings}
        return ConvStack(features, out_channels=classes, **whole)
    plan = recipe(model, **settings)
    config = plan.settings.to_dict()
    if plan.system == "oracle":
        raise UserError("the oracle needs the classes of nodes: graphs have their own")
    norms = (config.get("norm", "none"), config.get("feature_norm", "none"))
    if any(norm.startswith("pairnorm") for norm in norms):
        raise UserError("PairNorm would mix the graphs of a batch: choose another model")
    return build_network(plan.system, plan.settings, features, classes)


def cross_validate(
    data: GraphDataset,
    model: str,
    training: TrainSettings,
    *,
    settings: Mapping[str, Any] | None = None,
    pool: str = "sum",
    count: int = 10,
    batch: int = 32,
    seed: int = 0,
    on_epoch: Callable[[int, Epoch], None] | None = None,
    team: Team | None = None,
) -> Iterator[Fold]:
    """Train and test once per fold; a fold is yielded when it is finished.

    ``model`` and ``settings`` are those of :func:`build_classifier`. A team shares the graphs of
    every batch, and finds what one process does.
    """
    if batch < 2:
        raise UserError(f"batch is {batch}: expected 2 or more graphs")
    device = choose_device(training.device) if team is None else team.device
    graphs = data.graphs
    nodes = sum(graph.num_nodes for graph in graphs)
    training = replace(training, seed=seed)
    build_classifier(data, model, settings or {}, pool, seed)  # refuses what it does not know
    for number, (train, val, test) in enumerate(folds(data.y, count, seed), start=1):
        network = build_classifier(data, model, settings or {}, pool, seed).to(device)
        chosen = [[graphs[i] for i in part.tolist()] for part in (train, val, test)]
        inputs = GraphBatches(chosen[0], chosen[1], batch, device, team)

        def watch(epoch: Epoch, number: int = number) -> None:
            if on_epoch is not None:
                on_epoch(number, epoch)

        fitted = fit_inputs(network, inputs, training, nodes, watch, team=team)
        if fitted.stopped == "interrupted":
            raise KeyboardInterrupt
        network.eval()
        tested = as_batch(chosen[2], device, team)
        with torch.no_grad():
            logits = tested.run(network).logits.float()
        accuracy = float(scores_of([logits], [tested], "val", team)[1])
        yield Fold(
            number, accuracy, fitted.best.val_f1, fitted.best.number, len(fitted.history),
            fitted.seconds, fitted.stopped,
        )  # fmt: skip
