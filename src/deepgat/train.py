"""The training loop: one for one graph and for many."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from deepgat.analysis import micro_f1
from deepgat.data import NodeDataset, PropagateLabels
from deepgat.errors import UserError
from deepgat.nn import AttentionStack, LayerOutputs, classification_loss
from deepgat.nn.checkpoint import chosen, free_memory, segment_length
from deepgat.nn.edges import all_edges
from deepgat.nn.graphs import GraphClassifier
from deepgat.ops import Columns, Features, Neighbors, as_features
from deepgat.replay import Recorded
from deepgat.training import MONITORS, PRECISIONS, TrainSettings

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
]

Network: TypeAlias = AttentionStack | GraphClassifier
"""What the loop trains: a model of nodes, or of whole graphs."""


@dataclass(frozen=True)
class Epoch:
    """What is known after one epoch."""

    number: int
    loss: float
    val_loss: float
    val_f1: float
    best_number: int = 0
    """The best epoch so far, this one included."""


@dataclass(frozen=True)
class FitResult:
    """How the training went. The model itself now holds the best epoch's weights."""

    history: list[Epoch]
    best: Epoch
    stopped: str
    """"patience", "epochs" or "interrupted"."""
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """Micro-F1 and loss of the output per part; logits [n, C] per graph, on the CPU."""

    micro_f1: dict[str, float]
    loss: dict[str, float]
    logits: list[Tensor] = field(repr=False)


@dataclass(frozen=True, eq=False)
class GraphInputs:
    """One graph, ready to run: on its device, neighbour lists built, labels propagated."""

    x: Features
    neighbors: Neighbors
    label_features: Tensor | None
    y: Tensor
    nodes: dict[str, Tensor]
    """The numbers of the nodes of each part: "train", "val", "test"."""

    def sampled(self, model: Network) -> GraphInputs:
        """With the edges of one training step; evaluation always has them all."""
        return replace(self, neighbors=model.edge_sampler(self.neighbors))

    def run(self, model: Network, with_attention: bool = False, segment: int = 0) -> LayerOutputs:
        assert isinstance(model, AttentionStack)
        labels = self.y if model.needs_labels else None
        return model.run(
            self.x, self.neighbors, self.label_features, labels, with_attention, segment
        )


class Inputs(Protocol):
    """What a training runs over: a step per item of ``training()``, drawn anew every epoch."""

    validation: Sequence[GraphInputs]
    fixed: bool
    """Whether every epoch has the same single graph, so that a step may be recorded."""
    most_nodes: int

    def training(self) -> Sequence[GraphInputs]: ...


class FixedInputs:
    """Graphs with parts of their nodes for training and validation, in random order."""

    def __init__(self, graphs: Sequence[GraphInputs]) -> None:
        self.graphs = [graph for graph in graphs if graph.nodes["train"].numel()]
        self.validation: Sequence[GraphInputs] = [g for g in graphs if g.nodes["val"].numel()]
        self.fixed = len(graphs) == 1
        self.most_nodes = max(graph.neighbors.num_nodes for graph in graphs)

    def training(self) -> Sequence[GraphInputs]:
        if len(self.graphs) == 1:
            return self.graphs
        return [self.graphs[index] for index in torch.randperm(len(self.graphs)).tolist()]


def _on(x: Features, device: torch.device) -> Features:
    x = as_features(x)
    assert not isinstance(x, Columns)
    return x.to(device)


def prepare(model: AttentionStack, dataset: NodeDataset, device: torch.device) -> list[GraphInputs]:
    """The inputs of every graph of the data for this model; done once, before any epoch."""
    propagate = None
    if model.label_hops:
        propagate = PropagateLabels(
            model.label_hops, model.first_labels, num_classes=dataset.num_classes
        )
    inputs = []
    for graph in dataset.graphs:
        labelled = graph if propagate is None else propagate(graph)
        z = None if propagate is None else labelled.label_features.to(device)
        neighbors = Neighbors.from_edge_index(graph.edge_index, graph.num_nodes)
        if graph.edge_weight is not None or graph.edge_attr is not None:
            neighbors = neighbors.with_values(graph.edge_index, graph.edge_weight, graph.edge_attr)
        inputs.append(
            GraphInputs(
                x=_on(graph.x, device),
                neighbors=neighbors.to(device),
                label_features=z,
                y=graph.y.to(device),
                nodes={
                    part: graph[f"{part}_mask"].nonzero().squeeze(1).to(device)
                    for part in ("train", "val", "test")
                },
            )
        )
    return inputs


def fit(
    model: AttentionStack,
    dataset: NodeDataset,
    settings: TrainSettings | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    cuda_graphs: bool = True,
) -> FitResult:
    """Train the model on the data; it ends with the weights of its best epoch.

    Every epoch takes one step per graph with training nodes, in random order, then looks at the
    validation nodes. Test labels are never read. Ctrl-C ends the training early, keeping the best
    weights so far. Same seed, same machine: same numbers.

    Args:
        model: from :mod:`deepgat.nn`; moved to the device.
        dataset: from :func:`deepgat.data.load_graph`.
        settings: how to train.
        on_epoch: called after every epoch, to show progress.
        cuda_graphs: on a GPU, record the step and replay it (where the data is one graph).
    """
    settings = TrainSettings() if settings is None else settings
    device = choose_device(settings.device)
    model.to(device)
    graphs = prepare(model, dataset, device)
    _require_nodes(dataset, graphs)
    return fit_inputs(model, FixedInputs(graphs), settings, on_epoch, cuda_graphs)


def fit_inputs(
    model: Network,
    inputs: Inputs,
    settings: TrainSettings,
    on_epoch: Callable[[Epoch], None] | None = None,
    cuda_graphs: bool = True,
) -> FitResult:
    """As :func:`fit`, for inputs that are on the device of the model already."""
    device = inputs.validation[0].y.device
    epoch_of = _Epochs(model, inputs, settings, cuda_graphs)
    history: list[Epoch] = []
    best: Epoch | None = None
    best_value, best_weights, spare = math.inf, _Weights(model), _Weights(model)
    stopped, start = "epochs", time.perf_counter()
    with _own_random_numbers(settings.seed, device):
        try:
            for number in range(1, settings.epochs + 1):
                loss, val_loss, val_f1 = epoch_of(number)
                value = {"val-loss": val_loss, "val-f1": -val_f1, "train-loss": loss}
                improved = best is None or value[settings.monitor] < best_value
                best_number = number if improved or best is None else best.number
                epoch = Epoch(number, loss, val_loss, val_f1, best_number)
                if improved:
                    spare.keep()  # first, and aside: Ctrl-C may come in it
                    best, best_value = epoch, value[settings.monitor]
                    best_weights, spare = spare, best_weights
                history.append(epoch)
                if on_epoch is not None:
                    on_epoch(epoch)
                if number - best_number >= settings.patience:
                    stopped = "patience"
                    break
        except KeyboardInterrupt:
            if best is None:  # nothing to keep yet
                raise
            stopped = "interrupted"
        finally:
            epoch_of.release()
    assert best is not None
    best_weights.restore()
    return FitResult(history, best, stopped, time.perf_counter() - start)


@torch.no_grad()
def evaluate(model: AttentionStack, dataset: NodeDataset, device: str = "auto") -> Evaluation:
    """Score the model on the training, validation and test nodes of the data."""
    where = choose_device(device)
    model.to(where).eval()
    graphs = prepare(model, dataset, where)
    logits = [graph.run(model).logits.float() for graph in graphs]
    losses, scores = {}, {}
    for part in ("train", "val", "test"):
        if any(graph.nodes[part].numel() for graph in graphs):
            losses[part], scores[part] = _scores_of(logits, graphs, part).tolist()
    return Evaluation(scores, losses, [values.cpu() for values in logits])


def choose_device(name: str) -> torch.device:
    """The device behind a name; "auto" is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a "meta" device has no numbers to give
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"the device {name!r} cannot be used here: choose auto, cpu or cuda"
        ) from error
    return device


def _require_nodes(dataset: NodeDataset, graphs: Sequence[GraphInputs]) -> None:
    for part, name in (("train", "training"), ("val", "validation")):
        if not any(graph.nodes[part].numel() for graph in graphs):
            raise UserError(
                f"{dataset.title} has no {name} nodes: set {part}_mask, or apply SplitNodes"
            )


def _optimizer(model: Network, settings: TrainSettings) -> torch.optim.Optimizer:
    """Adam; the convolutions' weights in a group of their own where they decay differently."""
    decay, conv_decay = settings.weight_decay, settings.weight_decay_conv
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


class _Weights:
    """A copy of all that a model has learnt, to return to."""

    def __init__(self, model: Network) -> None:
        self.model = list(model.state_dict().values())
        self.kept = [item.clone() for item in self.model]

    def keep(self) -> None:
        torch._foreach_copy_(self.kept, self.model)

    def restore(self) -> None:
        torch._foreach_copy_(self.model, self.kept)


class _Epochs:
    """One epoch after the other: a step per training graph, then a look at the validation nodes."""

    def __init__(
        self,
        model: Network,
        inputs: Inputs,
        settings: TrainSettings,
        cuda_graphs: bool,
    ) -> None:
        self.model, self.inputs, self.precision = model, inputs, settings.precision
        device = inputs.validation[0].y.device
        needed = model.layer_bytes(inputs.most_nodes)
        checkpoint = chosen(settings.checkpoint, model.num_layers, *needed, free_memory(device))
        self.segment = segment_length(checkpoint, model.num_layers)
        model.forget_projections(checkpoint == "projections")
        record = (
            cuda_graphs
            and device.type == "cuda"
            and inputs.fixed
            and model.edge_sampler is all_edges
            and not self.segment
        )
        self.val_graphs = inputs.validation
        self.optimizer = _optimizer(model, settings)
        only = inputs.training() if inputs.fixed else []
        self.step = Recorded(lambda: self._step(only[0]), record)
        self.validate = Recorded(self._validate, record)

    def __call__(self, number: int) -> tuple[float, float, float]:
        """(mean training loss, validation loss, validation micro-F1)."""
        self.model.train()
        if self.inputs.fixed:
            total, steps = self._checked(*self.step(), number), 1
        else:
            graphs = self.inputs.training()
            total = sum(self._checked(*self._step(graph), number) for graph in graphs)
            steps = len(graphs)
        self.model.eval()
        val_loss, val_f1 = self.validate().tolist()
        if not math.isfinite(val_loss):
            raise _diverged(self._odd_one(), number, f"the validation loss became {val_loss}")
        return total / steps, val_loss, val_f1

    def release(self) -> None:
        self.step.release()
        self.validate.release()

    def _step(self, graph: GraphInputs) -> tuple[Tensor, LayerOutputs]:
        graph = graph.sampled(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        with _autocast(self.precision, graph.y.device):
            outputs = graph.run(self.model, segment=self.segment)
        logits = {layer: values.float() for layer, values in outputs.layer_logits.items()}
        loss = self.model.loss(logits, graph.y, graph.nodes["train"])
        loss.backward()
        self.optimizer.step()
        return loss.detach(), outputs

    def _checked(self, loss: Tensor, outputs: LayerOutputs, number: int) -> float:
        value = loss.item()
        if not math.isfinite(value):
            raise _diverged(outputs, number, f"the loss became {value}")
        return value

    @torch.no_grad()
    def _validate(self) -> Tensor:
        """[2]: loss and micro-F1 of the output on the validation nodes."""
        logits = [graph.run(self.model).logits.float() for graph in self.val_graphs]
        return _scores_of(logits, self.val_graphs, "val")

    @torch.no_grad()
    def _odd_one(self) -> LayerOutputs:
        """What the model computes for the first graph whose output is not finite."""
        found = (graph.run(self.model) for graph in self.val_graphs)
        odd = (outputs for outputs in found if not outputs.logits.isfinite().all())
        return next(odd, None) or self.val_graphs[0].run(self.model)


def _scores_of(logits: Sequence[Tensor], graphs: Sequence[GraphInputs], part: str) -> Tensor:
    """[2] double: loss and micro-F1 of the output over all nodes of one part, together."""
    pairs = list(zip(logits, graphs, strict=True))
    scores = torch.cat([values.index_select(0, graph.nodes[part]) for values, graph in pairs])
    y = torch.cat([graph.y.index_select(0, graph.nodes[part]) for _, graph in pairs])
    return torch.stack([classification_loss(scores, y).double(), micro_f1(scores, y)])


def _diverged(outputs: LayerOutputs, epoch: int, what: str) -> UserError:
    """Say where the first number that is not finite arose."""
    layers = max(outputs.layer_logits)
    for number, hidden in enumerate(outputs.hidden, start=1):
        if not hidden.isfinite().all():
            layer = min(number * outputs.segment, layers)
            where = f"layer {layer} of {layers} is the first whose output is not finite"
            if outputs.segment > 1:
                where = f"an output is not finite from layer {layer} of {layers} on, or before"
            break
    else:
        where = "every layer's output is finite, the loss itself is not"
    return UserError(
        f"{what} at epoch {epoch}: {where}; "
        "lower the learning rate, or add a normalisation (norm=layer)"
    )


def _autocast(precision: str, device: torch.device) -> Any:
    wanted = precision == "bf16" and device.type == "cuda"
    # its cache of cast weights would outlive a recorded step
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=wanted, cache_enabled=False)


@contextmanager
def _own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Seed everything inside, and leave the caller's random numbers as they were."""
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        if device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds every GPU too
        else:
            torch.manual_seed(seed)
        yield
