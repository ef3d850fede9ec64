"""One epoch after the other: a step per training graph, then a look at the validation nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepgat.analysis.calibration import TEMPERATURES
from deepgat.analysis.metrics import ERRORS, METRICS, metric
from deepgat.distributed import Team
from deepgat.errors import Diverged, UserError
from deepgat.machine import free_memory
from deepgat.models import LayerOutputs
from deepgat.nn.checkpoint import CHECKPOINTS, choose_checkpoint, segment_length
from deepgat.nn.drop_edge import recordable
from deepgat.ops import use_part
from deepgat.training.class_weights import of_nodes
from deepgat.training.cuda_graph import Recorded
from deepgat.training.device import autocast
from deepgat.training.ema import AveragedWeights
from deepgat.training.evaluate import full, losses_and_f1, nodes_of, of_team, weighted_losses
from deepgat.training.inputs import GraphInputs, Inputs, Trained
from deepgat.training.resume import Epoch, Saved
from deepgat.training.self_training import SelfTraining
from deepgat.training.settings import TrainSettings


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
    # On a CPU "foreach" gives the same bits as a loop over the weights, with less Python.
    kind: dict[str, Any] = {"fused": True, "capturable": True} if on_gpu else {"foreach": True}
    return torch.optim.Adam(groups, lr=settings.lr, **kind)


class Trainer:
    """The state of a training run: the epochs so far, the model, its best weights, the optimiser.

    ``nodes`` is the number of nodes of the whole data, of which the inputs may be a part.
    """

    def __init__(
        self,
        model: Trained,
        inputs: Inputs,
        settings: TrainSettings,
        nodes: int,
        cuda_graphs: bool = True,
        team: Team | None = None,
        class_weight: Tensor | None = None,
    ) -> None:
        self.model, self.inputs, self.settings, self.team = model, inputs, settings, team
        self.history: list[Epoch] = []
        self.best: Epoch | None = None
        self.weights = list(model.state_dict().values())
        self.best_weights, self.spare = ([w.clone() for w in self.weights] for _ in range(2))
        self.optimizer = make_optimizer(model, settings, nodes)
        self.second_stage = SelfTraining.wanted(model, inputs, settings, team)
        self.averaged = AveragedWeights(model, settings.ema) if settings.ema else None
        self.device = inputs.validation[0].y.device
        self.class_weight = None if class_weight is None else class_weight.to(self.device)
        """[C], or [2, C] of independent labels: ``class_weights.py``."""
        calibrates = settings.monitor == "loss-and-errors"
        self.temperatures = TEMPERATURES if calibrates or settings.self_training else (1.0,)
        self.temperature_grid = torch.tensor(self.temperatures, device=self.device)
        one = self.temperatures.index(1.0)
        self.monitored = slice(None) if calibrates else slice(one, one + 1)
        """Which temperatures count: the validation loss is the smallest loss among them."""

        needed = model.layer_bytes(inputs.most_nodes)
        sharers = 1 if team is None or self.device.type == "cuda" else team.size
        free = free_memory(self.device) / sharers
        checkpoint = choose_checkpoint(settings.checkpoint, model.num_layers, *needed, free)
        if team is not None:  # all must recompute the same layers, or they would deadlock
            checkpoint = CHECKPOINTS[int(team.all_max(CHECKPOINTS.index(checkpoint)))]
        self.segment = segment_length(checkpoint, model.num_layers)
        model.forget_projections(checkpoint == "projections")
        record = (
            cuda_graphs
            and team is None
            and self.device.type == "cuda"
            and bool(inputs.repeated)
            and not self.segment
            and _fit_together(model, inputs.repeated, free)
        )
        record_step = record and recordable(model.edge_sampler)
        self.steps = {
            id(graph): Recorded(partial(self._step, graph), record_step)
            for graph in inputs.repeated
        }
        self.validate = Recorded(self._validate, record)

    def run_epoch(self) -> Epoch:
        """One epoch; if it is the best so far, its weights are kept."""
        number = len(self.history) + 1
        self.model.train()
        losses = [self._checked(*self._take(graph), number) for graph in self.inputs.training()]
        self.model.eval()
        val_loss, val_f1, *score = self.validate().tolist()
        if not math.isfinite(val_loss):
            what = f"the validation loss became {val_loss}"
            raise _diverged(self._not_finite(), number, what, self.team)
        if score and math.isnan(score[0]):
            raise UserError(
                f"{self.settings.monitor} is not defined on the validation nodes: no class has "
                "both validation nodes that are of it and others; choose another metric or split"
            )
        epoch = Epoch(number, sum(losses) / len(losses), val_loss, val_f1, number, *score)
        if self.best is None or self._better(epoch, self.best):
            with self._validated_weights():
                torch._foreach_copy_(self.spare, self.weights)  # Ctrl-C may interrupt the copy
            self.best_weights, self.spare = self.spare, self.best_weights
            self.best = epoch
        else:
            epoch = replace(epoch, best_number=self.best.number)
        self.history.append(epoch)
        return epoch

    def restore_best(self) -> None:
        """Give the model the weights of its best epoch."""
        torch._foreach_copy_(self.weights, self.best_weights)

    def patience_over(self) -> bool:
        if not self.history:
            return False
        since = self.history[-1].best_number
        if self.second_stage is not None:
            since = max(since, self.second_stage.began or 0, self._first_compared() - 1)
        return len(self.history) - since >= self.settings.patience

    def begin_second_stage(self) -> bool:
        """Begin self-training from the best weights; False if there is no stage left to begin."""
        if self.second_stage is None or self.second_stage.began is not None:
            return False
        self.restore_best()
        if self.averaged is not None:
            self.averaged.reset()
        self.model.eval()
        with torch.no_grad():
            graph = self.inputs.validation[0]
            logits = [full(graph.run(self.model, segment=self.segment).logits)]
        losses = self._losses_and_scores(logits)[0]
        self.second_stage.begin(len(self.history), logits[0], self._temperature(losses))
        return True

    def state(self) -> dict[str, Tensor]:
        """All tensors that a resumed run needs; every process of a team calls it."""
        tensors = self._in_place()
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": item for name, item in state.items()}
        if self.second_stage is not None:
            targets = self.second_stage.targets_of_all()
            tensors |= {} if targets is None else {"targets": targets}
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def restore(self, saved: Saved) -> None:
        """Go on from a saved state."""
        tensors = saved.tensors
        for name, item in self._in_place().items():
            item.copy_(tensors[name])
        state: dict[int, dict[str, Tensor]] = {}
        for name, item in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                index, _, key = rest.partition(".")
                state.setdefault(int(index), {})[key] = item
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self.second_stage is not None:
            self.second_stage.restore_targets(tensors["targets"])
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        self.history = list(saved.history)
        self.best = self.history[self.history[-1].best_number - 1]

    def _in_place(self) -> dict[str, Tensor]:
        """The part of the state that lies in tensors of a fixed size."""
        weights = self.model.state_dict()
        tensors = {f"model.{name}": item for name, item in weights.items()}
        kept = zip(weights, self.best_weights, strict=True)
        tensors |= {f"best.{name}": item for name, item in kept}
        if self.averaged is not None:
            tensors |= {f"average.{name}": x for name, x in self.averaged.tensors().items()}
        if self.second_stage is not None:
            tensors |= {"epoch": self.second_stage.epoch, "first": self.second_stage.first}
        return tensors

    def release(self) -> None:
        """Free the memory: there are no epochs after this."""
        for step in self.steps.values():
            step.release()
        self.validate.release()
        # These refer back to this object: without this, only the garbage collector frees the data.
        self.steps.clear()
        del self.validate

    def _better(self, epoch: Epoch, best: Epoch) -> bool:
        """Whether the epoch takes the place of the best one before it."""
        first = self._first_compared()
        if epoch.number <= first:
            return epoch.number == first
        monitor = self.settings.monitor
        return monitored(epoch, monitor) < monitored(best, monitor)

    def _first_compared(self) -> int:
        """The first epoch that is compared with those after it."""
        return 1 if self.second_stage is None else self.second_stage.first_compared

    def _validated_weights(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights that are validated and kept."""
        return nullcontext() if self.averaged is None else self.averaged.in_place()

    def _take(self, graph: GraphInputs) -> tuple[Tensor, LayerOutputs]:
        """A step on one graph: replayed, where it was recorded."""
        recorded = self.steps.get(id(graph))
        return self._step(graph) if recorded is None else recorded()

    def _step(self, graph: GraphInputs) -> tuple[Tensor, LayerOutputs]:
        graph = graph.sampled(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        with use_part(graph.part):
            with autocast(self.settings.precision, self.device):
                outputs = graph.run(self.model, segment=self.segment)
            logits = {layer: full(values) for layer, values in outputs.layer_logits.items()}
            weight = self._node_weight(graph)
            weighted = () if weight is None else (weight,)
            loss = self.model.loss(logits, graph.y, graph.nodes["train"], *weighted)
            if self.second_stage is not None:
                loss = loss + self.second_stage.loss(logits, self.class_weight)
            loss.backward()
        loss = loss.detach()
        if self.team is not None:  # each process has its share of the sum
            self.team.sum_gradients(self.model.parameters())
            loss = self.team.sum(loss)
        self.optimizer.step()
        if self.averaged is not None:
            self.averaged.learn()
        return loss, outputs

    def _node_weight(self, graph: GraphInputs) -> Tensor | None:
        """Of every training node in the loss, or of every node and label; None: all equal."""
        if self.class_weight is None:
            return graph.weight
        weight = of_nodes(self.class_weight, graph.y.index_select(0, graph.nodes["train"]))
        if graph.weight is None:
            return weight
        return weight * (graph.weight if weight.dim() == 1 else graph.weight[:, None])

    def _checked(self, loss: Tensor, outputs: LayerOutputs, number: int) -> float:
        value = loss.item()
        if not math.isfinite(value):
            raise _diverged(outputs, number, f"the loss became {value}", self.team)
        return value

    @torch.no_grad()
    def _validate(self) -> Tensor:
        """[2] or [3]: loss, micro-F1 and score of the output on the validation nodes."""
        with self._validated_weights():
            logits = [
                full(graph.run(self.model, segment=self.segment).logits)
                for graph in self.inputs.validation
            ]
        losses, *scores = self._losses_and_scores(logits)
        if self.second_stage is not None:
            self.second_stage.learn(logits[0], self._temperature(losses))
        return torch.stack([losses[self.monitored].min(), *scores])

    def _losses_and_scores(self, logits: Sequence[Tensor]) -> list[Tensor]:
        """Losses at all temperatures and micro-F1, then the epoch's ``val_score`` if it has one."""
        graphs, team, name = self.inputs.validation, self.team, self.settings.metric
        found = [*losses_and_f1(logits, graphs, "val", team, self.temperatures)]
        if self.class_weight is None and name is None:
            return found
        scores, y = nodes_of(logits, graphs, "val")
        if self.class_weight is not None:
            found[0], right = weighted_losses(scores, y, self.class_weight, team, self.temperatures)
            if self.settings.monitor == "loss-and-errors":
                found.append(right)
        if name is not None:
            value = metric(name, of_team(scores, team), of_team(y, team), y.dim() == 2)
            found.append(-value if name in ERRORS else value)
        return found

    def _temperature(self, losses: Tensor) -> Tensor:
        """[1]: the temperature of the smallest loss."""
        return self.temperature_grid.gather(0, losses.argmin().view(1))

    @torch.no_grad()
    def _not_finite(self) -> LayerOutputs:
        """What the model computes for the first graph whose output is not finite."""
        with self._validated_weights():
            for graph in self.inputs.validation:
                outputs = graph.run(self.model)
                if not _all_finite(outputs.logits, self.team):
                    break
        return outputs


def monitored(epoch: Epoch, monitor: str) -> tuple[float, ...]:
    """The monitored number, and what decides where it is equal; smaller is better."""
    if monitor in METRICS:
        assert epoch.val_score is not None
        return -epoch.val_score, epoch.val_loss
    match monitor:
        case "loss-and-errors":
            right = epoch.val_f1 if epoch.val_score is None else epoch.val_score
            return (epoch.val_loss + 1 - right,)
        case "val-f1":
            return (-epoch.val_f1,)
        case "train-loss":
            return (epoch.loss,)
    return (epoch.val_loss,)


def _fit_together(model: Trained, graphs: Sequence[GraphInputs], free: float) -> bool:
    """Whether recorded steps of all graphs fit in memory together; each keeps its own."""
    nodes = sum(graph.neighbors.square.num_nodes for graph in graphs)
    needed = model.layer_bytes(nodes)
    return len(graphs) == 1 or choose_checkpoint("auto", model.num_layers, *needed, free) == "none"


def _all_finite(x: Tensor, team: Team | None) -> bool:
    """Whether all numbers are finite, in every process of a team."""
    finite = bool(x.isfinite().all())
    return finite if team is None else team.all_max(float(not finite)) == 0


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
