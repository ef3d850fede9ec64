"""Attention scores s(v, u): one small class per score.

To add a score, subclass :class:`Score`, declare what it needs, and return one of the forms of
:mod:`deepgat.ops`. Shapes: n nodes, H heads, D channels per head, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from deepgat.errors import UserError
from deepgat.ops import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Neighbors,
    ScoreForm,
    Uniform,
    head_products,
)


@dataclass(frozen=True)
class HeadShape:
    """The sizes of a layer, from which a score makes its parameters."""

    heads: int
    width: int
    """D, channels per head of the layer's output."""
    classes: int = 0
    """C, number of classes that the layer predicts."""


@dataclass(frozen=True, eq=False)
class ScoreInputs:
    """The inputs of a score."""

    neighbors: Neighbors
    projected: Tensor
    """W h, or h itself if the layer does not project: [n, H, D]."""
    class_logits: Tensor | None = None
    """The layer's class prediction p before softmax or sigmoid: [n, H, C]."""
    labels: Tensor | None = None
    """The true classes [n] or labels [n, C], for the oracle only."""


class Score(nn.Module):
    """Base of all scores: from the layer's tensors to a form of s_vu."""

    needs_class_logits = False
    needs_labels = False
    others_only = False
    """Whether N_v excludes v itself; a node without other neighbours then receives 0."""
    reads_states = True
    """Whether s_vu depends on what the nodes hold, rather than on the edges alone."""
    detached = False
    """Whether no gradient flows through s_vu."""

    def reset_parameters(self) -> None:
        """Reinitialise the parameters; most scores have none."""

    def forward(self, inputs: ScoreInputs) -> ScoreForm:
        raise UserError(f"{type(self).__name__} does not say how to compute a score")


ScoreFactory: TypeAlias = Callable[[HeadShape], Score]
"""Creates the score of one layer."""

Scale: TypeAlias = Callable[[int, int], float]
"""(width of q and k, per-head output width of the layer) → factor on <q, k>."""


def unscaled(vector_width: int, output_width: int) -> float:
    """DP: the plain dot product."""
    return 1.0


def by_width(vector_width: int, output_width: int) -> float:
    """SD as the paper prints it: <q, k> / dim(q)."""
    return 1.0 / vector_width


def by_sqrt_output_width(vector_width: int, output_width: int) -> float:
    """SD as the authors' code computes it: <q, k> / sqrt(per-head output width)."""
    return 1.0 / math.sqrt(output_width)


class AdditiveScore(Score):
    r"""AD, the score of the original GAT: s_vu = LeakyReLU(<w_t, W h_v> + <w_s, W h_u>).

    The learnt vectors w_t and w_s are ``target`` and ``source``, [H, D] each.
    """

    def __init__(self, shape: HeadShape, negative_slope: float = 0.2) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.target = nn.Parameter(torch.empty(shape.heads, shape.width))
        self.source = nn.Parameter(torch.empty(shape.heads, shape.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.target)
        nn.init.xavier_uniform_(self.source)

    def forward(self, inputs: ScoreInputs) -> ScoreForm:
        target, source = head_products(inputs.projected, self.target, self.source)
        return Additive(target, source, self.negative_slope)


class DotScore(Score):
    """DP and SD of GAT: s_vu = scale · <W h_v, W h_u>."""

    def __init__(self, shape: HeadShape, scale: Scale = unscaled) -> None:
        super().__init__()
        self.scale = scale(shape.width, shape.width)

    def forward(self, inputs: ScoreInputs) -> ScoreForm:
        return DotProduct(inputs.projected, inputs.projected, self.scale)


class ClassScore(Score):
    """DP and SD of DeepGAT: s_vu = τ · scale · <ŷ_v, ŷ_u>, the agreement of two class predictions.

    ŷ = softmax(p), or sigmoid(p) with ``independent_labels``.

    Args:
        shape: sizes of the layer.
        scale: the factor of DP or SD.
        independent_labels: several labels per node instead of one class.
        sharpness: τ, multiplies the agreement; 1 in the paper.
        detached: no gradient flows through the attention; only the loss trains the predictions.
        attends: if False, the layer predicts classes but all weights are equal (s_vu = 0).
    """

    needs_class_logits = True

    def __init__(
        self,
        shape: HeadShape,
        scale: Scale = unscaled,
        independent_labels: bool = False,
        sharpness: float = 1.0,
        detached: bool = False,
        attends: bool = True,
    ) -> None:
        super().__init__()
        self.factor = sharpness * scale(shape.classes, shape.width)
        self.independent_labels = independent_labels
        self.detached = detached
        self.attends = self.reads_states = attends

    def forward(self, inputs: ScoreInputs) -> ScoreForm:
        if not self.attends:
            return Uniform()
        logits = inputs.class_logits
        assert logits is not None  # the convolution provides them
        logits = logits.detach() if self.detached else logits
        return ClassAgreement(logits, self.factor, self.independent_labels)


class OracleScore(Score):
    """The score of perfect predictions: o(v, u) = 1 if v and u share a class, else 0.

    ``inside_softmax=True`` is α = softmax(τ o) as in Algorithm 1, where τ = 1: weights within N_v
    differ by at most a factor e^τ; τ is ``sharpness``. ``False`` is α = o / Σo as Lemma 2
    requires: nothing passes between classes. For independent labels, o(v, u) = <y_v, y_u>, and at
    least 1 for v = u. The oracle reads every label, including those of test nodes: it is an upper
    bound for comparison, not a model. Its layers still learn to predict classes, but the attention
    ignores these predictions.
    """

    needs_class_logits = True
    needs_labels = True

    def __init__(
        self, shape: HeadShape, inside_softmax: bool = True, sharpness: float = 1.0
    ) -> None:
        super().__init__()
        self.inside_softmax = inside_softmax
        self.sharpness = sharpness

    def forward(self, inputs: ScoreInputs) -> ScoreForm:
        assert inputs.labels is not None  # the convolution provides them
        agreement = _agreement(inputs.labels, inputs.neighbors).to(inputs.projected.dtype)
        score = self.sharpness * agreement if self.inside_softmax else agreement.log()
        return EdgeScore(score.unsqueeze(-1))


class UniformScore(Score):
    """GCN: s_vu = 0. Row normalisation gives α = 1/|N_v|, symmetric 1/sqrt(|N_v| |N_u|)."""

    reads_states = False

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()

    def forward(self, inputs: ScoreInputs) -> ScoreForm:
        return Uniform()


class NeighborMeanScore(Score):
    """GraphSAGE's mean: all neighbours except v itself have the weight 1/(|N_v| − 1)."""

    others_only = True
    reads_states = False

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()

    def forward(self, inputs: ScoreInputs) -> ScoreForm:
        neighbors = inputs.neighbors
        itself = neighbors.target == neighbors.source
        # an isolated node keeps itself, so that its softmax is defined; the layer zeroes it
        skipped = itself & (neighbors.others > 0).index_select(0, neighbors.target)
        score = inputs.projected.new_zeros(neighbors.num_edges)
        return EdgeScore(score.masked_fill(skipped, -math.inf).unsqueeze(-1))


def _agreement(labels: Tensor, neighbors: Neighbors) -> Tensor:
    """o(v, u) of every edge: [E]."""
    mine, theirs = labels[neighbors.target], neighbors.with_halo(labels)[neighbors.source]
    if labels.dim() == 1:
        return mine == theirs
    shared = (mine * theirs).sum(-1)
    itself = neighbors.target == neighbors.source
    return torch.where(itself, shared.clamp(min=1), shared)


SD_SCALES: Mapping[str, Scale] = {"width": by_width, "sqrt-output-width": by_sqrt_output_width}
"""The divisors of SD: in the paper and in the authors' code."""
