"""Classes of whole graphs, measured by cross validation.

Every fold tests once; of the other graphs a ninth, drawn by class, validates and chooses the epoch.
(The usual protocol for these datasets chooses the epoch on the test folds; this one does not.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepgat.data.catalogue.graph_sets import GraphDataset
from deepgat.distributed import Team
from deepgat.errors import UserError
from deepgat.models import GIN, ConvStack, GraphClassifier, build_network, find_system
from deepgat.models.config import Config
from deepgat.models.convolutions import CONVS
from deepgat.training.class_weights import class_weights, counts_of
from deepgat.training.device import choose_device, own_random_numbers
from deepgat.training.evaluate import losses_and_f1
from deepgat.training.inputs import GraphBatches, prepare_graph, side_by_side
from deepgat.training.loop import run_epochs
from deepgat.training.recipes import recipe
from deepgat.training.resume import Epoch
from deepgat.training.settings import TrainSettings
from deepgat.training.trainer import Trainer


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
    with torch.device("cpu"), own_random_numbers(seed, torch.device("cpu")):
        return GraphClassifier(_body(data.num_features, data.num_classes, model, settings), pool)


def config_of(model: str) -> type[Config]:
    """The configuration of a model that :func:`build_classifier` takes."""
    if model == "gin":
        return GIN.Config
    return ConvStack.Config if model in CONVS else find_system(model).network.Config


def _body(features: int, classes: int, model: str, settings: Mapping[str, Any]) -> Any:
    if model == "gin":
        return GIN(features, out_channels=classes, **{**GIN.Config().to_dict(), **settings})
    if model in CONVS:
        whole = {**ConvStack.Config().to_dict(), "conv": model, **settings}
        return ConvStack(features, out_channels=classes, **whole)
    plan = recipe(model, **settings)
    config = plan.settings.to_dict()
    if find_system(plan.system).sees_every_label:
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
    nodes = sum(graph.num_nodes for graph in data.graphs)
    training = replace(training, seed=seed)
    build_classifier(data, model, settings or {}, pool, seed)  # refuses what it does not know
    graphs = [prepare_graph(graph, device) for graph in data.graphs]
    for number, numbers in enumerate(folds(data.y, count, seed), start=1):
        train, val, test = ([graphs[i] for i in part.tolist()] for part in numbers)
        network = build_classifier(data, model, settings or {}, pool, seed).to(device)
        inputs = GraphBatches(train, [side_by_side(val, team)], batch, team)
        weight = None
        if training.class_weight is not None:
            counts = counts_of(data.y[numbers[0]], data.num_classes)
            weight = class_weights(training.class_weight, counts)
        trainer = Trainer(network, inputs, training, nodes, team=team, class_weight=weight)
        watch = None if on_epoch is None else partial(on_epoch, number)
        fitted = run_epochs(trainer, watch)
        if fitted.stopped == "interrupted":
            raise KeyboardInterrupt
        network.eval()
        tested = side_by_side(test, team)
        with torch.no_grad():
            logits = tested.run(network).logits.float()
        accuracy = float(losses_and_f1([logits], [tested], "val", team)[1])
        yield Fold(
            number, accuracy, fitted.best.val_f1, fitted.best.number, len(fitted.history),
            fitted.seconds, fitted.stopped,
        )  # fmt: skip
