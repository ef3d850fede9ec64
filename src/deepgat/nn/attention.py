"""A neighbour-attention convolution for any PyTorch Geometric model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepgat import ops
from deepgat.errors import UserError
from deepgat.nn.bipartite import between_sets
from deepgat.nn.checkpoint import recompute_saved
from deepgat.nn.conv_output import Attention, ConvOutput
from deepgat.nn.scores import (
    AdditiveScore,
    ClassScore,
    HeadShape,
    Score,
    ScoreFactory,
    ScoreInputs,
)
from deepgat.ops import Features, Neighbors, Normalization, fused_layer


class Reach(NamedTuple):
    """How many hops a layer looks from a node v to compute its output there."""

    states: int = 0
    """It reads the input of nodes up to so many hops away."""
    lists: int = 0
    """It reads neighbour lists whose members are up to so many hops away; at least ``states``."""


class NeighborAttention(nn.Module):
    r"""A graph convolution that weighs neighbours by a score.

    .. math::
        \mathbf{x}'_v = \sum_{u \in N_v} \alpha_{vu} \mathbf{W}_2 \mathbf{x}_u + \mathbf{b},
        \qquad \alpha_{vu} = \frac{\exp s(v, u)}{\sum_{w \in N_v} \exp s(v, w)}

    per head; heads are concatenated or averaged. It takes the place of
    :class:`torch_geometric.nn.GATConv` and its arguments up to ``edge_dim``. With ``num_classes``
    the score is DeepGAT's: the layer predicts the class of every node, p_v = W₁(x_v ‖ z_v), and
    s(v, u) compares the predictions of v and u; :meth:`run` returns them (``class_logits``) for a
    loss of their own. Without ``num_classes`` the score is GAT's. Unlike in GATConv, repeated edges
    count once, ``edge_attr`` joins the score after LeakyReLU, and added self-loops have features 0.

    Args:
        in_channels: d, width of the input.
        out_channels: D, width of each head's output.
        heads: H.
        concat: concatenate the heads ([n, H·D]) or average them ([n, D]).
        negative_slope: of LeakyReLU in GAT's score.
        dropout: share of the attention weights α dropped in training.
        add_self_loops: every node attends to itself. Without it, only nodes with a self-loop in
            ``edge_index`` do, and nodes without incoming edges receive 0.
        edge_dim: width of ``edge_attr``; a linear map of it is added to the score of each head.
        bias: learn b.
        residual: add W' x_v + b', a learnt skip connection.
        score: a factory for another score; see :mod:`deepgat.nn.scores`.
        num_classes: C, for scores that compare class predictions.
        label_channels: width of ``label_features``, z, which only W₁ reads.
        class_bias: learn a bias in W₁.
        normalization: "row", over N_v, or "symmetric".
        project: multiply by W₂ before summing. Without it the layer has no W₂ and sums x itself,
            whose channels are split among the heads (d = H·D, heads concatenated).

    Shapes:
        x [n, d], dense or sparse (``torch.sparse_csr``/``sparse_coo`` or an
        :class:`~deepgat.ops.SparseMatrix`); edge_index [2, ·] or an
        :class:`~torch_geometric.EdgeIndex` as in PyG, or :class:`~deepgat.ops.Neighbors`. The
        lists of an edge_index are kept for the next call (:mod:`deepgat.ops.neighbor_cache`).
        out [n, H·D] or [n, D].

    Example:
        >>> conv = NeighborAttention(16, 8, heads=2, num_classes=7)
        >>> x, edge_index = torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> conv(x, edge_index).shape
        torch.Size([3, 16])
        >>> out, (edges, alpha) = conv(x, edge_index, return_attention_weights=True)
        >>> edges.shape, alpha.shape
        (torch.Size([2, 6]), torch.Size([6, 2]))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        bias: bool = True,
        *,
        residual: bool = False,
        score: ScoreFactory | None = None,
        num_classes: int | None = None,
        label_channels: int = 0,
        class_bias: bool = False,
        normalization: Normalization | str = Normalization.ROW,
        project: bool = True,
    ) -> None:
        super().__init__()
        for name, size in (
            ("in_channels", in_channels), ("out_channels", out_channels), ("heads", heads),
        ):  # fmt: skip
            if not isinstance(size, Integral) or size < 1:
                pair = name == "in_channels" and (isinstance(size, tuple) or size == -1)
                more = "; unlike GATConv, this layer takes neither a pair nor -1" if pair else ""
                raise UserError(f"{name} is {size!r}: expected a positive integer{more}")
        if not project and (in_channels != heads * out_channels or not concat):
            raise UserError(
                f"a layer without a projection keeps its width: {in_channels} channels do not "
                f"make {heads} concatenated heads of {out_channels}"
            )
        ops.checks.share("dropout", dropout)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.dropout = dropout
        self.add_self_loops = add_self_loops
        self.num_classes = num_classes
        self.label_channels = label_channels
        self.normalization = Normalization.named(normalization)
        self.forget_projections = False
        """Recompute W₂ x and W₁ x in the backward pass: less memory for a little more time."""

        if score is None:
            additive = partial(AdditiveScore, negative_slope=negative_slope)
            score = additive if num_classes is None else ClassScore
        self.score: Score = score(HeadShape(heads, out_channels, num_classes or 0))
        self.weight = (
            nn.Parameter(torch.empty(heads * out_channels, in_channels)) if project else None
        )
        self.class_weight: nn.Parameter | None = None
        self.class_bias: nn.Parameter | None = None
        if self.score.needs_class_logits:
            if num_classes is None:
                raise UserError(
                    f"{type(self.score).__name__} compares class predictions: "
                    "give the number of classes as num_classes"
                )
            width = in_channels + label_channels
            self.class_weight = nn.Parameter(torch.empty(heads * num_classes, width))
            if class_bias:
                self.class_bias = nn.Parameter(torch.empty(heads, num_classes))
        self.edge_map = nn.Linear(edge_dim, heads, bias=False) if edge_dim else None
        width = heads * out_channels if concat else out_channels
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self._reset_own()
        self.res = nn.Linear(in_channels, width) if residual else None

    @property
    def reach(self) -> Reach:
        """N_v, and with symmetric normalisation also N_u of every u ∈ N_v, which d_u sums over."""
        if self.normalization is Normalization.ROW:
            return Reach(1, 1)
        return Reach(2 if self.score.reads_states else 1, 2)

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        self._reset_own()
        if self.res is not None:
            self.res.reset_parameters()

    def _reset_own(self) -> None:
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
        edge_attr: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, Attention]:
        """The convolution; with ``return_attention_weights`` also (edge_index, weight) as in PyG.

        Args:
            x: [n, d]; or a pair (sources [m, d], targets [n, d]) with ``add_self_loops=False``.
            edge_index: the edges; of a pair, row 0 names sources and row 1 targets.
            edge_attr: [number of edges, edge_dim]: its linear map is added to the score.
            edge_weight: [number of edges] ≥ 0: multiplies exp(s).
            label_features: z [n, label_channels]; zeros by default.
            labels: the true classes, for the oracle only.
            return_attention_weights: also return the attention.

        ``edge_attr`` and ``edge_weight`` are in the order of ``edge_index``, or of the neighbour
        lists if those are given. The weights of repeated edges are added, their features averaged.
        Added self-loops have weight 1.
        """
        if isinstance(x, tuple):
            if label_features is not None or labels is not None:
                raise UserError("x is a pair: label_features and labels need one set of nodes")
            with_attention = bool(return_attention_weights)
            return between_sets(self, x, edge_index, edge_attr, edge_weight, with_attention)
        x = ops.as_features(x)
        ops.checks.features(x)
        self.check_width(x)
        edges = (edge_index, x.size(0), edge_weight, edge_attr)
        isolated = None
        if self.add_self_loops:
            neighbors = ops.weighted_neighbors(*edges)
        else:
            neighbors, isolated = ops.neighbors_without_loops(*edges)
        result = self.run(
            x, neighbors, label_features, labels, bool(return_attention_weights), isolated=isolated
        )
        return (result.out, result.attention) if result.attention is not None else result.out

    def check_width(self, x: Features) -> None:
        """Refuse features of another width than ``in_channels``."""
        if x.size(1) != self.in_channels:
            raise UserError(
                f"x has {x.size(1)} features per node, but the layer was made with "
                f"in_channels={self.in_channels}"
            )

    def run(
        self,
        x: Features,
        neighbors: Tensor | Neighbors,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
        with_attention: bool = False,
        *,
        undropped: Features | None = None,
        isolated: Tensor | None = None,
    ) -> ConvOutput:
        """As :meth:`forward`, with all outputs.

        Args:
            x, neighbors, label_features, labels: as in :meth:`forward`.
            with_attention: also return the attention.
            undropped: x before dropout, to compute the attention from. The class prediction that
                is returned and trained always uses ``x``.
            isolated: [n] bool: nodes without incoming edges; their sum is 0.
        """
        x = ops.as_features(x)
        ops.checks.features(x)
        if self.add_self_loops or isinstance(neighbors, Neighbors):
            neighbors = ops.as_neighbors(neighbors, x.size(0))
        else:
            neighbors, isolated = ops.neighbors_without_loops(neighbors, x.size(0))
        plain = label_features is None and isolated is None and not with_attention
        plain = plain and (undropped is None or undropped is x)
        if plain and not torch.compiler.is_compiling():
            found = self._fused(x, neighbors)
            if found is not None:
                return found
        if self.score.others_only:
            isolated = neighbors.others == 0
        edge_bias = self._edge_bias(neighbors)
        value, class_logits = self._project(x, label_features)
        seen = class_logits
        if undropped is not None and undropped is not x and self.score.reads_states:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.score.detached):
                seen = self.predict_classes(undropped, label_features)
        if self.score.needs_labels:
            _check_labels(labels, type(self.score).__name__, x.size(0))
        form = self.score(ScoreInputs(neighbors, value, seen, labels))

        p = self.dropout if self.training else 0.0
        saved: AbstractContextManager[None] = nullcontext()
        if self.forget_projections and self.weight is not None:
            project = partial(self._project, x, label_features)
            saved = recompute_saved([value, class_logits], project)
        with saved:
            out = ops.neighbor_attention(
                neighbors, value, form, self.normalization, p, edge_bias, flat=self.concat
            )
        out = out if self.concat else out.mean(1)
        if isolated is not None:
            out = out * ~isolated.unsqueeze(1)
        if self.bias is not None:
            out = out + self.bias
        if self.res is not None:
            out = out + ops.linear(x, self.res.weight, self.res.bias)

        attention = None
        if with_attention:
            weight = ops.attention_weights(neighbors, form, self.normalization, edge_bias)
            weight = weight.to(out.dtype).expand(-1, value.size(1))
            if isolated is not None:
                weight = weight * ~isolated.index_select(0, neighbors.target).unsqueeze(-1)
            attention = Attention(neighbors.edge_index, weight)
        return ConvOutput(out, class_logits, attention)

    def _fused(self, x: Features, neighbors: Neighbors) -> ConvOutput | None:
        """The layer as one autograd node; None where the device has none for such a layer."""
        score = self.score
        if (
            not isinstance(x, Tensor)
            or self.weight is None
            or self.class_bias is not None
            or self.edge_map is not None
            or self.forget_projections
            or not (self.concat or self.heads == 1)
        ):
            return None
        class_weight = target = source = None
        scale, slope, independent_labels = 1.0, 0.0, False
        if type(score) is AdditiveScore:
            target, source, slope = score.target, score.source, score.negative_slope
        elif type(score) is ClassScore and score.attends and not score.detached:
            class_weight, scale = self._class_weight_of_x, score.factor
            independent_labels = score.independent_labels
        else:
            return None
        found = fused_layer.run(
            x,
            neighbors,
            fused_layer.Layer(self.weight, class_weight, target, source, self.bias),
            fused_layer.Settings(
                self.heads,
                scale,
                slope,
                independent_labels,
                self.normalization is Normalization.SYMMETRIC,
                self.dropout if self.training else 0.0,
            ),
        )
        if found is None:
            return None
        out = found[0]
        if self.res is not None:
            out = out + ops.linear(x, self.res.weight, self.res.bias)
        return ConvOutput(out, found[1] if class_weight is not None else None)

    def _project(self, x: Features, label_features: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(W₂ x, W₁(x ‖ z) + b₁), by a single product if that is faster."""
        if self.weight is None or self.class_weight is None:
            return self._value(x), self.predict_classes(x, label_features)
        value, logits = self._per_head(x, self.weight, self._class_weight_of_x)
        return value, self._complete(logits, label_features)

    @property
    def _class_weight_of_x(self) -> Tensor:
        """W₁'s columns for x."""
        assert self.class_weight is not None
        return (
            self.class_weight[:, : self.in_channels] if self.label_channels else self.class_weight
        )

    def predict_classes(self, x: Features, label_features: Tensor | None) -> Tensor | None:
        """p_v = W₁(x_v ‖ z_v) + b₁: [n, H, C]; None if the score does not need it."""
        if self.class_weight is None:
            return None
        if self.heads == 1 and not self.label_channels and isinstance(x, Tensor):
            bias = None if self.class_bias is None else self.class_bias.view(-1)
            return ops.linear(x, self.class_weight, bias).unsqueeze(1)
        (logits,) = self._per_head(x, self._class_weight_of_x)
        return self._complete(logits, label_features)

    def _complete(self, logits: Tensor, label_features: Tensor | None) -> Tensor:
        """Add W₁'s part for z, and b₁, to its part for x."""
        assert self.class_weight is not None
        if label_features is not None:
            expected = [logits.size(0), self.label_channels]
            if list(label_features.shape) != expected:
                raise UserError(
                    f"label_features has shape {list(label_features.shape)}: expected {expected}, "
                    "a row per node and the label_channels that the layer was made with"
                )
            of_labels = self.class_weight[:, self.in_channels :]
            logits = logits + self._per_head(label_features, of_labels)[0]
        return logits if self.class_bias is None else logits + self.class_bias

    def _value(self, x: Features) -> Tensor:
        """The values to sum over the neighbours: [n, H, D]."""
        if self.weight is not None:  # project first, and gather the narrower result
            return self._per_head(x, self.weight)[0]
        if not isinstance(x, Tensor):
            raise UserError(
                "a layer without a projection needs dense features: put an encoder first"
            )
        return x.reshape(x.size(0), self.heads, self.out_channels)

    def _per_head(self, x: Features, *weights: Tensor) -> list[Tensor]:
        """x Wᵀ as [n, H, ·] for every weight [H·, d].

        On the CPU the heads are innermost in memory, as its kernels expect. On a GPU, or for sparse
        x, one product serves all weights.
        """
        on_cpu, heads, flat = weights[0].device.type == "cpu", self.heads, list(weights)
        if on_cpu and isinstance(x, Tensor):
            return [ops.linear_by_head(x, weight, heads) for weight in weights]
        if on_cpu:
            flat = [w.view(heads, -1, w.size(1)).transpose(0, 1).flatten(0, 1) for w in weights]
        if not on_cpu and isinstance(x, Tensor) and len(weights) > 1 and _is_plain(x):
            ops.checks.linear(x, weights[0], None)
            return list(ops.joint_linear(x, weights, heads))
        if len(flat) == 1:
            products = [ops.linear(x, flat[0])]
        else:
            joint = ops.linear(x, torch.cat(flat))
            products = list(joint.split([weight.size(0) for weight in flat], dim=1))
        if on_cpu:
            inner = [out.contiguous().unflatten(1, (-1, heads)) for out in products]
            return [out.transpose(1, 2) for out in inner]
        return [out.unflatten(1, (heads, -1)) for out in products]

    def _edge_bias(self, neighbors: Neighbors) -> Tensor | None:
        """log(weight) + W_e · features of the edges: [E, H or 1]; None without either."""
        log_weight, features = neighbors.log_weight, neighbors.features
        if features is not None and self.edge_map is None:
            raise UserError(
                "edge_attr is given, but the layer has no edge_dim: make it with "
                f"edge_dim={features.size(1)}"
            )
        if self.edge_map is not None and features is None:
            raise UserError("the layer has edge_dim: pass edge_attr")
        if features is None or self.edge_map is None:
            return log_weight
        if features.size(1) != self.edge_map.in_features:
            raise UserError(
                f"edge_attr has {features.size(1)} columns, but the layer was made with "
                f"edge_dim={self.edge_map.in_features}"
            )
        mapped = ops.linear(features.to(self.edge_map.weight.dtype), self.edge_map.weight)
        return mapped if log_weight is None else log_weight + mapped

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads}, "
            f"score={type(self.score).__name__})"
        )


def _is_plain(x: Tensor) -> bool:
    """Whether operators on x run eagerly and in its dtype."""
    return not torch.compiler.is_compiling() and not torch.is_autocast_enabled(x.device.type)


def _check_labels(labels: Tensor | None, score: str, num_nodes: int) -> None:
    if labels is None:
        raise UserError(f"{score} needs the true labels: pass labels=y")
    if labels.dim() not in (1, 2) or labels.size(0) != num_nodes:
        raise UserError(
            f"labels has shape {list(labels.shape)}: expected [{num_nodes}] classes, or "
            f"[{num_nodes}, labels] of 0 and 1"
        )
