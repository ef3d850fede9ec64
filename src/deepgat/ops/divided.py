"""Neighbour attention on one part of a divided graph: borrow the neighbours' rows, run as ever.

The kernels for whole graphs run on the lists ``square`` of a part (:class:`PartNeighbors`), in
which every node has a row; the rows of the halo come from the processes that own it, and what is
computed for it is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from deepgat.ops import attention, draws, reference
from deepgat.ops.neighbors import Neighbors, PartNeighbors
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
    lists, own = neighbors.square, neighbors.part.own
    if seed is not None:
        seed = draws.numbered(seed, neighbors.part.ids)
    if bias is not None:
        bias = _padded(bias, lists.num_edges)
    if normalization is Normalization.ROW:
        form, (value,) = _everywhere(neighbors, form, value)
        return run(lists, value, form, normalization, dropout, seed, bias)[:own]
    form, _ = _everywhere(neighbors, form)
    half = _log_sums(lists, form, bias, run, value)[:own].unsqueeze(-1).to(value.dtype) / 2
    value = neighbors.with_halo(value * (-half).exp())
    return run(lists, value, form, Normalization.ROW, dropout, seed, bias)[:own] * half.exp()


def attention_weights(
    neighbors: Neighbors,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    bias: Tensor | None = None,
) -> Tensor:
    """As :func:`deepgat.ops.reference.attention_weights`, of a whole graph or of one part."""
    if not isinstance(neighbors, PartNeighbors):
        return reference.attention_weights(neighbors, form, normalization, bias)
    lists, edges = neighbors.square, neighbors.num_edges
    form, _ = _everywhere(neighbors, form)
    if bias is not None:
        bias = _padded(bias, lists.num_edges)
    weights = reference.attention_weights(lists, form, Normalization.ROW, bias)
    if normalization is Normalization.SYMMETRIC:
        log_d = reference.log_sums(lists, form, bias)
        log_d = neighbors.with_halo(log_d[: neighbors.part.own])
        apart = reference.target_rows(log_d, lists) - reference.source_rows(log_d, lists)
        weights = weights * (apart / 2).exp()
    return weights[:edges]


def _everywhere(
    neighbors: PartNeighbors, form: ScoreForm, *values: Tensor
) -> tuple[ScoreForm, list[Tensor]]:
    """The form and the values with a row for every node of the square lists, by one message.

    Targets are own nodes only: what is theirs is filled up with zeros.
    """
    rows = neighbors.square.num_nodes

    def borrow(*wanted: Tensor) -> list[Tensor]:
        """All of them and the values; what is named twice travels once."""
        once = {id(x): x for x in (*wanted, *values)}
        found = dict(zip(once, neighbors.part.with_halo(list(once.values())), strict=True))
        return [found[id(x)] for x in (*wanted, *values)]

    match form:
        case DotProduct(query, key):
            key_everywhere, *found = borrow(key)
            shared = query is key
            query = key_everywhere if shared else _padded(query, rows)
            return replace(form, query=query, key=key_everywhere), found
        case ClassAgreement(logits):
            logits, *found = borrow(logits)
            return replace(form, logits=logits), found
        case Additive(target, source):
            source, *found = borrow(source)
            return replace(form, target=_padded(target, rows), source=source), found
        case EdgeScore(score):
            return EdgeScore(_padded(score, neighbors.square.num_edges)), borrow() if values else []
        case Uniform():
            return form, borrow() if values else []


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


def _padded(x: Tensor, rows: int) -> Tensor:
    """x with zeros below: [k, …] → [rows, …]."""
    return torch.cat([x, x.new_zeros(rows - x.size(0), *x.shape[1:])])
