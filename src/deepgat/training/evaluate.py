"""A model scored on its data: losses, micro-F1, logits; also by a team."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from deepgat.analysis import f1_counts, micro_f1
from deepgat.data import NodeDataset
from deepgat.data.transforms import SPLITS
from deepgat.distributed import PartDataset, Team, dealt
from deepgat.models import Network
from deepgat.nn import classification_loss
from deepgat.training.device import choose_device
from deepgat.training.inputs import GraphInputs, empty_like, prepare
from deepgat.training.minibatch import in_chunks


@dataclass(frozen=True)
class Evaluation:
    """Micro-F1 and loss of the output per part; logits [n, C] per graph, on the CPU."""

    micro_f1: dict[str, float]
    loss: dict[str, float]
    logits: list[Tensor] = field(repr=False)


@torch.no_grad()
def evaluate(
    model: Network,
    dataset: NodeDataset | PartDataset,
    device: str = "auto",
    team: Team | None = None,
    chunk: int = 0,
) -> Evaluation:
    """Score the model on the training, validation and test nodes of the data.

    In a team the first process gets the logits of all nodes, the others none. With ``chunk`` they
    are computed layer by layer, so many nodes at a time: the same logits, and memory that does not
    grow with the depth (:mod:`deepgat.models.chunked`).
    """
    where = choose_device(device) if team is None else team.device
    model.to(where).eval()
    if team is not None and isinstance(dataset, NodeDataset) and len(dataset.graphs) > 1:
        return _evaluate_whole(model, dataset, team)
    if chunk and team is None:
        whole = prepare(model, dataset, torch.device("cpu"))
        graphs: Sequence[GraphInputs] = [in_chunks(graph, chunk, where) for graph in whole]
    else:
        graphs = prepare(model, dataset, where, team)
    logits = [full(graph.run(model).logits) for graph in graphs]
    found = [_gathered(values, graph) for values, graph in zip(logits, graphs, strict=True)]
    return _evaluation(logits, graphs, found, team)


def _evaluate_whole(model: Network, dataset: NodeDataset, team: Team) -> Evaluation:
    """Every process runs whole graphs, its share of them; scores are those of all."""
    mine = [dataset.graphs[i] for i in dealt(range(len(dataset.graphs)), team)]
    rest = -(-len(dataset.graphs) // team.size) - len(mine)
    share = replace(dataset, graphs=(*mine, *dataset.graphs[:rest]))
    graphs = prepare(model, share, team.device)
    if rest:  # as many everywhere, since all wait for each other after each
        graphs = [*graphs[:-1], empty_like(graphs[-1])]
    counts = {
        name: sum(int(graph[f"{name}_mask"].sum()) for graph in dataset.graphs) for name in SPLITS
    }
    graphs = [replace(graph, counts=counts) for graph in graphs]
    logits = [full(graph.run(model).logits) for graph in graphs]
    found = [values for rows in logits for values in team.to_first(rows)]
    return _evaluation(logits, graphs, found[: len(dataset.graphs)], team)


def _evaluation(
    logits: Sequence[Tensor],
    graphs: Sequence[GraphInputs],
    found: Sequence[Tensor | None],
    team: Team | None,
) -> Evaluation:
    losses, scores = {}, {}
    for part in SPLITS:
        if any(graph.counts[part] for graph in graphs):
            losses[part], scores[part] = scores_of(logits, graphs, part, team).tolist()
    return Evaluation(scores, losses, [values.cpu() for values in found if values is not None])


def _gathered(values: Tensor, graph: GraphInputs) -> Tensor | None:
    """The rows of all nodes, by their numbers, in the first process of a team; None elsewhere."""
    part = graph.part
    return values if part is None else part.gathered(values)


def scores_of(
    logits: Sequence[Tensor], graphs: Sequence[GraphInputs], part: str, team: Team | None
) -> Tensor:
    """[2] double: loss and micro-F1 of the output over all nodes of one part, together."""
    (loss,), f1 = losses_and_f1(logits, graphs, part, team)
    return torch.stack([loss, f1])


def losses_and_f1(
    logits: Sequence[Tensor],
    graphs: Sequence[GraphInputs],
    part: str,
    team: Team | None,
    temperatures: Sequence[float] = (1.0,),
) -> tuple[Tensor, Tensor]:
    """As :func:`scores_of`, the losses [len(temperatures)] with the logits divided by each."""
    pairs = list(zip(logits, graphs, strict=True))
    scores = torch.cat([values.index_select(0, graph.nodes[part]) for values, graph in pairs])
    y = torch.cat([graph.y.index_select(0, graph.nodes[part]) for _, graph in pairs])
    if team is None:
        losses = [classification_loss(scores / t, y).double() for t in temperatures]
        return torch.stack(losses), micro_f1(scores, y)
    each = [classification_loss(scores / t, y, reduction="none").double() for t in temperatures]
    count = each[0].new_tensor(each[0].numel())
    own = torch.stack([count, *f1_counts(scores, y), *(losses.sum() for losses in each)])
    total, hits, named, *sums = team.sum(own)
    return torch.stack(sums) / total, 2 * hits / named.clamp(min=1)


def full(x: Tensor) -> Tensor:
    """In single precision at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
