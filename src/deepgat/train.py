"""The training loop: one for one graph and for many."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from deepgat.averaging import AveragedWeights
from deepgat.batches import SampledInputs
from deepgat.data import NodeDataset
from deepgat.devices import autocast, choose_device, own_random_numbers
from deepgat.distributed import PartDataset, Team
from deepgat.distributed.interrupts import stop_asked
from deepgat.errors import UserError
from deepgat.inputs import WEIGHT, FixedInputs, GraphInputs, Inputs, Network, prepare
from deepgat.nn import AttentionStack, LayerOutputs
from deepgat.nn.checkpoint import CHECKPOINTS, chosen, free_memory, segment_length
from deepgat.nn.edges import all_edges
from deepgat.nn.norms import PairNorm
from deepgat.ops import use_heads, use_part
from deepgat.progress import Epoch, Progress, Weights, best_of, last_gain, monitored, under
from deepgat.replay import Recorded
from deepgat.scoring import (
    Evaluation,
    by_parts,
    evaluate,
    full,
    heads_of,
    losses_and_f1,
    scores_of,
)
from deepgat.teacher import Teacher
from deepgat.training import CALIBRATED, MONITORS, PRECISIONS, TrainSettings

__all__ = [
    "MONITORS",
    "PRECISIONS",
    "Epoch",
    "Evaluation",
    "FitResult",
    "FixedInputs",
    "GraphInputs",
    "Inputs",
    "Network",
    "TrainSettings",
    "choose_device",
    "evaluate",
    "fit",
    "fit_inputs",
    "prepare",
    "scores_of",
]


TEMPERATURES = tuple(2.0 ** (k / 4) for k in range(-8, 17))
"""Those of the calibrated loss: from 1/4 to 16."""


@dataclass(frozen=True)
class FitResult:
    """How the training went. The model itself now holds the best epoch's weights."""

    history: list[Epoch]
    best: Epoch
    stopped: str
    """"patience", "epochs" or "interrupted"."""
    seconds: float


def fit(
    model: AttentionStack,
    dataset: NodeDataset | PartDataset,
    settings: TrainSettings | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    cuda_graphs: bool = True,
    team: Team | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Train the model on the data; it ends with the weights of its best epoch.

    Every epoch takes one step per graph with training nodes (or per ``batch_graphs`` of them), in
    random order, or per mini-batch where the settings ask for them (:mod:`deepgat.batches`); then
    it looks at the validation nodes. Test labels are never read. Ctrl-C ends the training early,
    keeping the best weights so far. Same seed, same machine: same numbers.

    Args:
        model: from :mod:`deepgat.nn`; moved to the device.
        dataset: from :func:`deepgat.data.load_graph`.
        settings: how to train.
        on_epoch: called after every epoch, to show progress.
        cuda_graphs: on a GPU, record the step and replay it (where the data is one graph).
        team: the processes that train together, each calling this with the same model and with
            the data, or its part of it; the results are those of one process, up to rounding.
        progress: keep on disk where the training stands, and go on from there.
    """
    settings = (TrainSettings() if settings is None else settings).on_nodes(dataset.num_nodes)
    device = choose_device(settings.device) if team is None else team.device
    model.to(device)
    inputs: Inputs
    if settings.batches == "none":
        inputs = _whole_steps(model, dataset, settings, device, by_parts(team))
    elif team is None:
        graphs = prepare(model, dataset, torch.device("cpu"))
        _require_nodes(dataset, graphs)
        if any(graph.weight is not None for graph in graphs):
            raise UserError(f"{WEIGHT} is for steps on the whole graph: set batches=none")
        inputs = SampledInputs(model, graphs, settings, device)
    else:
        raise UserError(
            f"batches={settings.batches} is for one process: leave --processes away, or set "
            "batches=none"
        )
    return fit_inputs(model, inputs, settings, on_epoch, cuda_graphs, team, progress)


def _whole_steps(
    model: AttentionStack,
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
    model: Network,
    inputs: Inputs,
    settings: TrainSettings,
    on_epoch: Callable[[Epoch], None] | None = None,
    cuda_graphs: bool = True,
    team: Team | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """As :func:`fit`, for inputs that are on the device of the model already."""
    device = inputs.validation[0].y.device
    if progress is not None and team is not None:  # one file, by one process
        progress = replace(progress, writes=progress.writes and team.rank == 0)
    epoch_of = _Epochs(model, inputs, settings, cuda_graphs, team)
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
                if epoch_of.over(history) and not epoch_of.teach(best_weights, history):
                    break
                epoch = Epoch(number, *epoch_of(number))
                if best is None or epoch_of.better(epoch, best):
                    with epoch_of.kept_weights():
                        spare.keep()  # first, and aside: Ctrl-C may come in it
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


def _optimizer(model: Network, settings: TrainSettings) -> torch.optim.Optimizer:
    """Adam; the convolutions' weights in a group of their own where they decay differently.

    Where layers go a part of the way their gradients are smaller, and so is the decay: Adam makes
    up for the size of the two together, not of one beside the other.
    """
    decay, conv_decay = settings.weight_decay, settings.weight_decay_conv
    share = model.gradient_share
    if share < 1:
        conv_decay = share * (decay if conv_decay is None else conv_decay)
    conv = model.convolution_weights() if conv_decay is not None else []
    chosen = {id(parameter) for parameter in conv}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    groups = [{"params": rest, "weight_decay": decay}]
    if conv:
        groups.append({"params": conv, "weight_decay": conv_decay})
    on_gpu = rest[0].is_cuda if rest else conv[0].is_cuda
    return torch.optim.Adam(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        fused=on_gpu,
        capturable=on_gpu,
    )


class _Epochs:
    """One epoch after the other: a step per training graph, then a look at the validation nodes."""

    def __init__(
        self,
        model: Network,
        inputs: Inputs,
        settings: TrainSettings,
        cuda_graphs: bool,
        team: Team | None,
    ) -> None:
        self.model, self.inputs = model, inputs
        self.team, self.heads = by_parts(team), heads_of(model, team)
        self.precision, self.patience = settings.precision, settings.patience
        self.monitor = settings.monitor
        self.temperatures = TEMPERATURES if self.monitor in CALIBRATED else (1.0,)
        device = inputs.validation[0].y.device
        self.temperature_grid = (
            torch.tensor(self.temperatures, device=device) if settings.calibrated_targets else None
        )
        needed = model.layer_bytes(inputs.most_nodes)
        free = free_memory(device) / (1 if team is None or device.type == "cuda" else team.size)
        checkpoint = chosen(settings.checkpoint, model.num_layers, *needed, free)
        if team is not None:  # all compute the same again, or they would wait for each other
            number = team.highest(CHECKPOINTS.index(checkpoint))
            checkpoint = CHECKPOINTS[int(number)]
        self.segment = segment_length(checkpoint, model.num_layers)
        model.forget_projections(checkpoint == "projections")
        record = (
            cuda_graphs
            and team is None
            and device.type == "cuda"
            and bool(inputs.repeated)
            and model.edge_sampler is all_edges
            and not self.segment
            and _fit_together(model, inputs.repeated, free)
        )
        self.val_graphs = inputs.validation
        self.optimizer = _optimizer(model, settings)
        self.teacher = Teacher.wanted(model, inputs, settings, self.team)
        decay = settings.average_weights
        self.averaged = AveragedWeights(model, decay) if decay else None
        self.steps = {
            id(graph): Recorded(partial(self._step, graph), record) for graph in inputs.repeated
        }
        self.validate = Recorded(self._validate, record)

    def __call__(self, number: int) -> tuple[float, float, float]:
        """(mean training loss, validation loss, validation micro-F1)."""
        self.model.train()
        losses = [self._checked(*self._take(graph), number) for graph in self.inputs.training()]
        total, steps = sum(losses), len(losses)
        self.model.eval()
        val_loss, val_f1 = self.validate().tolist()
        if not math.isfinite(val_loss):
            what = f"the validation loss became {val_loss}"
            raise _diverged(self._odd_one(), number, what, self.team)
        numbers = total / steps, val_loss, val_f1
        return numbers if self.heads is None else self.heads.agreed(numbers)

    def state(self) -> dict[str, Tensor]:
        """What there is to keep besides the model and the optimiser; all of a team call it."""
        taught = {} if self.teacher is None else self.teacher.state() or {}
        averaged = {} if self.averaged is None else self.averaged.state()
        return taught | {f"weights.{name}": item for name, item in averaged.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        if self.teacher is not None and state:
            self.teacher.restore(state)
        if self.averaged is not None and state:
            self.averaged.restore(under("weights.", state))

    def over(self, history: Sequence[Epoch]) -> bool:
        """Whether patience has run out."""
        if not history:
            return False
        first, last, since = self._first(), history[-1].number, history[-1].best_number
        if self.teacher is not None:
            since = max(since, self.teacher.began or 0, first - 1)
        if last - since < self.patience:  # which spares looking through the history
            return False
        return last - last_gain(history[first - 1 :], self.monitor) >= self.patience

    def better(self, epoch: Epoch, best: Epoch) -> bool:
        """Whether the epoch takes the place of the best one before it."""
        if epoch.number <= self._first():
            return epoch.number == self._first()
        return monitored(epoch, self.monitor) < monitored(best, self.monitor)

    def _first(self) -> int:
        """The first epoch that is compared with those after it."""
        return 1 if self.teacher is None else self.teacher.first_compared

    def teach(self, best: Weights, history: Sequence[Epoch]) -> bool:
        """Begin the second stage from the best weights, if there is one and it has not begun."""
        if self.teacher is None or not self.teacher.waits or self.teacher.began is not None:
            return False
        best.restore()
        if self.averaged is not None:
            self.averaged.reset()
        self.model.eval()
        with torch.no_grad(), use_heads(self.heads):
            logits = [full(self.val_graphs[0].run(self.model).logits)]
        losses, _ = self._losses_and_f1(logits)
        self.teacher.begin(len(history), logits[0], self._temperature(losses))
        return True

    def kept_weights(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights that are validated and kept."""
        return nullcontext() if self.averaged is None else self.averaged.in_place()

    def release(self) -> None:
        for step in self.steps.values():
            step.release()
        self.validate.release()

    def _take(self, graph: GraphInputs) -> tuple[Tensor, LayerOutputs]:
        """A step on one graph: replayed, where it was recorded."""
        recorded = self.steps.get(id(graph))
        return self._step(graph) if recorded is None else recorded()

    def _step(self, graph: GraphInputs) -> tuple[Tensor, LayerOutputs]:
        graph = graph.sampled(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        with use_part(graph.part), use_heads(self.heads):
            with autocast(self.precision, graph.y.device):
                outputs = graph.run(self.model, segment=self.segment)
            logits = {layer: full(values) for layer, values in outputs.layer_logits.items()}
            weight = () if graph.weight is None else (graph.weight,)
            loss = self.model.loss(logits, graph.y, graph.nodes["train"], *weight)
            if self.teacher is not None:
                loss = loss + self.teacher.loss(logits)
            loss.backward()
        loss = loss.detach()
        if self.team is not None:  # what each process has is its share
            self.team.sum_gradients(self.model.parameters())
            loss = self.team.sum(loss)
        if self.heads is not None:
            self.heads.sum_gradients()
        self.optimizer.step()
        if self.averaged is not None:
            self.averaged.learn()
        return loss, outputs

    def _checked(self, loss: Tensor, outputs: LayerOutputs, number: int) -> float:
        value = loss.item()
        if not math.isfinite(value):
            raise _diverged(outputs, number, f"the loss became {value}", self.team)
        return value

    @torch.no_grad()
    def _validate(self) -> Tensor:
        """[2]: loss and micro-F1 of the output on the validation nodes."""
        with use_heads(self.heads), self.kept_weights():
            logits = [full(graph.run(self.model).logits) for graph in self.val_graphs]
        losses, f1 = self._losses_and_f1(logits)
        if self.teacher is not None:
            self.teacher.learn(logits[0], self._temperature(losses))
        return torch.stack([losses.min(), f1])

    def _losses_and_f1(self, logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return losses_and_f1(logits, self.val_graphs, "val", self.team, self.temperatures)

    def _temperature(self, losses: Tensor) -> Tensor | None:
        """[1]: the one that the smallest loss is of, where targets are calibrated by it."""
        if self.temperature_grid is None:
            return None
        return self.temperature_grid.gather(0, losses.argmin().view(1))

    @torch.no_grad()
    def _odd_one(self) -> LayerOutputs:
        """What the model computes for the first graph whose output is not finite."""
        with use_heads(self.heads), self.kept_weights():
            found = (graph.run(self.model) for graph in self.val_graphs)
            odd = (outputs for outputs in found if not _all_finite(outputs.logits, self.team))
            return next(odd, None) or self.val_graphs[0].run(self.model)


def _fit_together(model: Network, graphs: Sequence[GraphInputs], free: float) -> bool:
    """Whether recordings of a step on each of the graphs, which all keep their memory, fit."""
    nodes = sum(graph.neighbors.square.num_nodes for graph in graphs)
    needed = model.layer_bytes(nodes)
    return len(graphs) == 1 or chosen("auto", model.num_layers, *needed, free) == "none"


def _all_finite(x: Tensor, team: Team | None) -> bool:
    """Also in the other processes of a team."""
    odd = not x.isfinite().all()
    return not odd if team is None else team.highest(float(odd)) == 0


def _diverged(outputs: LayerOutputs, epoch: int, what: str, team: Team | None) -> UserError:
    """Say where the first number that is not finite arose."""
    layers = max(outputs.layer_logits)
    for number, hidden in enumerate(outputs.hidden, start=1):
        if not _all_finite(hidden, team):
            layer = min(number * outputs.segment, layers)
            where = f"layer {layer} of {layers} is the first whose output is not finite"
            if outputs.segment > 1:
                where = f"an output is not finite from layer {layer} of {layers} on, or before"
            break
    else:
        where = "every layer's output is finite, the loss itself is not"
    found = f": {where}" if outputs.hidden else ""  # evaluated in chunks, no layer's is kept
    return UserError(
        f"{what} at epoch {epoch}{found}; "
        "lower the learning rate, or add a normalisation (norm=layer)"
    )
