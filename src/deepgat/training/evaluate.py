"""A model scored on its data: losses, metrics, logits; also by a team."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from deepgat.analysis import METRICS, Calibration, f1_counts, metric, micro_f1, predicted_labels
from deepgat.analysis.metrics import ERRORS, undefined
from deepgat.data import NodeDataset
from deepgat.data.transforms import SPLITS
from deepgat.distributed import PartDataset, Team
from deepgat.models import Network
from deepgat.nn import classification_loss
from deepgat.training.class_weights import of_nodes
from deepgat.training.device import choose_device
from deepgat.training.inputs import GraphInputs, prepare, shared
from deepgat.training.minibatch import in_chunks


@dataclass(frozen=True)
class Evaluation:
    """Scores and loss of the output per part; logits [n, C] per graph, on the CPU."""

    micro_f1: dict[str, float]
    loss: dict[str, float]
    logits: list[Tensor] = field(repr=False)
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """{metric: {part: value}} of all of :data:`deepgat.analysis.METRICS`; None: not defined."""
    notes: list[str] = field(default_factory=list)
    """Why metrics are not defined, in sentences."""
    calibration: Calibration = field(default_factory=Calibration, repr=False)
    """The temperature and the conformal scores of the validation nodes."""
    calibrated: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """{metric: {part: value}} of the Brier score and the calibration error, with the temperature;
    ``metrics`` has them without."""


@torch.no_grad()
def evaluate(
    model: Network,
    dataset: NodeDataset,
    device: str = "auto",
    team: Team | None = None,
    chunk: int = 0,
    segment: int = 0,
    calibration: Calibration | None = None,
) -> Evaluation:
    """Score the model on the training, validation and test nodes of the data.

    In a team the first process gets the logits of all nodes, the others none. Where the data has
    several graphs, every process runs its share of them whole. With ``chunk`` logits are computed
    layer by layer, so many nodes at a time: the same logits, and memory that does not grow with
    the depth (:mod:`deepgat.models.chunked`). With ``segment`` only the states of every so many
    layers are held: the same bits. ``calibration`` is that of the model, where it was saved; left
    out, it is fitted on the validation nodes.
    """
    where = choose_device(device) if team is None else team.device
    model.to(where).eval()
    several = len(dataset.graphs) > 1 and not isinstance(dataset, PartDataset)
    graphs: Sequence[GraphInputs]
    if chunk and team is None:
        whole = prepare(model, dataset, torch.device("cpu"))
        graphs = [in_chunks(graph, chunk, where) for graph in whole]
    else:
        graphs = prepare(model, dataset, where, None if several else team)
    parts = [name for name in SPLITS if any(graph.counts[name] for graph in graphs)]
    count = len(graphs)
    if several and team is not None:
        graphs = shared(graphs, team)
    logits = [full(graph.run(model, segment=segment).logits) for graph in graphs]
    gathered: Sequence[Tensor | None]
    if several and team is not None:
        gathered = [*chain.from_iterable(map(team.gather_to_first, logits))][:count]
    else:
        gathered = [graph.gathered(rows) for graph, rows in zip(graphs, logits, strict=True)]
    losses, scores, notes = {}, {}, []
    metrics: dict[str, dict[str, float | None]] = {name: {} for name in METRICS}
    if calibration is None:
        found, y = (of_team(rows, team) for rows in nodes_of(logits, graphs, "val"))
        calibration = Calibration.fit(found, y)
    calibrated: dict[str, dict[str, float | None]] = {
        name: {} for name in METRICS if name in ERRORS
    }
    for part in parts:
        (loss,), f1 = losses_and_f1(logits, graphs, part, team)
        losses[part], scores[part] = loss.item(), f1.item()
        found, y = (of_team(rows, team) for rows in nodes_of(logits, graphs, part))
        for name, by_part in calibrated.items():
            value = metric(name, found / calibration.temperature, y, y.dim() == 2).item()
            by_part[part] = None if math.isnan(value) else value
        for name in METRICS:
            value = metric(name, found, y, y.dim() == 2).item()
            metrics[name][part] = None if math.isnan(value) else value
            if math.isnan(value):
                notes.append(f"{name} ({part}) is not defined: {undefined(name, found, y)}")
    of_all = [values.cpu() for values in gathered if values is not None]
    return Evaluation(scores, losses, of_all, metrics, notes, calibration, calibrated)


def losses_and_f1(
    logits: Sequence[Tensor],
    graphs: Sequence[GraphInputs],
    part: str,
    team: Team | None,
    temperatures: Sequence[float] = (1.0,),
) -> tuple[Tensor, Tensor]:
    """Losses and micro-F1 of the output over all nodes of one part, together: double precision.

    The losses [len(temperatures)] are those of the logits divided by each temperature.
    """
    scores, y = nodes_of(logits, graphs, part)
    if team is None:
        losses = [classification_loss(scores / t, y).double() for t in temperatures]
        return torch.stack(losses), micro_f1(scores, y)
    each = [classification_loss(scores / t, y, reduction="none").double() for t in temperatures]
    count = each[0].new_tensor(each[0].numel())
    own = torch.stack([count, *f1_counts(scores, y), *(losses.sum() for losses in each)])
    total, hits, named, *sums = team.sum(own)
    return torch.stack(sums) / total, 2 * hits / named.clamp(min=1)


def weighted_losses(
    logits: Tensor, y: Tensor, weights: Tensor, team: Team | None, temperatures: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The losses with classes weighted, and the weighted share of right predictions."""
    weight = of_nodes(weights, y).double()
    each = [classification_loss(logits / t, y, reduction="none").double() for t in temperatures]
    right = predicted_labels(logits, y.dim() == 2) == (y > 0 if y.dim() == 2 else y)
    sums = torch.stack([(weight * x).sum() for x in (torch.ones_like(weight), right, *each)])
    total, hits, *losses = sums if team is None else team.sum(sums)
    return torch.stack(losses) / total, hits / total


def nodes_of(
    logits: Sequence[Tensor], graphs: Sequence[GraphInputs], part: str
) -> tuple[Tensor, Tensor]:
    """Logits and labels of the nodes of one part, of all graphs."""
    pairs = list(zip(logits, graphs, strict=True))
    scores = torch.cat([values.index_select(0, graph.nodes[part]) for values, graph in pairs])
    return scores, torch.cat([graph.y.index_select(0, graph.nodes[part]) for _, graph in pairs])


def of_team(rows: Tensor, team: Team | None) -> Tensor:
    """The rows of all processes, in each of them."""
    if team is None or team.size == 1:
        return rows
    counts = team.all_gather(torch.tensor([len(rows)], device=rows.device)).view(-1).tolist()
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    found = team.all_gather(padded.view(-1)).view(team.size, *padded.shape)
    return torch.cat([each[:count] for each, count in zip(found, counts, strict=True)])


def full(x: Tensor) -> Tensor:
    """In single precision at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
