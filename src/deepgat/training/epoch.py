"""One epoch after the other: a step per training graph, then a look at the validation nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from deepgat.distributed import Team
from deepgat.errors import Diverged
from deepgat.models import LayerOutputs
from deepgat.nn.checkpoint import CHECKPOINTS, chosen, free_memory, segment_length
from deepgat.nn.drop_edge import recordable
from deepgat.ops import use_part
from deepgat.training.cuda_graph import Recorded
from deepgat.training.device import autocast
from deepgat.training.ema import AveragedWeights
from deepgat.training.evaluate import full, losses_and_f1
from deepgat.training.inputs import GraphInputs, Inputs, Trained
from deepgat.training.resume import Epoch, Weights, monitored, under
from deepgat.training.self_training import SelfTraining
from deepgat.training.settings import TrainSettings

TEMPERATURES = tuple(2.0 ** (k / 4) for k in range(-8, 17))
"""Temperatures that the calibrated loss tries: from 1/4 to 16."""


def make_optimizer(model: Trained, settings: TrainSettings, nodes: int) -> torch.optim.Optimizer:
    """Adam for data of so many nodes; weights with another decay have a group of their own.

    Layers with a step below 1 have smaller gradients, so their decay shrinks alike: Adam rescales
    the sum of gradient and decay, and would otherwise change their ratio.
    """
    decay, share = settings.weight_decay, model.step
    rest = {id(parameter): parameter for parameter in model.parameters()}
    groups = []
    for weights, other in (
        (model.convolution_weights(), settings.conv_decay(share, nodes)),
        (model.class_head_weights(), settings.head_decay(share, nodes)),
    ):
        if other != decay and weights:
            groups.append({"params": weights, "weight_decay": other})
            for weight in weights:
                del rest[id(weight)]
    if rest:
        groups.insert(0, {"params": list(rest.values()), "weight_decay": decay})
    on_gpu = next(model.parameters()).is_cuda
    return torch.optim.Adam(groups, lr=settings.lr, fused=on_gpu, capturable=on_gpu)


class Epochs:
    """One epoch after the other: a step per training graph, then a look at the validation nodes."""

    def __init__(
        self,
        model: Trained,
        inputs: Inputs,
        settings: TrainSettings,
        nodes: int,
        cuda_graphs: bool,
        team: Team | None,
    ) -> None:
        self.model, self.inputs = model, inputs
        self.team = team
        self.precision, self.patience = settings.precision, settings.patience
        self.monitor = settings.monitor
        calibrates = self.monitor == "loss-and-errors"
        device = inputs.validation[0].y.device
        self.temperatures = TEMPERATURES if calibrates or settings.self_training else (1.0,)
        self.temperature_grid = torch.tensor(self.temperatures, device=device)
        self.monitored = (
            slice(None)
            if calibrates
            else slice(self.temperatures.index(1.0), self.temperatures.index(1.0) + 1)
        )
        """Which temperatures count: the validation loss is the smallest loss among them."""
        needed = model.layer_bytes(inputs.most_nodes)
        free = free_memory(device) / (1 if team is None or device.type == "cuda" else team.size)
        checkpoint = chosen(settings.checkpoint, model.num_layers, *needed, free)
        if team is not None:  # all must recompute the same layers, or they would deadlock
            number = team.highest(CHECKPOINTS.index(checkpoint))
            checkpoint = CHECKPOINTS[int(number)]
        self.segment = segment_length(checkpoint, model.num_layers)
        model.forget_projections(checkpoint == "projections")
        record = (
            cuda_graphs
            and team is None
            and device.type == "cuda"
            and bool(inputs.repeated)
            and not self.segment
            and _fit_together(model, inputs.repeated, free)
        )
        self.val_graphs = inputs.validation
        self.optimizer = make_optimizer(model, settings, nodes)
        self.second_stage = SelfTraining.wanted(model, inputs, settings, self.team)
        self.averaged = AveragedWeights(model, settings.ema) if settings.ema else None
        record_step = record and recordable(model.edge_sampler)
        self.steps = {
            id(graph): Recorded(partial(self._step, graph), record_step)
            for graph in inputs.repeated
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
        return total / steps, val_loss, val_f1

    def state(self) -> dict[str, Tensor]:
        """State to save besides the model and the optimiser; every process of a team calls it."""
        taught = {} if self.second_stage is None else self.second_stage.state() or {}
        averaged = {} if self.averaged is None else self.averaged.state()
        return taught | {f"weights.{name}": item for name, item in averaged.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        if self.second_stage is not None and state:
            self.second_stage.restore(state)
        if self.averaged is not None and state:
            self.averaged.restore(under("weights.", state))

    def over(self, history: Sequence[Epoch]) -> bool:
        """Whether patience has run out."""
        if not history:
            return False
        first, last, since = self._first(), history[-1].number, history[-1].best_number
        if self.second_stage is not None:
            since = max(since, self.second_stage.began or 0, first - 1)
        return last - since >= self.patience

    def better(self, epoch: Epoch, best: Epoch) -> bool:
        """Whether the epoch takes the place of the best one before it."""
        if epoch.number <= self._first():
            return epoch.number == self._first()
        return monitored(epoch, self.monitor) < monitored(best, self.monitor)

    def _first(self) -> int:
        """The first epoch that is compared with those after it."""
        return 1 if self.second_stage is None else self.second_stage.first_compared

    def begin_second_stage(self, best: Weights, history: Sequence[Epoch]) -> bool:
        """Begin the second stage from the best weights, if there is one and it has not begun."""
        if self.second_stage is None or self.second_stage.began is not None:
            return False
        best.restore()
        if self.averaged is not None:
            self.averaged.reset()
        self.model.eval()
        with torch.no_grad():
            logits = [full(self.val_graphs[0].run(self.model).logits)]
        losses, _ = self._losses_and_f1(logits)
        self.second_stage.begin(len(history), logits[0], self._temperature(losses))
        return True

    def kept_weights(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights that are validated and kept."""
        return nullcontext() if self.averaged is None else self.averaged.in_place()

    def release(self) -> None:
        """Free the memory: there are no epochs after this."""
        for step in self.steps.values():
            step.release()
        self.validate.release()
        # These refer back to this object: without this, only the garbage collector frees the data.
        self.steps.clear()
        del self.validate

    def _take(self, graph: GraphInputs) -> tuple[Tensor, LayerOutputs]:
        """A step on one graph: replayed, where it was recorded."""
        recorded = self.steps.get(id(graph))
        return self._step(graph) if recorded is None else recorded()

    def _step(self, graph: GraphInputs) -> tuple[Tensor, LayerOutputs]:
        graph = graph.sampled(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        with use_part(graph.part):
            with autocast(self.precision, graph.y.device):
                outputs = graph.run(self.model, segment=self.segment)
            logits = {layer: full(values) for layer, values in outputs.layer_logits.items()}
            weight = () if graph.weight is None else (graph.weight,)
            loss = self.model.loss(logits, graph.y, graph.nodes["train"], *weight)
            if self.second_stage is not None:
                loss = loss + self.second_stage.loss(logits)
            loss.backward()
        loss = loss.detach()
        if self.team is not None:  # each process has its share of the sum
            self.team.sum_gradients(self.model.parameters())
            loss = self.team.sum(loss)
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
        with self.kept_weights():
            logits = [full(graph.run(self.model).logits) for graph in self.val_graphs]
        losses, f1 = self._losses_and_f1(logits)
        if self.second_stage is not None:
            self.second_stage.learn(logits[0], self._temperature(losses))
        return torch.stack([losses[self.monitored].min(), f1])

    def _losses_and_f1(self, logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return losses_and_f1(logits, self.val_graphs, "val", self.team, self.temperatures)

    def _temperature(self, losses: Tensor) -> Tensor:
        """[1]: the temperature of the smallest loss."""
        return self.temperature_grid.gather(0, losses.argmin().view(1))

    @torch.no_grad()
    def _odd_one(self) -> LayerOutputs:
        """What the model computes for the first graph whose output is not finite."""
        with self.kept_weights():
            found = (graph.run(self.model) for graph in self.val_graphs)
            odd = (outputs for outputs in found if not _all_finite(outputs.logits, self.team))
            return next(odd, None) or self.val_graphs[0].run(self.model)


def _fit_together(model: Trained, graphs: Sequence[GraphInputs], free: float) -> bool:
    """Whether recorded steps of all graphs fit in memory together; each keeps its own."""
    nodes = sum(graph.neighbors.square.num_nodes for graph in graphs)
    needed = model.layer_bytes(nodes)
    return len(graphs) == 1 or chosen("auto", model.num_layers, *needed, free) == "none"


def _all_finite(x: Tensor, team: Team | None) -> bool:
    """Whether all numbers are finite, in every process of a team."""
    odd = not x.isfinite().all()
    return not odd if team is None else team.highest(float(odd)) == 0


def _diverged(outputs: LayerOutputs, epoch: int, what: str, team: Team | None) -> Diverged:
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
    found = f": {where}" if outputs.hidden else ""  # evaluation in chunks keeps no layer's output
    return Diverged(
        f"{what} at epoch {epoch}{found}; "
        "lower the learning rate, or add a normalisation (norm=layer)"
    )
