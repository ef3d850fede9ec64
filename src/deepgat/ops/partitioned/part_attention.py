"""Neighbour attention on one part of a partitioned graph.

While the halo rows are in transit, every own node attends to its own neighbours. The nodes with
halo neighbours then attend to those, and :mod:`.halves` combines both results. The kernels for
whole graphs run on the lists of either half (:class:`.lists.Side`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepgat.ops import attention, definition, dropout_masks
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.partitioned.halves import KernelHalf
from deepgat.ops.partitioned.lists import PartNeighbors, Side
from deepgat.ops.score_forms import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Normalization,
    ScoreForm,
    Uniform,
)


def neighbor_attention(
    run: Callable[..., Tensor],
    neighbors: PartNeighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """As :func:`deepgat.ops.neighbor_attention`: [own, H, D]. ``run`` is the one for whole graphs.

    The symmetric weights are e_vu / sqrt(d_v d_u) = sqrt(d_v) · (e_vu / d_v) · 1/sqrt(d_u): row
    weights of values that their owner has divided by sqrt(d_u).
    """
    part = neighbors.part
    if not part.borrows:  # every process holds whole graphs
        if seed is not None:
            seed = dropout_masks.numbered(seed, part.ids)
        return run(neighbors.square, value, form, normalization, dropout, seed, bias)
    fast = run is attention.neighbor_attention
    sides = neighbors.sides if fast and part.overlaps else (neighbors.everywhere,)
    biases = [None if bias is None else side.of_edges(bias) for side in sides]
    if normalization is Normalization.ROW:
        rows = _in_turn(neighbors, sides, [*_compared(form), value])
        given = ((_on_side(side, form, found[:-1]), found[-1]) for side, found in rows)
        return _attended(run, sides, given, biases, dropout, seed)[: part.own]
    forms, sums = [form] * len(sides), []
    if isinstance(form, Uniform) and bias is None:
        log_d = neighbors.degree.double().log().unsqueeze(-1)
    else:
        for number, (side, found) in enumerate(_in_turn(neighbors, sides, _compared(form))):
            forms[number] = _on_side(side, form, found)
            sums.append(_LogSum.of(side.lists, forms[number], biases[number], fast))
        log_d = _joined_log_sums(sums, sides)[: part.own]
    half = log_d.unsqueeze(-1).to(value.dtype) / 2
    rows = _in_turn(neighbors, sides, [value * (-half).exp()])
    scaled = ((forms[number], found[0]) for number, (_, found) in enumerate(rows))
    return _attended(run, sides, scaled, biases, dropout, seed)[: part.own] * half.exp()


def _attended(
    run: Callable[..., Tensor],
    sides: Sequence[Side],
    given: Iterable[tuple[ScoreForm, Tensor]],
    biases: list[Tensor | None],
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    """Row-normalised attention over all sides, whose scores and values are ``given`` in turn."""
    halves = []
    for side, bias, (form, value) in zip(sides, biases, given, strict=True):
        numbered = side.seed(seed)
        if len(sides) == 1:
            return run(side.lists, value, form, Normalization.ROW, dropout, numbered, bias)
        halves.append(KernelHalf.of(side.lists, form, bias, value, dropout, numbered))
    return halves[0].joined(halves[1], sides[1].targets)


def attention_weights(
    neighbors: Neighbors,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    bias: Tensor | None = None,
) -> Tensor:
    """As :func:`deepgat.ops.definition.attention_weights`, for a whole graph or one part."""
    if not isinstance(neighbors, PartNeighbors):
        return definition.attention_weights(neighbors, form, normalization, bias)
    lists, edges, part = neighbors.square, neighbors.num_edges, neighbors.part
    everywhere = neighbors.everywhere
    form = _on_side(everywhere, form, part.with_halo(_compared(form)))
    if bias is not None:
        bias = everywhere.of_edges(bias)
    weights = definition.attention_weights(lists, form, Normalization.ROW, bias)
    if normalization is Normalization.SYMMETRIC:
        log_d = definition.log_sums(lists, form, bias)
        log_d = neighbors.with_halo(log_d[: part.own])
        apart = definition.target_rows(log_d, lists) - definition.source_rows(log_d, lists)
        weights = weights * (apart / 2).exp()
    return weights[:edges]


def _compared(form: ScoreForm) -> list[Tensor]:
    """The tensors that a score reads at the neighbour: [own, …] each."""
    match form:
        case DotProduct(_, key):
            return [key]
        case ClassAgreement(logits):
            return [logits]
        case Additive(_, source):
            return [source]
        case EdgeScore() | Uniform():
            return []


def _on_side(side: Side, form: ScoreForm, compared: list[Tensor]) -> ScoreForm:
    """The form with one row per node of ``side``; ``compared`` already has those rows."""
    match form:
        case DotProduct(query, key):
            shared = query is key
            query = compared[0] if shared else side.of_nodes(query)
            return replace(form, query=query, key=compared[0])
        case ClassAgreement():
            return replace(form, logits=compared[0])
        case Additive(target):
            return replace(form, target=side.of_nodes(target), source=compared[0])
        case EdgeScore(score):
            return EdgeScore(side.of_edges(score))
        case Uniform():
            return form


def _in_turn(
    neighbors: PartNeighbors, sides: Sequence[Side], tensors: list[Tensor]
) -> Iterator[tuple[Side, list[Tensor]]]:
    """Yield every side with the rows of ``tensors`` [own, …] for its nodes.

    One message requests all distinct tensors. It is awaited only before the last side, so the
    caller's work on the first side, which needs own nodes only, overlaps with the transfer. Every
    process yields every side, even an empty one, so that all communicate in the same order.
    """
    once = {id(x): x for x in tensors}
    loan = neighbors.part.borrow(list(once.values()))

    def given(found: list[Tensor]) -> list[Tensor]:
        by_name = dict(zip(once, found, strict=True))
        return [by_name[id(x)] for x in tensors]

    if len(sides) > 1:
        yield sides[0], given(loan.own)
    yield sides[-1], given(loan.joined(sides[-1].own))


class _LogSum(NamedTuple):
    """log d_v = log Σ_u exp(s_vu) over the neighbours of one side.

    The gradient of log d_v equals that of Σ_u α_vu s_vu with α held constant. For dot products
    this sum is <q_v, Σ_u α_vu k_u>, so the kernels compute both without per-edge storage.
    """

    total: Tensor
    """[rows, H] or [rows, 1]; without a gradient if ``dot`` is there to supply it."""
    dot: DotProduct | None = None
    mean_key: KernelHalf | None = None
    """Σ_u α_vu k_u."""

    @staticmethod
    def of(lists: Neighbors, form: ScoreForm, bias: Tensor | None, fast: bool) -> _LogSum:
        """``fast``: use the kernels where they support the form."""
        if not fast or bias is not None or not isinstance(form, DotProduct | ClassAgreement):
            return _LogSum(definition.log_sums(lists, form, bias))
        total = attention.log_sums(lists, form)
        if not (torch.is_grad_enabled() and _has_gradient(form)):
            return _LogSum(total)
        if isinstance(form, ClassAgreement):
            logits = form.logits
            prediction = logits.sigmoid() if form.independent_labels else logits.softmax(-1)
            form = DotProduct(prediction, prediction, form.scale)
        fixed = DotProduct(form.query.detach(), form.key.detach(), form.scale)
        if form.query is form.key:
            fixed = replace(fixed, key=fixed.query)
        return _LogSum(total, form, KernelHalf.of(lists, fixed, None, form.key))


def _joined_log_sums(sums: Sequence[_LogSum], sides: Sequence[Side]) -> Tensor:
    """log d_v over all neighbours, with its gradient: [rows of the first side, H] or […, 1]."""
    first, *rest = sums
    if not rest:
        assert first.dot is None  # only an exchange that overlaps is trained through
        return first.total
    (second,), targets = rest, sides[1].targets
    both = torch.logaddexp(first.total[targets], second.total[: targets.numel()])
    total = first.total.index_copy(0, targets, both)
    if first.dot is None or first.mean_key is None or second.mean_key is None:
        return total
    mean_key = first.mean_key.joined(second.mean_key, targets)
    score = first.dot.scale * (first.dot.query * mean_key).sum(-1)
    return total + (score - score.detach())


def _has_gradient(form: ScoreForm) -> bool:
    return any(isinstance(x, Tensor) and x.requires_grad for x in vars(form).values())
