"""Neighbour attention on one part of a partitioned graph.

While the halo rows are in transit, every own node attends to its own neighbours. The nodes with
halo neighbours then attend to those, and :mod:`.halves` combines both results. The kernels for
whole graphs run on the lists of either half (:class:`.lists.Side`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deepgat.ops import attention, definition, dropout_masks
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.partitioned.halves import Half, KernelHalf, ReferenceHalf
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
    fast = run is attention.kernel_attention
    sides = neighbors.sides if part.overlaps else (neighbors.everywhere,)
    biases = [None if bias is None else side.of_edges(bias) for side in sides]
    halves: list[Half] = []

    def attend(side: Side, form: ScoreForm, value: Tensor) -> None:
        make = KernelHalf.of if fast else ReferenceHalf.of
        lists, bias = side.lists, biases[len(halves)]
        halves.append(make(lists, form, bias, value, dropout, side.seed(seed)))

    if normalization is Normalization.ROW:
        for side, found in _in_turn(neighbors, sides, [*_compared(form), value]):
            attend(side, _on_side(side, form, found[:-1]), found[-1])
        return _joined(halves, sides)[: part.own]
    forms = []
    sums = _LogSums(form, sides, fast, biases)
    for side, found in _in_turn(neighbors, sides, _compared(form)):
        forms.append(_on_side(side, form, found))
        sums.add(forms[-1])
    half = sums.joined(neighbors).unsqueeze(-1).to(value.dtype) / 2
    for side, (scaled,) in _in_turn(neighbors, sides, [value * (-half).exp()]):
        attend(side, forms[len(halves)], scaled)
    return _joined(halves, sides)[: part.own] * half.exp()


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


def _joined(halves: Sequence[Half], sides: Sequence[Side]) -> Tensor:
    """out [rows of the first side, H, D] over all neighbours."""
    first, *rest = halves
    return first.joined(rest[0], sides[1].targets) if rest else first.alone()


class _LogSums:
    """log d_v = log Σ_u exp(s_vu), with its gradient: [own, H] or [own, 1].

    The gradient of log d_v equals that of Σ_u α_vu s_vu with α held constant. For dot products
    this sum is <q_v, Σ_u α_vu k_u>, so the kernels compute both without per-edge storage.
    """

    def __init__(
        self, form: ScoreForm, sides: Sequence[Side], fast: bool, biases: list[Tensor | None]
    ) -> None:
        """``fast``: use the kernels where they support the form."""
        self.sides, self.biases = sides, biases
        plain = biases[0] is None
        self.uniform = plain and isinstance(form, Uniform)
        self.fast = plain and fast and isinstance(form, DotProduct | ClassAgreement)
        self.trained = self.fast and torch.is_grad_enabled() and _has_gradient(form)
        self.found: list[Tensor] = []
        self.halves: list[ReferenceHalf] = []
        self.dots: list[DotProduct] = []
        self.mean_keys: list[Half] = []

    def add(self, form: ScoreForm) -> None:
        """Compute the sums of the next side."""
        if self.uniform:
            return
        if not self.fast:
            number = len(self.halves)
            lists, bias = self.sides[number].lists, self.biases[number]
            self.halves.append(ReferenceHalf.of(lists, form, bias))
            return
        assert isinstance(form, DotProduct | ClassAgreement)
        lists = self.sides[len(self.found)].lists
        self.found.append(attention.log_sums(lists, form))
        if not self.trained:
            return
        if isinstance(form, ClassAgreement):
            logits = form.logits
            prediction = logits.sigmoid() if form.independent_labels else logits.softmax(-1)
            form = DotProduct(prediction, prediction, form.scale)
        self.dots.append(form)
        fixed = DotProduct(form.query.detach(), form.key.detach(), form.scale)
        if form.query is form.key:
            fixed = replace(fixed, key=fixed.query)
        self.mean_keys.append(KernelHalf.of(lists, fixed, None, form.key))

    def joined(self, neighbors: PartNeighbors) -> Tensor:
        """The sums over all neighbours."""
        own = neighbors.part.own
        if self.uniform:
            return neighbors.degree.double().log().unsqueeze(-1)
        if not self.fast:
            half, *others = self.halves
            if others:
                half = half.with_(others[0], self.sides[1].targets)
            return half.log_sums()[:own]
        found, *rest = self.found
        if rest:
            targets = self.sides[1].targets
            both = torch.logaddexp(found[targets], rest[0][: targets.numel()])
            found = found.index_copy(0, targets, both)
        if not self.trained:
            return found[:own]
        score = self.dots[0].query * _joined(self.mean_keys, self.sides)
        score = self.dots[0].scale * score.sum(-1)
        return (found + (score - score.detach()))[:own]


def _has_gradient(form: ScoreForm) -> bool:
    return any(isinstance(x, Tensor) and x.requires_grad for x in vars(form).values())
