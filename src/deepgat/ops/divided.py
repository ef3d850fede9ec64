"""Neighbour attention on one part of a divided graph: borrow the neighbours' rows, run as ever.

While the rows of the halo travel, the *inner* targets, all of whose neighbours are own nodes, have
their turn; then the others. The kernels for whole graphs run on lists of either
(:class:`~deepgat.ops.part_lists.Side`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from deepgat.ops import attention, draws, reference
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.part_lists import PartNeighbors, Side
from deepgat.ops.scores import (
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
    """As :func:`deepgat.ops.neighbor_attention`, ``run`` working on whole lists: [own, H, D].

    The symmetric weights are e_vu / sqrt(d_v d_u) = sqrt(d_v) · (e_vu / d_v) · 1/sqrt(d_u): row
    weights, of values that their own process has divided by sqrt(d_u).
    """
    part = neighbors.part
    if not part.borrows:  # the graph, or several, as a whole
        if seed is not None:
            seed = draws.numbered(seed, part.ids)
        return run(neighbors.square, value, form, normalization, dropout, seed, bias)
    biases = {} if bias is None else {id(s): s.of_edges(bias) for s in neighbors.sides if s}

    def attend(side: Side, form: ScoreForm, value: Tensor) -> Tensor:
        where = side.lists, value, form, Normalization.ROW
        return run(*where, dropout, side.seed(seed), biases.get(id(side)))

    if normalization is Normalization.ROW:
        return _in_turn(
            neighbors,
            [*_compared(form), value],
            lambda side, found: attend(side, _on_side(side, form, found[:-1]), found[-1]),
        )
    forms: dict[int, ScoreForm] = {}

    def log_sums(side: Side, found: list[Tensor]) -> Tensor:
        forms[id(side)] = here = _on_side(side, form, found)
        return _log_sums(side.lists, here, biases.get(id(side)), run, value)

    log_d = _in_turn(neighbors, _compared(form), log_sums)
    half = log_d.unsqueeze(-1).to(value.dtype) / 2
    out = _in_turn(
        neighbors,
        [value * (-half).exp()],
        lambda side, found: attend(side, forms[id(side)], found[0]),
    )
    return out * half.exp()


def _in_turn(
    neighbors: PartNeighbors,
    tensors: list[Tensor],
    work: Callable[[Side, list[Tensor]], Tensor],
) -> Tensor:
    """What ``work`` finds for the inner targets, then for those that need the halo: [own, …].

    It is given the tensors [own, …] with a row for every node of the side; what is named twice
    travels once. Every process does all of it, whatever it holds, so that all speak in one order.
    """
    inner, border = neighbors.sides
    once = {id(x): x for x in tensors}
    loan = neighbors.part.borrow(list(once.values()))

    def given(found: list[Tensor]) -> list[Tensor]:
        by_name = dict(zip(once, found, strict=True))
        return [by_name[id(x)] for x in tensors]

    early = None if inner is None else work(inner, given(loan.own))
    late = work(border, given(loan.joined(border.own)))
    return border.joined(late, early, neighbors.part.own)


def attention_weights(
    neighbors: Neighbors,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    bias: Tensor | None = None,
) -> Tensor:
    """As :func:`deepgat.ops.reference.attention_weights`, of a whole graph or of one part."""
    if not isinstance(neighbors, PartNeighbors):
        return reference.attention_weights(neighbors, form, normalization, bias)
    lists, edges, part = neighbors.square, neighbors.num_edges, neighbors.part
    everywhere = Side(lists, part.ids)
    form = _on_side(everywhere, form, part.with_halo(_compared(form)))
    if bias is not None:
        bias = everywhere.of_edges(bias)
    weights = reference.attention_weights(lists, form, Normalization.ROW, bias)
    if normalization is Normalization.SYMMETRIC:
        log_d = reference.log_sums(lists, form, bias)
        log_d = neighbors.with_halo(log_d[: part.own])
        apart = reference.target_rows(log_d, lists) - reference.source_rows(log_d, lists)
        weights = weights * (apart / 2).exp()
    return weights[:edges]


def _compared(form: ScoreForm) -> list[Tensor]:
    """What a score reads of a neighbour: [own, …] each."""
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
    """The form with a row for every node of a side, ``compared`` having them."""
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


def _log_sums(
    lists: Neighbors,
    form: ScoreForm,
    bias: Tensor | None,
    run: Callable[..., Tensor],
    value: Tensor,
) -> Tensor:
    """log d_v = log Σ_u exp(s_vu), with its gradient: [n, H] or [n, 1].

    The gradient of log d_v is that of Σ_u α_vu s_vu with α held fast; for dot products that sum is
    <q_v, Σ_u α_vu k_u>, so the kernels find both without a number per edge.
    """
    if isinstance(form, Uniform) and bias is None:
        return lists.degree.to(value.dtype).log().unsqueeze(-1)
    fast = run is attention.neighbor_attention and bias is None
    if not fast or isinstance(form, Additive | EdgeScore):
        return reference.log_sums(lists, form, bias)
    assert isinstance(form, DotProduct | ClassAgreement)
    found = attention.log_sums(lists, form)
    compared = [form.query, form.key] if isinstance(form, DotProduct) else [form.logits]
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in compared)):
        return found
    if isinstance(form, ClassAgreement):
        prediction = form.logits.sigmoid() if form.independent_labels else form.logits.softmax(-1)
        form = DotProduct(prediction, prediction, form.scale)
    fixed = DotProduct(form.query.detach(), form.key.detach(), form.scale)
    if form.query is form.key:
        fixed = replace(fixed, key=fixed.query)
    mean_key = run(lists, form.key, fixed)
    score = form.scale * (form.query * mean_key).sum(-1)
    return found + (score - score.detach())
