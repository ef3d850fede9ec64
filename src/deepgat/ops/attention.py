"""Neighbour attention: the public operators, on a whole graph and on one part of it.

On a part, every process borrows the rows of its halo, then runs the operator for whole graphs on
the lists ``PartNeighbors.square``, and keeps the rows of its own nodes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from deepgat.ops import backends, checks, definition, dropout_masks
from deepgat.ops.kernel_attention import kernel_attention, kernel_log_sums
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.part import PartNeighbors, padded
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
    neighbors: Neighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization | str = Normalization.ROW,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    *,
    flat: bool = False,
) -> Tensor:
    """out_v = Σ_{u∈N_v} α_vu value_u: [n, H, D] → [n, H, D].

    α is exp(s_vu + bias_vu), normalised over N_v or symmetrically. ``dropout`` is the share of
    weights to drop, seeded by torch's random generator. ``bias``: [E, H], or [E, 1] for all heads.
    With ``flat`` the heads are concatenated: [n, H·D].
    """
    normalization = checks.attention(neighbors, value, form, normalization, dropout, bias)
    seed = dropout_masks.new_seed(value.device) if dropout else None
    fast = backends.kernels_run_on(value.device.type)
    if isinstance(neighbors, PartNeighbors):
        out = _on_part(neighbors, value, form, normalization, dropout, seed, bias, fast)
    elif fast:
        return kernel_attention(
            neighbors, value, form, normalization, dropout, seed, bias, flat=flat
        )
    else:
        out = definition.neighbor_attention(
            neighbors, value, form, normalization, dropout, seed, bias
        )
    return out.flatten(1) if flat else out


def attention_weights(
    neighbors: Neighbors,
    form: ScoreForm,
    normalization: Normalization | str = Normalization.ROW,
    bias: Tensor | None = None,
) -> Tensor:
    """As :func:`deepgat.ops.definition.attention_weights`, for a whole graph or one part."""
    normalization = checks.attention(neighbors, None, form, normalization, bias=bias)
    if not isinstance(neighbors, PartNeighbors):
        return definition.attention_weights(neighbors, form, normalization, bias)
    lists, part = neighbors.square, neighbors.part
    form = _with_halo(form, part.with_halo(_compared(form)), lists)
    if bias is not None:
        bias = padded(bias, lists.num_edges)
    weights = definition.attention_weights(lists, form, Normalization.ROW, bias)
    if normalization is Normalization.SYMMETRIC:
        log_d = neighbors.with_halo(definition.log_sums(lists, form, bias)[: part.own])
        apart = definition.target_rows(log_d, lists) - definition.source_rows(log_d, lists)
        weights = weights * (apart / 2).exp()
    return weights[: neighbors.num_edges]


def _on_part(
    neighbors: PartNeighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization,
    dropout: float,
    seed: Tensor | None,
    bias: Tensor | None,
    fast: bool,
) -> Tensor:
    """:func:`neighbor_attention` on one part: [own, H, D]; ``fast``: by the kernels.

    The symmetric weights are e_vu / sqrt(d_v d_u) = sqrt(d_v) · (e_vu / d_v) · 1/sqrt(d_u): row
    weights of values that their owner has divided by sqrt(d_u).
    """
    run = kernel_attention if fast else definition.neighbor_attention
    part, lists = neighbors.part, neighbors.square
    if seed is not None:
        seed = dropout_masks.numbered(seed, part.ids)
    if not part.borrows:  # every process holds whole graphs
        return run(lists, value, form, normalization, dropout, seed, bias)
    if bias is not None:
        bias = padded(bias, lists.num_edges)
    if normalization is Normalization.ROW:
        *compared, rows = part.with_halo([*_compared(form), value])
        form = _with_halo(form, compared, lists)
        return run(lists, rows, form, normalization, dropout, seed, bias)[: part.own]
    if isinstance(form, Uniform) and bias is None:
        log_d = neighbors.degree.double().log().unsqueeze(-1)
    else:
        form = _with_halo(form, part.with_halo(_compared(form)), lists)
        log_d = _log_sums(lists, form, bias, fast)[: part.own]
    half = log_d.unsqueeze(-1).to(value.dtype) / 2
    (rows,) = part.with_halo([value * (-half).exp()])
    return run(lists, rows, form, Normalization.ROW, dropout, seed, bias)[: part.own] * half.exp()


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


def _with_halo(form: ScoreForm, compared: list[Tensor], lists: Neighbors) -> ScoreForm:
    """The form with one row per own and halo node; ``compared`` already has those rows.

    What only targets read is 0 for the halo.
    """
    match form:
        case DotProduct(query, key):
            rows = compared[0] if query is key else padded(query, lists.num_nodes)
            return replace(form, query=rows, key=compared[0])
        case ClassAgreement():
            return replace(form, logits=compared[0])
        case Additive(target):
            return replace(form, target=padded(target, lists.num_nodes), source=compared[0])
        case EdgeScore(score):
            return EdgeScore(padded(score, lists.num_edges))
        case Uniform():
            return form


def _log_sums(lists: Neighbors, form: ScoreForm, bias: Tensor | None, fast: bool) -> Tensor:
    """log d_v = log Σ_u exp(s_vu), with its gradient: [n, H] or [n, 1].

    The gradient of log d_v equals that of Σ_u α_vu s_vu with α held constant. For dot products
    this sum is <q_v, Σ_u α_vu k_u>, so the kernels compute both without per-edge storage.
    ``fast``: use the kernels where they support the form.
    """
    if not fast or bias is not None or not isinstance(form, DotProduct | ClassAgreement):
        return definition.log_sums(lists, form, bias)
    total = kernel_log_sums(lists, form)
    trained = any(isinstance(x, Tensor) and x.requires_grad for x in vars(form).values())
    if not (trained and torch.is_grad_enabled()):
        return total
    if isinstance(form, ClassAgreement):
        logits = form.logits
        prediction = logits.sigmoid() if form.independent_labels else logits.softmax(-1)
        form = DotProduct(prediction, prediction, form.scale)
    fixed = DotProduct(form.query.detach(), form.key.detach(), form.scale)
    if form.query is form.key:
        fixed = replace(fixed, key=fixed.query)
    mean_key = kernel_attention(lists, form.key, fixed)
    score = form.scale * (form.query * mean_key).sum(-1)
    return total + (score - score.detach())
