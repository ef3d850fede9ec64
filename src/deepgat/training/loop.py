"""The training loop: one for one graph and for many."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from deepgat.data import NodeDataset
from deepgat.distributed import PartDataset, Team
from deepgat.distributed.interrupts import stop_asked
from deepgat.errors import UserError
from deepgat.models import Network
from deepgat.nn.norms import PairNorm
from deepgat.training.device import choose_device, own_random_numbers
from deepgat.training.epoch import Epochs
from deepgat.training.evaluate import Evaluation, evaluate, scores_of
from deepgat.training.inputs import WEIGHT, FixedInputs, GraphInputs, Inputs, Trained, prepare
from deepgat.training.minibatch import SampledInputs
from deepgat.training.resume import Epoch, Progress, Weights, best_of
from deepgat.training.settings import MONITORS, PRECISIONS, TrainSettings

__all__ = [
    "MONITORS",
    "PRECISIONS",
    "Epoch",
    "Evaluation",
    "FitResult",
    "FixedInputs",
    "GraphInputs",
    "Inputs",
    "TrainSettings",
    "Trained",
    "choose_device",
    "evaluate",
    "fit",
    "fit_inputs",
    "prepare",
    "scores_of",
]


@dataclass(frozen=True)
class FitResult:
    """Result of a training run. The model itself holds the best epoch's weights."""

    history: list[Epoch]
    best: Epoch
    stopped: str
    """"patience", "epochs" or "interrupted"."""
    seconds: float


def fit(
    model: Network,
    dataset: NodeDataset | PartDataset,
    settings: TrainSettings | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    cuda_graphs: bool = True,
    team: Team | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Train the model on the data; it ends with the weights of its best epoch.

    Every epoch takes one step per graph with training nodes (or per ``batch_graphs`` of them), in
    random order, or per mini-batch where the settings ask for them (``minibatch.py``); then it
    looks at the validation nodes. Test labels are never read. Ctrl-C ends the training early,
    keeping the best weights so far. Same seed, same machine: same numbers.

    Args:
        model: from :mod:`deepgat.models`; moved to the device.
        dataset: from :func:`deepgat.data.load_graph`.
        settings: how to train.
        on_epoch: called after every epoch, to show progress.
        cuda_graphs: on a GPU, record the step and replay it (where the data is one graph).
        team: the processes that train together, each calling this with the same model and with
            the data, or its part of it; the results are those of one process, up to rounding.
        progress: where to save the state of the run, and to resume it from.
    """
    settings = TrainSettings() if settings is None else settings
    device = choose_device(settings.device) if team is None else team.device
    model.to(device)
    inputs: Inputs
    if settings.batches == "none":
        inputs = _whole_steps(model, dataset, settings, device, team)
    elif team is None:
        graphs = prepare(model, dataset, torch.device("cpu"))
        _require_nodes(dataset, graphs)
        if any(graph.weight is not None for graph in graphs):
            raise UserError(f"{WEIGHT} is for steps on the whole graph: set batches=none")
        inputs = SampledInputs(model, graphs, settings, device)
    else:
        raise UserError(
            f"batches={settings.batches} is for one process: train in one, or set batches=none"
        )
    nodes = dataset.num_nodes
    return fit_inputs(model, inputs, settings, nodes, on_epoch, cuda_graphs, team, progress)


def _whole_steps(
    model: Network,
    dataset: NodeDataset | PartDataset,
    settings: TrainSettings,
    device: torch.device,
    team: Team | None,
) -> FixedInputs:
    """Graphs, or this process's parts of them, each seen whole in a step."""
    whole = dataset.graphs if isinstance(dataset, NodeDataset) else ()
    several = len(whole) > 1
    count = settings.batch_graphs
    if count > 1 and isinstance(dataset, PartDataset) and len(dataset.parts) > 1:
        raise UserError(
            f"batch_graphs is {count}, but {dataset.title} is divided already: train on the "
            "graphs themselves, or set batch_graphs to 1"
        )
    if count > 1 and several:
        if any(WEIGHT in graph for graph in whole):
            raise UserError(f"{WEIGHT} is for one graph a step: set batch_graphs to 1")
        if any(isinstance(module, PairNorm) for module in model.modules()):
            raise UserError(
                "PairNorm takes its means over all nodes of a step, so it would mix the graphs of "
                "one: set batch_graphs to 1, or choose another normalisation"
            )
    sharing = team if several and count > 1 else None  # whole graphs of every step
    graphs = prepare(model, dataset, device, team if sharing is None else None)
    _require_nodes(dataset, graphs)
    return FixedInputs(graphs, count if several else 1, sharing)


def fit_inputs(
    model: Trained,
    inputs: Inputs,
    settings: TrainSettings,
    nodes: int,
    on_epoch: Callable[[Epoch], None] | None = None,
    cuda_graphs: bool = True,
    team: Team | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """As :func:`fit`, for inputs that are on the device of the model already.

    ``nodes``: nodes of the whole data, of which these inputs may be a part.
    """
    device = inputs.validation[0].y.device
    if progress is not None and team is not None:  # one file, by one process
        progress = replace(progress, writes=progress.writes and team.rank == 0)
    epoch_of = Epochs(model, inputs, settings, nodes, cuda_graphs, team)
    best_weights, spare = Weights(model), Weights(model)
    stopped, start = "epochs", time.perf_counter()
    with own_random_numbers(settings.seed, device), stop_asked(team) as asked:
        history: list[Epoch] = []
        if progress is not None:
            kept = best_weights.named()
            history, before, state = progress.read(model, kept, epoch_of.optimizer)
            epoch_of.restore(state)
            start -= before
        best = best_of(history)
        try:
            for number in range(len(history) + 1, settings.epochs + 1):
                if epoch_of.over(history) and not epoch_of.begin_second_stage(
                    best_weights, history
                ):
                    break
                epoch = Epoch(number, *epoch_of(number))
                if best is None or epoch_of.better(epoch, best):
                    with epoch_of.kept_weights():
                        spare.keep()  # into a spare copy: Ctrl-C may interrupt it
                    epoch = best = replace(epoch, best_number=number)
                    best_weights, spare = spare, best_weights
                else:
                    epoch = replace(epoch, best_number=best.number)
                history.append(epoch)
                if on_epoch is not None:
                    on_epoch(epoch)
                if progress is not None and progress.due(number):
                    seconds, state = time.perf_counter() - start, epoch_of.state()
                    kept = best_weights.named()
                    progress.write(model, kept, epoch_of.optimizer, history, seconds, state)
                if asked():
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if best is None:  # nothing to keep yet
                raise
            stopped = "interrupted"
        finally:
            epoch_of.release()
    assert best is not None
    if stopped == "epochs" and epoch_of.over(history):
        stopped = "patience"
    best_weights.restore()
    return FitResult(history, best, stopped, time.perf_counter() - start)


def _require_nodes(dataset: NodeDataset | PartDataset, graphs: Sequence[GraphInputs]) -> None:
    for part, name in (("train", "training"), ("val", "validation")):
        if not any(graph.counts[part] for graph in graphs):
            raise UserError(
                f"{dataset.title} has no {name} nodes: set {part}_mask, or apply SplitNodes"
            )
