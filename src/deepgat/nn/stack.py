"""The one stack that every model of the library is a setting of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from deepgat import ops
from deepgat.errors import UserError
from deepgat.nn.attention import Attention, ClassHead, ConvOutput, NeighborAttention
from deepgat.nn.checkpoint import recomputed
from deepgat.nn.drop_edge import EdgeSampler, all_edges
from deepgat.nn.ends import (
    EncoderFactory,
    EndShape,
    LinearReadout,
    Readout,
    ReadoutFactory,
    last_layer,
)
from deepgat.nn.labels import LabelInput, LabelsToPrediction
from deepgat.nn.layers import Gate, Layer
from deepgat.nn.losses import LayerwiseLoss, Loss
from deepgat.nn.outputs import Computed, Given, LayerOutputs, Until
from deepgat.nn.scores import ClassScore, Score, ScoreFactory
from deepgat.nn.updates import LayerInputs, Plain, Update, UpdateFactory
from deepgat.ops import Features, Neighbors, Normalization

NormFactory: TypeAlias = Callable[[int], nn.Module]
"""Output width → the normalisation of one layer."""


def no_norm(width: int) -> nn.Module:
    return nn.Identity()


class AttentionStack(nn.Module):
    """From d features to C classes: an encoder, L neighbour-attention layers, a readout.

    Without an encoder the first layer reads the features; without a readout the last one goes to
    the classes, averaging ``output_heads`` heads of width C. All other layers concatenate
    ``heads`` heads of width ``hidden``. Layers 1 … ``label_hops`` see the propagated labels z_l.

    Args:
        in_channels, num_classes: d and C.
        layers: L ≥ 1.
        hidden, heads, output_heads: D, H and the heads of the last layer.
        score: makes each layer's score; :mod:`deepgat.nn.scores`.
        normalization: of the weights, over N_v or symmetric.
        project: multiply by W₂ in each layer; without it layers pass on h itself, and their width
            is the encoder's.
        update: makes each layer's update rule; :mod:`deepgat.nn.updates`.
        gate: puts a gate around each layer; :class:`~deepgat.nn.layers.GatedLayer`.
        shared_layers: one set of weights for all layers.
        norm: makes each layer's feature normalisation from its width.
        output_norm: normalise the output of a last layer that goes to the classes as well.
        activation: σ.
        output_activation: apply σ to a last layer that goes to the classes as well.
        encoder, readout: what stands before and after the layers; :mod:`deepgat.nn.ends`.
        neighborhood: which of the graph's edges the model has, in training and evaluation.
        edge_sampler: which of them one training step has; called by the training loop.
        label_input, label_hops: which weights see z, and in how many layers.
        first_labels: which z_1 the model is to be fed, "zero" or "neighbor-counts"; kept for
            whoever prepares ``label_features``.
        shared_class_head: the readout's linear map predicts the classes of every layer, in place
            of a class head per layer.
        class_bias: learn a bias in the class head of each layer.
        clean_attention: compare class predictions made without dropout.
        step_depth: d, the layers up to which h^l = F_l(h^(l-1)); of more, each goes a part of the
            way, h^l = h^(l-1) + (d/L) (F_l(h^(l-1)) − h^(l-1)), and has the β, τ and the like of
            layer ⌈l d/L⌉: L layers are smaller steps on the way that d layers go. 0: any number.
            For layers of one width, between an encoder and a readout.
        shared_steps: layers with the same ⌈l d/L⌉ share their weights, which are those of d layers.
        unit_features: divide every node's features by their sum before the first layer.
        feature_norm: applied to the features, made dense, before anything else.
        dropout, attention_dropout: on each layer's input, and on the attention weights.
        input_dropout, output_dropout: on the input of the encoder and of the readout; as
            ``dropout`` when left out.
        bias: learn a bias per layer.
        loss: the loss this model is trained with, of :mod:`deepgat.nn.losses`.
        edge_channels: width of the edges' features, which the neighbour lists then hold.
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
        project: bool = True,
        update: UpdateFactory = Plain,
        gate: Gate | None = None,
        shared_layers: bool = False,
        norm: NormFactory = no_norm,
        output_norm: bool = True,
        activation: nn.Module | None = None,
        output_activation: bool = False,
        encoder: EncoderFactory | None = None,
        readout: ReadoutFactory = last_layer,
        neighborhood: EdgeSampler = all_edges,
        edge_sampler: EdgeSampler = all_edges,
        label_input: LabelInput | None = None,
        label_hops: int = 0,
        first_labels: str = "zero",
        shared_class_head: bool = False,
        class_bias: bool = False,
        clean_attention: bool = False,
        step_depth: int = 0,
        shared_steps: bool = False,
        unit_features: bool = False,
        feature_norm: nn.Module | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        input_dropout: float | None = None,
        output_dropout: float | None = None,
        bias: bool = True,
        loss: Loss | None = None,
        edge_channels: int = 0,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.num_layers = layers
        self.heads = heads
        self.dropout = dropout
        self.label_hops = min(label_hops, layers)
        self.first_labels = first_labels
        self.unit_features = unit_features
        self.feature_norm = feature_norm
        self.neighborhood = neighborhood
        self.edge_sampler = edge_sampler
        self.shared_layers = shared_layers
        self.shared_steps = shared_steps
        self.clean_attention = clean_attention
        self.step_depth = step_depth if 0 < step_depth < layers else layers
        self.label_input: LabelInput = LabelsToPrediction() if label_input is None else label_input
        self.loss: Loss = LayerwiseLoss(delta=0.4) if loss is None else loss
        activation = nn.ELU() if activation is None else activation

        shape = EndShape(
            in_channels,
            hidden * heads,
            num_classes,
            layers,
            dropout if input_dropout is None else input_dropout,
        )
        self.encoder = None if encoder is None else encoder(shape, activation)
        width = in_channels if self.encoder is None else self.encoder.out_channels
        body_width = self.body_width = hidden * heads if project else width
        share = dropout if output_dropout is None else output_dropout
        self.readout = readout(replace(shape, width=body_width, dropout=share))
        self.class_head: ClassHead | None = None
        if shared_class_head:
            if not isinstance(self.readout, LinearReadout):
                raise UserError("a class head for all layers is the readout's: set readout=linear")
            self.class_head = self.readout.predict
        _check_widths(self.readout, project, body_width, num_classes)
        if 0 < step_depth < layers and (
            width != body_width or (project and not self.readout.takes_width)
        ):
            raise UserError(
                f"step_depth is {step_depth}, of {layers} layers: steps need one width from end to "
                "end; set encoder=linear and readout=linear, or step_depth=0"
            )
        if shared_layers and (width != body_width or (project and not self.readout.takes_width)):
            raise UserError(
                "layers that share their weights need one width from end to end: "
                "set encoder=linear and readout=linear"
            )

        shared = shared_layers or (shared_steps and self.step_depth < layers)
        if shared and self.label_hops and self.label_input.layer_channels(heads, num_classes):
            raise UserError(
                "layers that share their weights have inputs of one width, and some of them would "
                "see labels in theirs: set label_hops=0, or label_input=prediction"
            )

        def make_layer(number: int, in_width: int) -> Layer:
            to_classes = number == layers and project and not self.readout.takes_width
            sees_labels = number <= self.label_hops
            out_width = num_classes if to_classes else body_width
            conv = NeighborAttention(
                in_width,
                out_width if to_classes else _divided(out_width, heads),
                output_heads if to_classes else heads,
                score=score,
                num_classes=num_classes,
                label_channels=(
                    self.label_input.prediction_channels(num_classes) if sees_labels else 0
                ),
                concat=not to_classes,
                bias=bias,
                attention_dropout=attention_dropout,
                normalization=normalization,
                project=project,
                own_class_head=not shared_class_head,
                class_bias=class_bias,
                edge_channels=edge_channels,
            )
            return Layer(
                conv,
                update(in_width, out_width),
                norm(out_width) if output_norm or not to_classes else nn.Identity(),
                nn.Identity() if to_classes and not output_activation else activation,
            )

        self.layers = nn.ModuleList()
        sets = 1 if shared_layers else self.step_depth if shared_steps else layers
        for number in range(1, sets + 1):
            if number <= self.label_hops:
                width += self.label_input.layer_channels(self._heads_into(number), num_classes)
            make = partial(make_layer, number, width)
            self.layers.append(make() if gate is None else gate(make))
            width = body_width

    @property
    def needs_labels(self) -> bool:
        """Whether some layer is an oracle and must be shown every true label."""
        return any(isinstance(m, Score) and m.needs_labels for m in self.layers.modules())

    @property
    def step(self) -> float:
        """How far a layer goes from its input to its output, 1: all the way."""
        return self.step_depth / self.num_layers

    @property
    def gradient_share(self) -> float:
        """Of a gradient with whole steps, what steps leave of that of a layer's weights: as much
        of it as they go of the way; all where layers share their weights, since theirs add up (to
        all on average, where L is no multiple of d)."""
        return 1.0 if self.shared_layers or self.shared_steps else self.step

    def place(self, number: int) -> int:
        """⌈l d/L⌉: which of d layers' places layer l is in; l itself where steps are whole."""
        return -(-number * self.step_depth // self.num_layers)

    def _layer(self, number: int) -> nn.Module:
        """Layer l; where layers share their weights, also others."""
        if self.shared_layers:
            return self.layers[0]
        return self.layers[(self.place(number) if self.shared_steps else number) - 1]

    def convolution_weights(self) -> list[nn.Parameter]:
        """What the layers multiply by: W₂, W^l of an identity map, W' of a skip, and biases.

        The encoder, the readout, class heads, norms and scores are the rest. GCNII decays the two
        differently.
        """
        found: dict[int, nn.Parameter] = {}
        for module in self.layers.modules():
            if isinstance(module, NeighborAttention):
                found |= {id(p): p for p in (module.weight, module.bias) if p is not None}
            elif isinstance(module, Update):
                found |= {id(p): p for p in module.parameters()}
        return list(found.values())

    def class_head_weights(self) -> list[nn.Parameter]:
        """W₁ and b₁ of every layer that has a class head of its own."""
        found: dict[int, nn.Parameter] = {}
        for module in self.layers.modules():
            if isinstance(module, NeighborAttention):
                own = (module.class_weight, module.class_bias)
                found |= {id(p): p for p in own if p is not None}
        return list(found.values())

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
        segment: int = 0,
        until: Until | None = None,
    ) -> LayerOutputs:
        """As :meth:`forward`, returning what every layer computed.

        ``segment`` > 0 forgets what happens inside every so many layers and computes it again
        in the backward pass; :mod:`deepgat.nn.checkpoint`.

        ``until`` is shown every prediction that layers make and may end the run: the last one it
        saw is the output then. Prediction l is made in layer l + 1, the last one that is computed.
        """
        h: Features = self.features(x)
        neighbors = self.neighborhood(ops.as_neighbors(edge_index, h.size(0)))
        given = Given(neighbors, label_features, labels, with_attention=with_attention)
        if self.encoder is not None:
            h = given.initial = self.encoder(h)
        if self.readout.looks_back:
            segment = min(segment, 1)
        length = 1 if until is not None else segment or self.num_layers
        layer_logits: dict[int, Tensor] = {}
        hidden: list[Tensor] = []
        attention: list[Attention] = []
        for first in range(1, self.num_layers + 1, length):
            numbers = range(first, min(first + length, self.num_layers + 1))
            run = partial(recomputed, self._last_layer, self) if segment else self.run_layers
            states, predictions, weights = run(numbers, h, given)
            h = states[-1]
            hidden += states
            layer_logits |= predictions
            attention += weights
            if until is not None and any(until(*item) for item in predictions.items()):
                last = layer_logits[max(layer_logits)]
                return LayerOutputs(last, layer_logits, hidden, attention, given.initial)
        logits = self.readout(hidden, given.initial)
        layer_logits[self.num_layers] = logits
        return LayerOutputs(logits, layer_logits, hidden, attention, given.initial, max(segment, 1))

    def run_layers(self, numbers: range, h: Features, given: Given) -> Computed:
        """Some layers, one after the other."""
        states, predictions, attention = [], {}, []
        for number in numbers:
            layer = self._layer(number)
            z, before = None, h
            if number <= self.label_hops:
                z = self._labels_of(number - 1, given.label_features, h)
                h, z = self.label_input.join(h, z, self._heads_into(number))
            inputs = LayerInputs(
                x=ops.dropout(h, self.dropout, self.training),
                neighbors=given.neighbors,
                state=h,
                initial=given.initial,
                label_features=z,
                labels=given.labels,
                number=self.place(number),
                class_head=self.class_head,
                clean_attention=self.clean_attention,
            )
            result: ConvOutput = layer(inputs, given.with_attention)
            if result.class_logits is not None:
                predictions[number - 1] = result.class_logits.mean(1)
            if result.attention is not None:
                attention.append(result.attention)
            h = self._after_step(before, result.out)
            states.append(h)
        return Computed(states, predictions, attention)

    def _after_step(self, h: Features, out: Tensor) -> Tensor:
        """h + step · (out − h)."""
        if self.step == 1 or not isinstance(h, Tensor):
            return out
        dtype = torch.promote_types(out.dtype, torch.float32)  # bf16 would round small steps away
        return torch.lerp(h.to(dtype), out.to(dtype), self.step)

    def _last_layer(self, numbers: range, h: Features, given: Given) -> Computed:
        """The same, with the last state alone: the others are not held on to."""
        computed = self.run_layers(numbers, h, given)
        return computed._replace(states=computed.states[-1:])

    def forget_projections(self, forget: bool) -> None:
        """Whether layers compute their projections again in the backward pass."""
        for module in self.layers.modules():
            if isinstance(module, NeighborAttention):
                module.forget_projections = forget

    def layer_bytes(self, num_nodes: int) -> tuple[float, float]:
        """(what the backward pass of one layer needs, the input of one layer): an estimate.

        Per node and layer: the projected and the summed values, the layer's input and its dropped
        copy, what normalisation and activation keep, and the class logits of every head.
        """
        widest = self.body_width
        numbers = 6 * widest + 3 * self.heads * self.num_classes
        return 4.0 * num_nodes * numbers, 4.0 * num_nodes * widest

    def features(self, x: Features) -> Features:
        """The features as the model reads them."""
        x = ops.as_features(x)
        if x.size(1) != self.in_channels:
            raise UserError(
                f"x has {x.size(1)} columns but the model was made for {self.in_channels} features"
            )
        assert not isinstance(x, ops.Columns)
        if self.unit_features:
            x = ops.unit_rows(x)
        if self.feature_norm is not None:
            x = self.feature_norm(x if isinstance(x, Tensor) else x.to_dense())
        return x

    def _heads_into(self, number: int) -> int:
        """Heads side by side in the input of a layer; the features themselves have none."""
        return 1 if number == 1 and self.encoder is None else self.heads

    def _labels_of(self, index: int, label_features: Tensor | None, h: Features) -> Tensor:
        dtype = next(self.parameters()).dtype
        if label_features is None:
            return next(self.parameters()).new_zeros(h.size(0), self.num_classes)
        if label_features.dim() != 3 or label_features.size(1) < self.label_hops:
            raise UserError(
                f"label_features has shape {list(label_features.shape)}: expected "
                f"[{h.size(0)}, at least {self.label_hops}, {self.num_classes}] from "
                f"PropagateLabels(hops={self.label_hops})"
            )
        return label_features[:, index].to(dtype)


def _divided(width: int, heads: int) -> int:
    """Channels per head."""
    if width % heads:
        raise UserError(f"layers of width {width} do not divide into {heads} heads: set heads=1")
    return width // heads


def _check_widths(readout: Readout, project: bool, width: int, num_classes: int) -> None:
    """Refuse a readout that would take hidden channels for classes."""
    if readout.takes_width or (project and not readout.takes_every_layer):
        return
    if project or width != num_classes:
        raise UserError(
            f"{type(readout).__name__} takes the layers' {width} channels for the {num_classes} "
            "classes: set encoder=classes and projection=no, or readout=linear"
        )
