"""The training loop: one for one graph and for many."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from deepgat.data import NodeDataset
from deepgat.distributed import PartDataset, Team, stop_asked
from deepgat.errors import UserError
from deepgat.models import Network
from deepgat.nn.norms import PairNorm
from deepgat.nn.remembered import remembering
from deepgat.training.class_weights import class_weights, counts_of
from deepgat.training.device import choose_device, few_threads, own_random_numbers
from deepgat.training.inputs import WEIGHT, GraphBatches, GraphInputs, Inputs, prepare, shared
from deepgat.training.minibatch import SampledInputs
from deepgat.training.resume import Epoch, Progress
from deepgat.training.settings import TrainSettings
from deepgat.training.trainer import Trainer


@dataclass(frozen=True)
class FitResult:
    """Result of a training run. The model itself holds the best epoch's weights."""

    history: list[Epoch]
    best: Epoch
    stopped: str
    """"patience", "epochs", "interrupted", "paused" to be resumed, or of a search "time"."""
    seconds: float


def train(
    model: Network,
    dataset: NodeDataset,
    settings: TrainSettings | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    cuda_graphs: bool = True,
    team: Team | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Train the model on the data; it ends with the weights of its best epoch.

    Every epoch takes one step per graph with training nodes (or per batch of several), in
    random order, or per mini-batch where the settings ask for them (``minibatch.py``); then it
    looks at the validation nodes. Test labels are never read. Ctrl-C ends the training early,
    keeping the best weights so far. Same seed, same machine: same numbers.

    Args:
        model: from :mod:`deepgat.models`; moved to the device.
        dataset: from :func:`deepgat.data.load_graph`.
        settings: how to train.
        on_epoch: called after every epoch, to show progress. If it has a method ``restored``,
            that gets the epochs which a resumed run goes on from.
        cuda_graphs: on a GPU, record the step and replay it (where the data is one graph).
        team: the processes that train together, each calling this with the same model and with
            the data, or its part of it; the results are those of one process, up to rounding.
        progress: where to save the state of the run, and to resume it from.
    """
    settings = TrainSettings() if settings is None else settings
    device = choose_device(settings.device) if team is None else team.device
    model.to(device)
    inputs: Inputs
    if not settings.in_parts:
        inputs = _whole_graphs(model, dataset, settings, device, team)
    elif team is None:
        graphs = prepare(model, dataset, torch.device("cpu"))
        _require_nodes(dataset, graphs)
        if any(graph.weight is not None for graph in graphs):
            raise UserError(f"{WEIGHT} is for steps on the whole graph: set batches=none")
        _refuse_numbers(model, settings)
        inputs = SampledInputs(model, graphs, settings, device)
    else:
        raise UserError(
            f"batches={settings.batches} is for one process: train in one, or set batches=none"
        )
    weight = None
    if settings.class_weight is not None:
        labels = torch.cat([graph.y[graph.train_mask] for graph in dataset.graphs])
        counts = counts_of(labels, dataset.num_classes)
        if isinstance(dataset, PartDataset) and team is not None:
            counts = team.sum(counts.to(device)).cpu()
        weight = class_weights(settings.class_weight, counts, dataset.class_names)
    trainer = Trainer(model, inputs, settings, dataset.num_nodes, cuda_graphs, team, weight)
    size = dataset.num_nodes + sum(graph.num_edges for graph in dataset.graphs)
    with few_threads(size, device), remembering():
        return run_epochs(trainer, on_epoch, progress)


def _refuse_numbers(model: Network, settings: TrainSettings) -> None:
    """A batch numbers its nodes anew."""
    if model.reads_node_numbers:
        raise UserError(
            f"batches={settings.batches}, but with right below 1 which nodes are wrong depends on "
            "their numbers in the whole graph: set batches=none"
        )


def _whole_graphs(
    model: Network,
    dataset: NodeDataset,
    settings: TrainSettings,
    device: torch.device,
    team: Team | None,
) -> GraphBatches:
    """Graphs, or this process's parts of them, each seen whole in a step."""
    graphs = dataset.graphs
    batch = settings.graphs_per_step if len(graphs) > 1 else 1
    if batch > 1 and isinstance(dataset, PartDataset):
        raise UserError(
            f"batches=graphs, but {dataset.title} is divided already: train on the graphs "
            "themselves, or set batches=none"
        )
    if batch > 1 and any(WEIGHT in graph for graph in graphs):
        raise UserError(f"{WEIGHT} is for one graph a step: set batches=none")
    if batch > 1 and any(isinstance(module, PairNorm) for module in model.modules()):
        raise UserError(
            "PairNorm takes its means over all nodes of a step, so it would mix the graphs of "
            "one: set batches=none, or choose another normalisation"
        )
    if batch > 1:
        _refuse_numbers(model, settings)
    sharing = team if batch > 1 else None  # each process has whole graphs of every step
    inputs = prepare(model, dataset, device, team if sharing is None else None)
    _require_nodes(dataset, inputs)
    validation = [graph for graph in inputs if graph.counts["val"]]
    return GraphBatches(
        [graph for graph in inputs if graph.counts["train"]],
        validation if sharing is None else shared(validation, sharing),
        batch,
        sharing,
    )


def run_epochs(
    trainer: Trainer,
    on_epoch: Callable[[Epoch], None] | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Train until patience or the epochs run out, or Ctrl-C."""
    settings, team = trainer.settings, trainer.team
    stopped, start = "epochs", time.perf_counter()
    with own_random_numbers(settings.seed, trainer.device), stop_asked(team) as asked:
        if progress is not None and (saved := progress.read()) is not None:
            trainer.restore(saved)
            start -= saved.seconds
            restored = getattr(on_epoch, "restored", None)
            if restored is not None:  # a tracker's: it may lack epochs of the earlier process
                restored(saved.history)
        try:
            while len(trainer.history) < settings.epochs:
                if progress is not None and 0 < progress.pause <= len(trainer.history):
                    stopped = "paused"
                    break
                if trainer.patience_over() and not trainer.begin_second_stage():
                    break
                epoch = trainer.run_epoch()
                if on_epoch is not None:
                    on_epoch(epoch)
                if progress is not None and epoch.number % progress.every == 0:
                    state = trainer.state()
                    if team is None or team.rank == 0:
                        progress.write(state, trainer.history, time.perf_counter() - start)
                if asked():
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if trainer.best is None:  # nothing to keep yet
                raise
            stopped = "interrupted"
        else:
            if progress is not None and progress.to_the_end and trainer.history:
                progress.write(trainer.state(), trainer.history, time.perf_counter() - start)
        finally:
            trainer.release()
    assert trainer.best is not None
    if stopped == "epochs" and trainer.patience_over():
        stopped = "patience"
    trainer.restore_best()
    return FitResult(trainer.history, trainer.best, stopped, time.perf_counter() - start)


def _require_nodes(dataset: NodeDataset, graphs: list[GraphInputs]) -> None:
    dataset.check_labels()
    for part, name in (("train", "training"), ("val", "validation")):
        if not any(graph.counts[part] for graph in graphs):
            raise UserError(
                f"{dataset.title} has no {name} nodes: set {part}_mask, or apply SplitNodes"
            )
