"""The training loop: one for one graph and for many."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from deepgat.analysis import f1_counts, micro_f1
from deepgat.data import NodeDataset
from deepgat.distributed import PartDataset, Team
from deepgat.distributed.interrupts import stop_asked
from deepgat.errors import UserError
from deepgat.inputs import SPLITS, FixedInputs, GraphInputs, Inputs, Network, prepare
from deepgat.nn import AttentionStack, LayerOutputs, classification_loss
from deepgat.nn.checkpoint import CHECKPOINTS, chosen, free_memory, segment_length
from deepgat.nn.edges import all_edges
from deepgat.ops import use_part
from deepgat.progress import Epoch, Progress, best_of, monitored
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

    Every epoch takes one step per graph with training nodes, in random order, then looks at the
    validation nodes. Test labels are never read. Ctrl-C ends the training early, keeping the best
    weights so far. Same seed, same machine: same numbers.

    Args:
        model: from :mod:`deepgat.nn`; moved to the device.
        dataset: from :func:`deepgat.data.load_graph`.
        settings: how to train.
        on_epoch: called after every epoch, to show progress.
        cuda_graphs: on a GPU, record the step and replay it (where the data is one graph).
        team: the processes that train together, each calling this with the same model and, of
            the data, its part; the results are those of one process, up to rounding.
        progress: keep on disk where the training stands, and go on from there.
    """
    settings = TrainSettings() if settings is None else settings
    device = choose_device(settings.device) if team is None else team.device
    model.to(device)
    graphs = prepare(model, dataset, device, team)
    _require_nodes(dataset, graphs)
    inputs = FixedInputs(graphs)
    return fit_inputs(model, inputs, settings, on_epoch, cuda_graphs, team, progress)


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
    epoch_of = _Epochs(model, inputs, settings, cuda_graphs, team)
    best_weights, spare = _Weights(model), _Weights(model)
    stopped, start = "epochs", time.perf_counter()
    with _own_random_numbers(settings.seed, device), stop_asked(team) as asked:
        history: list[Epoch] = []
        if progress is not None:
            history, before = progress.read(model, best_weights.named(), epoch_of.optimizer)
            start -= before
        best = best_of(history)
        try:
            for number in range(len(history) + 1, settings.epochs + 1):
                if _over(history, settings):
                    break
                epoch = Epoch(number, *epoch_of(number))
                lowest = monitored(best, settings.monitor)
                if best is None or monitored(epoch, settings.monitor) < lowest:
                    spare.keep()  # first, and aside: Ctrl-C may come in it
                    epoch = best = replace(epoch, best_number=number)
                    best_weights, spare = spare, best_weights
                else:
                    epoch = replace(epoch, best_number=best.number)
                history.append(epoch)
                if on_epoch is not None:
                    on_epoch(epoch)
                if progress is not None and progress.due(number):
                    seconds = time.perf_counter() - start
                    kept = best_weights.named()
                    progress.write(model, kept, epoch_of.optimizer, history, seconds)
                if asked():
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if best is None:  # nothing to keep yet
                raise
            stopped = "interrupted"
        finally:
            epoch_of.release()
    assert best is not None
    if stopped == "epochs" and _over(history, settings):
        stopped = "patience"
    best_weights.restore()
    return FitResult(history, best, stopped, time.perf_counter() - start)


def _over(history: Sequence[Epoch], settings: TrainSettings) -> bool:
    """Whether patience has run out."""
    return bool(history) and history[-1].number - history[-1].best_number >= settings.patience


@torch.no_grad()
def evaluate(
    model: AttentionStack,
    dataset: NodeDataset | PartDataset,
    device: str = "auto",
    team: Team | None = None,
) -> Evaluation:
    """Score the model on the training, validation and test nodes of the data.

    In a team the logits are those of all nodes in the first process, and none elsewhere.
    """
    where = choose_device(device) if team is None else team.device
    model.to(where).eval()
    graphs = prepare(model, dataset, where, team)
    logits = [_full(graph.run(model).logits) for graph in graphs]
    losses, scores = {}, {}
    for part in SPLITS:
        if any(graph.counts[part] for graph in graphs):
            losses[part], scores[part] = _scores_of(logits, graphs, part, team).tolist()
    found = [_gathered(values, graph) for values, graph in zip(logits, graphs, strict=True)]
    return Evaluation(scores, losses, [values.cpu() for values in found if values is not None])


def _gathered(values: Tensor, graph: GraphInputs) -> Tensor | None:
    """The rows of all nodes, by their numbers, in the first process of a team; None elsewhere."""
    part = graph.part
    return values if part is None else part.gathered(values)


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


def _require_nodes(dataset: NodeDataset | PartDataset, graphs: Sequence[GraphInputs]) -> None:
    for part, name in (("train", "training"), ("val", "validation")):
        if not any(graph.counts[part] for graph in graphs):
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
        self.names = list(model.state_dict())
        self.model = list(model.state_dict().values())
        self.kept = [item.clone() for item in self.model]

    def named(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.kept, strict=True))

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
        team: Team | None,
    ) -> None:
        self.model, self.inputs, self.team = model, inputs, team
        self.precision = settings.precision
        device = inputs.validation[0].y.device
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
            what = f"the validation loss became {val_loss}"
            raise _diverged(self._odd_one(), number, what, self.team)
        return total / steps, val_loss, val_f1

    def release(self) -> None:
        self.step.release()
        self.validate.release()

    def _step(self, graph: GraphInputs) -> tuple[Tensor, LayerOutputs]:
        graph = graph.sampled(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        with use_part(graph.part):
            with _autocast(self.precision, graph.y.device):
                outputs = graph.run(self.model, segment=self.segment)
            logits = {layer: _full(values) for layer, values in outputs.layer_logits.items()}
            weight = () if graph.weight is None else (graph.weight,)
            loss = self.model.loss(logits, graph.y, graph.nodes["train"], *weight)
            loss.backward()
        loss = loss.detach()
        if self.team is not None:  # what each process has is its share
            self.team.sum_gradients(self.model.parameters())
            loss = self.team.sum(loss)
        self.optimizer.step()
        return loss, outputs

    def _checked(self, loss: Tensor, outputs: LayerOutputs, number: int) -> float:
        value = loss.item()
        if not math.isfinite(value):
            raise _diverged(outputs, number, f"the loss became {value}", self.team)
        return value

    @torch.no_grad()
    def _validate(self) -> Tensor:
        """[2]: loss and micro-F1 of the output on the validation nodes."""
        logits = [_full(graph.run(self.model).logits) for graph in self.val_graphs]
        return _scores_of(logits, self.val_graphs, "val", self.team)

    @torch.no_grad()
    def _odd_one(self) -> LayerOutputs:
        """What the model computes for the first graph whose output is not finite."""
        found = (graph.run(self.model) for graph in self.val_graphs)
        odd = (outputs for outputs in found if not _all_finite(outputs.logits, self.team))
        return next(odd, None) or self.val_graphs[0].run(self.model)


def _scores_of(
    logits: Sequence[Tensor], graphs: Sequence[GraphInputs], part: str, team: Team | None
) -> Tensor:
    """[2] double: loss and micro-F1 of the output over all nodes of one part, together."""
    pairs = list(zip(logits, graphs, strict=True))
    scores = torch.cat([values.index_select(0, graph.nodes[part]) for values, graph in pairs])
    y = torch.cat([graph.y.index_select(0, graph.nodes[part]) for _, graph in pairs])
    if team is None:
        return torch.stack([classification_loss(scores, y).double(), micro_f1(scores, y)])
    losses = classification_loss(scores, y, reduction="none").double()
    own = torch.stack([losses.sum(), losses.new_tensor(losses.numel()), *f1_counts(scores, y)])
    loss, count, hits, named = team.sum(own)
    return torch.stack([loss / count, 2 * hits / named.clamp(min=1)])


def _full(x: Tensor) -> Tensor:
    """In single precision at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


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
