"""The one stack that every model of the library is a setting of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from torch import Tensor, nn

from deepgat import ops
from deepgat.errors import UserError
from deepgat.nn.conv import Attention, ConvOutput, NeighborAttention
from deepgat.nn.labels import LabelInput, LabelsToPrediction
from deepgat.nn.losses import LayerwiseLoss, Loss
from deepgat.nn.scores import ClassScore, ScoreFactory
from deepgat.nn.updates import Plain, Update, UpdateFactory
from deepgat.ops import Features, Neighbors, Normalization

NormFactory: TypeAlias = Callable[[int], nn.Module]
"""Output width → the normalisation of one layer."""


def no_norm(width: int) -> nn.Module:
    return nn.Identity()


@dataclass(eq=False)
class LayerOutputs:
    """What every layer of a stack computed; L layers, n nodes, C classes."""

    logits: Tensor
    """[n, C], the output: layer_logits[L]."""
    layer_logits: dict[int, Tensor]
    """{l: [n, C]}: the prediction ŷ^l before softmax, averaged over heads. l = 0 … L where layers
    predict classes (layer l+1 attends by prediction l); only L elsewhere."""
    hidden: list[Tensor]
    """h^1 … h^L, each [n, width]; h^L is the logits."""
    attention: list[Attention] = field(default_factory=list)
    """Per layer 1 … L, on request."""


class Layer(nn.Module):
    """h^l = after(σ(norm(before(conv(h^(l-1)))))); before and after are the update rule's."""

    def __init__(
        self, conv: NeighborAttention, update: Update, norm: nn.Module, activation: nn.Module
    ) -> None:
        super().__init__()
        self.conv = conv
        self.update = update
        self.norm = norm
        self.activation = activation

    def forward(
        self,
        x: Features,
        neighbors: Neighbors,
        label_features: Tensor | None,
        labels: Tensor | None,
        with_attention: bool,
    ) -> ConvOutput:
        result: ConvOutput = self.conv.run(x, neighbors, label_features, labels, with_attention)
        out = self.update.before_activation(result.out, x)
        out = self.update.after_activation(self.activation(self.norm(out)), x)
        return result._replace(out=out)


class AttentionStack(nn.Module):
    """L neighbour-attention layers, from d features to C classes.

    Hidden layers concatenate ``heads`` heads of width ``hidden``; the last averages
    ``output_heads`` heads of width C. Layers 1 … ``label_hops`` see the propagated labels z_l.

    Args:
        in_channels, num_classes: d and C.
        layers: L ≥ 1.
        hidden, heads, output_heads: D, H and the heads of the last layer.
        score: makes each layer's score; :mod:`deepgat.nn.scores`.
        normalization: of the weights, over N_v or symmetric.
        update: makes each layer's update rule; :mod:`deepgat.nn.updates`.
        norm: makes each layer's feature normalisation from its width.
        activation: σ.
        output_activation: apply σ to the last layer as well.
        label_input, label_hops: which weights see z, and in how many layers.
        first_labels: which z_1 the model is to be fed, "zero" or "neighbor-counts"; kept for
            whoever prepares ``label_features``.
        unit_features: divide every node's features by their sum before the first layer.
        dropout, attention_dropout: on each layer's input, and on the attention weights.
        bias: learn a bias per layer.
        loss: the loss this model is trained with, of :mod:`deepgat.nn.losses`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        *,
        layers: int = 2,
        hidden: int = 8,
        heads: int = 8,
        output_heads: int = 1,
        score: ScoreFactory = ClassScore,
        normalization: Normalization = Normalization.ROW,
        update: UpdateFactory = Plain,
        norm: NormFactory = no_norm,
        activation: nn.Module | None = None,
        output_activation: bool = False,
        label_input: LabelInput | None = None,
        label_hops: int = 0,
        first_labels: str = "zero",
        unit_features: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        bias: bool = True,
        loss: Loss | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.heads = heads
        self.dropout = dropout
        self.label_hops = min(label_hops, layers)
        self.first_labels = first_labels
        self.unit_features = unit_features
        self.label_input: LabelInput = LabelsToPrediction() if label_input is None else label_input
        self.loss: Loss = LayerwiseLoss(delta=0.4) if loss is None else loss
        activation = nn.ELU() if activation is None else activation

        self.layers = nn.ModuleList()
        width = in_channels
        for number in range(1, layers + 1):
            last = number == layers
            sees_labels = number <= self.label_hops
            heads_in = 1 if number == 1 else heads
            if sees_labels:
                width += self.label_input.layer_channels(heads_in, num_classes)
            conv = NeighborAttention(
                width,
                num_classes if last else hidden,
                output_heads if last else heads,
                score=score,
                num_classes=num_classes,
                label_channels=(
                    self.label_input.prediction_channels(num_classes) if sees_labels else 0
                ),
                concat=not last,
                bias=bias,
                attention_dropout=attention_dropout,
                normalization=normalization,
            )
            out_width = num_classes if last else hidden * heads
            self.layers.append(
                Layer(
                    conv,
                    update(width, out_width),
                    norm(out_width),
                    nn.Identity() if last and not output_activation else activation,
                )
            )
            width = out_width

    @property
    def needs_labels(self) -> bool:
        """Whether some layer is an oracle and must be shown every true label."""
        return any(layer.conv.score.needs_labels for layer in self._typed_layers())

    def forward(
        self,
        x: Features,
        edge_index: Tensor | Neighbors,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Class logits [n, C].

        Args:
            x: [n, d] node features, dense or sparse.
            edge_index: [2, ·] as in PyG, or :class:`~deepgat.ops.Neighbors` built once.
            label_features: [n, ≥ label_hops, C], z_1, z_2, … of
                :class:`~deepgat.data.PropagateLabels`; zeros when left out.
            labels: the true labels, for the oracle alone.
        """
        return self.run(x, edge_index, label_features, labels).logits

    def run(
        self,
        x: Features,
        edge_index: Tensor | Neighbors,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
        with_attention: bool = False,
    ) -> LayerOutputs:
        """As :meth:`forward`, returning what every layer computed."""
        h: Features = ops.as_features(x)
        if h.size(1) != self.in_channels:
            raise UserError(
                f"x has {h.size(1)} columns but the model was made for {self.in_channels} features"
            )
        if self.unit_features:
            assert not isinstance(h, ops.Columns)
            h = ops.unit_rows(h)
        neighbors = ops.as_neighbors(edge_index, h.size(0))
        layer_logits: dict[int, Tensor] = {}
        hidden: list[Tensor] = []
        attention: list[Attention] = []
        for index, layer in enumerate(self._typed_layers()):
            z = None
            if index < self.label_hops:
                z = self._labels_of(index, label_features, h, layer)
                h, z = self.label_input.join(h, z, 1 if index == 0 else self.heads)
            h = ops.dropout(h, self.dropout, self.training)
            result: ConvOutput = layer(h, neighbors, z, labels, with_attention)
            if result.class_logits is not None:
                layer_logits[index] = result.class_logits.mean(1)
            if result.attention is not None:
                attention.append(result.attention)
            h = result.out
            hidden.append(result.out)
        layer_logits[len(self.layers)] = hidden[-1]
        return LayerOutputs(hidden[-1], layer_logits, hidden, attention)

    def _typed_layers(self) -> Iterator[Layer]:
        return cast(Iterator[Layer], iter(self.layers))

    def _labels_of(
        self, index: int, label_features: Tensor | None, h: Features, layer: Layer
    ) -> Tensor:
        weight = layer.conv.weight
        if label_features is None:
            return weight.new_zeros(h.size(0), self.num_classes)
        if label_features.dim() != 3 or label_features.size(1) < self.label_hops:
            raise UserError(
                f"label_features has shape {list(label_features.shape)}: expected "
                f"[{h.size(0)}, at least {self.label_hops}, {self.num_classes}] from "
                f"PropagateLabels(hops={self.label_hops})"
            )
        return label_features[:, index].to(weight.dtype)
