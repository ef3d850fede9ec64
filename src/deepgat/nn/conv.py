"""One neighbour-attention convolution, usable by itself in any PyTorch Geometric model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepgat import ops
from deepgat.errors import UserError
from deepgat.nn.scores import ClassScore, HeadShape, Score, ScoreFactory, ScoreInputs
from deepgat.ops import Features, Neighbors, Normalization


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
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.num_classes = num_classes
        self.label_channels = label_channels
        self.concat = concat
        self.attention_dropout = attention_dropout
        self.normalization = normalization

        self.score: Score = score(HeadShape(heads, out_channels))
        self.weight = nn.Parameter(torch.empty(heads * out_channels, in_channels))
        self.class_weight: nn.Parameter | None = None
        if self.score.needs_class_logits:
            if num_classes is None:
                raise UserError(
                    f"{type(self.score).__name__} compares class predictions: "
                    "say how many classes there are with num_classes"
                )
            width = in_channels + label_channels
            self.class_weight = nn.Parameter(torch.empty(heads * num_classes, width))
        width = heads * out_channels if concat else out_channels
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.class_weight is not None:
            nn.init.xavier_uniform_(self.class_weight)
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
    ) -> Tensor | tuple[Tensor, Attention]:
        """The convolution; with ``return_attention_weights`` also (edge_index, weight) as in PyG.

        ``label_features`` is z [n, label_channels] (zeros when left out); ``labels`` are the true
        classes, for the oracle alone.
        """
        result = self.run(x, edge_index, label_features, labels, return_attention_weights)
        return (result.out, result.attention) if result.attention is not None else result.out

    def run(
        self,
        x: Features,
        edge_index: Tensor | Neighbors,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
        with_attention: bool = False,
    ) -> ConvOutput:
        """As :meth:`forward`, returning everything the layer computed."""
        x = ops.as_features(x)
        neighbors = ops.as_neighbors(edge_index, x.size(0))
        # W₂ is linear, so project first and gather the narrow result.
        projected = self._per_head(x, self.weight, self.heads)
        class_logits = self.predict_classes(x, label_features)
        if self.score.needs_labels and labels is None:
            raise UserError(f"{type(self.score).__name__} needs the true labels: pass labels=y")
        form = self.score(ScoreInputs(neighbors, projected, class_logits, labels))

        p = self.attention_dropout if self.training else 0.0
        out = ops.neighbor_attention(neighbors, projected, form, self.normalization, p)
        out = out.flatten(1) if self.concat else out.mean(1)
        if self.bias is not None:
            out = out + self.bias

        attention = None
        if with_attention:
            weight = ops.attention_weights(neighbors, form, self.normalization)
            attention = Attention(neighbors.edge_index, weight.to(out.dtype).expand(-1, self.heads))
        return ConvOutput(out, class_logits, attention)

    def predict_classes(self, x: Features, label_features: Tensor | None) -> Tensor | None:
        """p_v = W₁(x_v ‖ z_v): [n, H, C]; None where no score asks for it."""
        if self.class_weight is None:
            return None
        logits = self._per_head(x, self.class_weight[:, : self.in_channels], self.heads)
        if self.label_channels and label_features is not None:
            of_labels = self.class_weight[:, self.in_channels :]
            logits = logits + self._per_head(label_features, of_labels, self.heads)
        return logits

    @staticmethod
    def _per_head(x: Features, weight: Tensor, heads: int) -> Tensor:
        """x Wᵀ as [n, H, D]; on the CPU with the heads innermost in memory.

        That is how its kernels read it; turning the small weight is cheaper than the large result.
        """
        if weight.device.type != "cpu":
            return ops.linear(x, weight).view(x.size(0), heads, -1)
        by_channel = weight.view(heads, -1, weight.size(1)).transpose(0, 1).flatten(0, 1)
        return ops.linear(x, by_channel).view(x.size(0), -1, heads).transpose(1, 2)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads}, "
            f"score={type(self.score).__name__})"
        )
