"""One neighbour-attention convolution, usable by itself in any PyTorch Geometric model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from deepgat import ops
from deepgat.errors import UserError
from deepgat.nn.checkpoint import remade
from deepgat.nn.scores import (
    EVERY_HEAD,
    ClassScore,
    HeadShape,
    Score,
    ScoreFactory,
    ScoreInputs,
)
from deepgat.ops import Features, HeadShare, Neighbors, Normalization

ClassHead: TypeAlias = Callable[[Features, Tensor | None], Tensor]
"""(features [n, d], z [n, C] or None) → class logits [n, H, C], or [n, 1, C] for all heads."""


class Attention(NamedTuple):
    """Attention weights with the edges they belong to (self-loops included)."""

    edge_index: Tensor
    """[2, E]: sources u in row 0, targets v in row 1."""
    weight: Tensor
    """[E, H]: α_vu of each edge and head; over the edges into v they sum to 1 (row-normalised)."""


class ConvOutput(NamedTuple):
    """All that one convolution computed."""

    out: Tensor
    """[n, H·D], or [n, D] with averaged heads."""
    class_logits: Tensor | None
    """The class prediction the attention came from, [n, H, C]; None without one."""
    attention: Attention | None
    """On request only."""


class NeighborAttention(nn.Module):
    r"""A graph convolution whose neighbours are weighed by a score.

    .. math::
        \mathbf{x}'_v = \sum_{u \in N_v} \alpha_{vu} \mathbf{W}_2 \mathbf{x}_u + \mathbf{b},
        \qquad \alpha_{vu} = \frac{\exp s(v, u)}{\sum_{w \in N_v} \exp s(v, w)}

    per head, the heads concatenated or averaged. N_v contains v itself: self-loops are added,
    repeated edges count once. With :class:`~deepgat.nn.ClassScore`, DeepGAT's, the layer first
    predicts the class of every node, p_v = W₁(x_v ‖ z_v), and s(v, u) compares the predictions
    of v and u.

    Args:
        in_channels: d, width of the input.
        out_channels: D, width of each head's output.
        heads: H.
        score: makes the score from the layer's shape: ``ClassScore``, ``AdditiveScore``, …
            (see :mod:`deepgat.nn.scores`).
        num_classes: C; needed by scores that compare class predictions.
        label_channels: width of ``label_features``, z, which only W₁ reads.
        concat: concatenate the heads ([n, H·D]) or average them ([n, D]).
        bias: learn b.
        attention_dropout: share of the weights α dropped in training.
        normalization: over N_v (``ROW``) or ``SYMMETRIC``.
        project: multiply by W₂ before summing; without it x itself is summed, its channels
            divided among the heads (d = H·D, heads concatenated), and there is no W₂.
        own_class_head: learn W₁ where the score asks for class predictions; without it they come
            from the ``class_head`` given to :meth:`run`.
        class_bias: learn a bias in W₁.
        edge_channels: width of ``edge_attr``; a linear map of it joins the score of each head.

    Shapes:
        x [n, d], dense or sparse (``torch.sparse_csr``/``sparse_coo`` or an
        :class:`~deepgat.ops.SparseMatrix`); edge_index [2, ·] as in PyG, or
        :class:`~deepgat.ops.Neighbors` built once; out [n, H·D] or [n, D].

    Example:
        >>> conv = NeighborAttention(64, 8, heads=8, score=ClassScore, num_classes=7)
        >>> x = conv(x, edge_index)                                  # doctest: +SKIP
        >>> x, (edges, alpha) = conv(x, edge_index, return_attention_weights=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        *,
        score: ScoreFactory = ClassScore,
        num_classes: int | None = None,
        label_channels: int = 0,
        concat: bool = True,
        bias: bool = True,
        attention_dropout: float = 0.0,
        normalization: Normalization = Normalization.ROW,
        project: bool = True,
        own_class_head: bool = True,
        class_bias: bool = False,
        edge_channels: int = 0,
    ) -> None:
        super().__init__()
        if not project and (in_channels != heads * out_channels or not concat):
            raise UserError(
                f"without a projection a layer keeps its width: {in_channels} channels do not "
                f"make {heads} concatenated heads of {out_channels}"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.num_classes = num_classes
        self.label_channels = label_channels
        self.concat = concat
        self.attention_dropout = attention_dropout
        self.normalization = normalization
        self.forget_projections = False
        """Compute W₂ x and W₁ x again in the backward pass: less memory for a little more time."""

        self.score: Score = score(HeadShape(heads, out_channels, num_classes or 0))
        self.weight = (
            nn.Parameter(torch.empty(heads * out_channels, in_channels)) if project else None
        )
        self.class_weight: nn.Parameter | None = None
        self.class_bias: nn.Parameter | None = None
        if self.score.needs_class_logits and own_class_head:
            if num_classes is None:
                raise UserError(
                    f"{type(self.score).__name__} compares class predictions: "
                    "say how many classes there are with num_classes"
                )
            width = in_channels + label_channels
            self.class_weight = nn.Parameter(torch.empty(heads * num_classes, width))
            if class_bias:
                self.class_bias = nn.Parameter(torch.empty(heads, num_classes))
        self.edge_map = nn.Linear(edge_channels, heads, bias=False) if edge_channels else None
        width = heads * out_channels if concat else out_channels
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)
        if self.class_weight is not None:
            nn.init.xavier_uniform_(self.class_weight)
        if self.class_bias is not None:
            nn.init.zeros_(self.class_bias)
        if self.edge_map is not None:
            self.edge_map.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.score.reset_parameters()

    def forward(
        self,
        x: Features,
        edge_index: Tensor | Neighbors,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
        return_attention_weights: bool = False,
        *,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Attention]:
        """The convolution; with ``return_attention_weights`` also (edge_index, weight) as in PyG.

        ``label_features`` is z [n, label_channels] (zeros when left out); ``labels`` are the true
        classes, for the oracle alone. ``edge_weight`` [number of edges] ≥ 0 multiplies exp(s): its
        logarithm joins the score. ``edge_attr`` [number of edges, edge_channels] joins it through
        a linear map. Both are in the order of ``edge_index``, or of the lists where these are
        given; the weights of an edge named twice are added, its features averaged, and a self-loop
        that the graph does not have weighs 1.
        """
        bias = self._edge_bias(edge_index, x.size(0), edge_weight, edge_attr)
        result = self.run(
            x, edge_index, label_features, labels, return_attention_weights, edge_bias=bias
        )
        return (result.out, result.attention) if result.attention is not None else result.out

    def run(
        self,
        x: Features,
        edge_index: Tensor | Neighbors,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
        with_attention: bool = False,
        *,
        layer: int = 1,
        undropped: Features | None = None,
        class_head: ClassHead | None = None,
        edge_bias: Tensor | None = None,
    ) -> ConvOutput:
        """As :meth:`forward`, returning everything the layer computed.

        Args:
            layer: this layer's place in its stack, from 1, for scores that change with it.
            undropped: x before dropout, where the attention is to be computed from that; the
                class prediction that is returned, and trained, is always made from ``x``.
            class_head: makes the class predictions in place of the layer's own W₁.
            edge_bias: [E, H] or [E, 1], joins the score; in the order of the lists. Left out, the
                weights and features that the lists themselves hold join it.
        """
        x = ops.as_features(x)
        neighbors = ops.as_neighbors(edge_index, x.size(0))
        share = ops.current_share(self.heads)
        own = EVERY_HEAD if share is None else share.own(self.heads)
        if edge_bias is None:
            edge_bias = self._listed_bias(neighbors.log_weight, neighbors.features, own)
        elif share is not None and edge_bias.size(1) > 1:
            edge_bias = edge_bias[:, own]
        inner, undropped = _entered(share, x), x if undropped is None else undropped
        clean = undropped is not x
        if class_head is None:
            value, class_logits = self._project(inner, label_features, own)
            seen = class_logits
            if clean and class_logits is not None:
                seen = self.predict_classes(_entered(share, undropped), label_features, own)
        else:  # everyone's: what each process's heads make of it is a share of its gradient
            value, class_logits = self._value(inner, own), class_head(x, label_features)
            seen = _entered(share, class_head(undropped, label_features) if clean else class_logits)
        if self.score.needs_labels and labels is None:
            raise UserError(f"{type(self.score).__name__} needs the true labels: pass labels=y")
        if seen is not None:
            seen = seen.expand(-1, value.size(1), -1)
        form = self.score(ScoreInputs(neighbors, value, seen, labels, layer, own))

        p = self.attention_dropout if self.training else 0.0
        forget = self.forget_projections and class_head is None and self.weight is not None
        again = partial(self._project, inner, label_features, own)
        with remade([value, class_logits], again) if forget else nullcontext():
            out = ops.neighbor_attention(
                neighbors, value, form, self.normalization, p, edge_bias, own.start or 0
            )
        if self.score.others_only:  # the mean over no one is 0
            out = out * (neighbors.others > 0).view(-1, 1, 1)
        if share is not None:
            out = share.gathered(out)
            if class_head is None and class_logits is not None:
                class_logits = share.gathered(class_logits)
        out = out.flatten(1) if self.concat else out.mean(1)
        if self.bias is not None:
            out = out + self.bias

        attention = None
        if with_attention:
            weight = ops.attention_weights(neighbors, form, self.normalization, edge_bias)
            weight = weight.to(out.dtype).expand(-1, value.size(1))
            if share is not None:
                weight = share.gathered(weight)
            if self.score.others_only:
                weight = weight * (neighbors.target != neighbors.source).unsqueeze(-1)
            attention = Attention(neighbors.edge_index, weight)
        return ConvOutput(out, class_logits, attention)

    def _project(
        self, x: Features, label_features: Tensor | None, own: slice
    ) -> tuple[Tensor, Tensor | None]:
        """(W₂ x, W₁(x ‖ z) + b₁) of some heads, both by one product where that is faster."""
        if self.weight is None or self.class_weight is None:
            return self._value(x, own), self.predict_classes(x, label_features, own)
        of_features = self.class_weight[:, : self.in_channels]
        value, logits = self._per_head(x, own, self.weight, of_features)
        return value, self._complete(logits, label_features, own)

    def predict_classes(
        self, x: Features, label_features: Tensor | None, own: slice = EVERY_HEAD
    ) -> Tensor | None:
        """p_v = W₁(x_v ‖ z_v) + b₁: [n, H, C]; None where no score asks for it."""
        if self.class_weight is None:
            return None
        (logits,) = self._per_head(x, own, self.class_weight[:, : self.in_channels])
        return self._complete(logits, label_features, own)

    def _complete(self, logits: Tensor, label_features: Tensor | None, own: slice) -> Tensor:
        """W₁'s part for x, joined by its part for z and b₁."""
        assert self.class_weight is not None
        if self.label_channels and label_features is not None:
            of_labels = self.class_weight[:, self.in_channels :]
            logits = logits + self._per_head(label_features, own, of_labels)[0]
        return logits if self.class_bias is None else logits + self.class_bias[own]

    def _value(self, x: Features, own: slice) -> Tensor:
        """What is summed over the neighbours: [n, H, D]."""
        if self.weight is not None:  # W₂ is linear, so project first and gather the narrow result
            return self._per_head(x, own, self.weight)[0]
        if not isinstance(x, Tensor):
            raise UserError(
                "a layer without a projection needs dense features: put an encoder first"
            )
        return x.reshape(x.size(0), self.heads, self.out_channels)[:, own]

    def _per_head(self, x: Features, own: slice, *weights: Tensor) -> list[Tensor]:
        """x Wᵀ as [n, H, ·] for every weight [H·, d]; on the CPU the heads are innermost in memory.

        That is how its kernels read it; turning the small weight is cheaper than the large result.
        On a GPU, or where x is sparse, one product serves all weights.
        """
        heads, on_cpu = len(range(self.heads)[own]), weights[0].device.type == "cpu"
        if own != EVERY_HEAD:
            weights = tuple(w.unflatten(0, (self.heads, -1))[own].flatten(0, 1) for w in weights)
        flat = list(weights)
        if on_cpu:
            flat = [w.view(heads, -1, w.size(1)).transpose(0, 1).flatten(0, 1) for w in weights]
        if len(flat) == 1 or (on_cpu and isinstance(x, Tensor)):
            products = [ops.linear(x, weight) for weight in flat]
        else:
            joint = ops.linear(x, torch.cat(flat))
            products = list(joint.split([weight.size(0) for weight in flat], dim=1))
        if on_cpu:
            inner = [out.contiguous().unflatten(1, (-1, heads)) for out in products]
            return [out.transpose(1, 2) for out in inner]
        return [out.unflatten(1, (heads, -1)) for out in products]

    def _edge_bias(
        self,
        edge_index: Tensor | Neighbors,
        num_nodes: int,
        edge_weight: Tensor | None,
        edge_attr: Tensor | None,
    ) -> Tensor | None:
        """log(weight) + W_e · attributes, in the order of the lists: [E, H or 1]; None without."""
        if isinstance(edge_index, Neighbors):
            weight = edge_index.log_weight
            if edge_weight is not None:
                weight = edge_weight.unsqueeze(-1).log()
            features = edge_index.features if edge_attr is None else edge_attr
            return self._listed_bias(weight, features)
        if edge_weight is None and edge_attr is None:
            return self._listed_bias(None, None)
        neighbors = ops.as_neighbors(edge_index, num_nodes)
        neighbors = neighbors.with_values(edge_index, edge_weight, edge_attr)
        return self._listed_bias(neighbors.log_weight, neighbors.features)

    def _listed_bias(
        self, log_weight: Tensor | None, features: Tensor | None, own: slice = EVERY_HEAD
    ) -> Tensor | None:
        """log(weight) + W_e · features of edges in the order of the lists."""
        if features is not None and self.edge_map is None:
            raise UserError("edge_attr was given to a layer made without edge_channels")
        if self.edge_map is not None and features is None:
            raise UserError("the layer was made with edge_channels: pass edge_attr")
        if features is None or self.edge_map is None:
            return log_weight
        mapped = ops.linear(features, self.edge_map.weight[own])
        return mapped if log_weight is None else log_weight + mapped

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads}, "
            f"score={type(self.score).__name__})"
        )


def _entered(share: HeadShare | None, x: Any) -> Any:
    """x as the own heads read it; features that are no tensor have no gradient."""
    return share.entered(x) if share is not None and isinstance(x, Tensor) else x
