"""The base class of all systems: the loop over layers, with checkpointing and early exit.

A system is a subclass that says four things: :meth:`Network.make_modules`, its weights;
:meth:`Network.encode`, h⁰ from the features; :meth:`Network.layer`, h^l from h^(l-1); and
:meth:`Network.readout`, the class logits. Recomputed layers, early exit, edge weights and chunked
inference then work for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from deepgat import ops
from deepgat.errors import UserError, unknown_name
from deepgat.models.config import Config
from deepgat.models.outputs import Computed, Context, LayerOutputs, Until
from deepgat.nn.attention import NeighborAttention, Reach
from deepgat.nn.checkpoint import recomputed
from deepgat.nn.conv_output import Attention, ConvOutput
from deepgat.nn.drop_edge import DropEdge, EdgeSampler, all_edges
from deepgat.nn.losses import Loss, OutputLoss
from deepgat.nn.norms import PairNorm
from deepgat.nn.residual import IdentityMap
from deepgat.nn.scores import NeighborMeanScore, UniformScore
from deepgat.ops import Features, Neighbors


class Network(nn.Module):
    """A network of L layers from d features to C classes.

    Args:
        in_channels: d.
        hidden_channels: width of a hidden layer, or of each of its heads.
        num_layers: L.
        out_channels: C, classes or independent labels.
        multi_label: several labels per node instead of one class.
        edge_dim: width of ``edge_attr``, where edges have features.
        settings: the other fields of the system's configuration.
    """

    Config: ClassVar[type[Config]]
    needs_labels: ClassVar[bool] = False
    """Whether the network must be shown every true label: the oracle."""
    reads_every_layer: ClassVar[bool] = False
    """Whether the readout looks at layers before the last."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        *,
        multi_label: bool = False,
        edge_dim: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        for name in settings:
            if name not in self.Config.kinds():
                raise unknown_name(f"setting of {type(self).__name__}", name, self.Config.kinds())
        sizes = {"hidden_channels": hidden_channels, "num_layers": num_layers}
        self.config: Any = self.Config(**sizes, **settings)
        self.in_channels = in_channels
        self.hidden_channels = hidden_channels
        self.out_channels = out_channels
        self.num_layers = num_layers
        self.multi_label = multi_label
        self.edge_dim = edge_dim
        self.dropout: float = getattr(self.config, "dropout", 0.0)
        self.has_encoder = type(self).encode is not Network.encode
        self.loss: Loss = OutputLoss()
        rate = getattr(self.config, "drop_edge", 0.0)
        self.edge_sampler: EdgeSampler = DropEdge(rate) if rate else all_edges
        self.label_hops = 0
        self.first_labels = "zero"
        self.make_modules()

    def make_modules(self) -> None:
        """Make the modules of the system. Sizes, ``config`` and ``loss`` are set before."""

    @property
    def width(self) -> int:
        """Channels of a hidden layer."""
        return int(self.config.hidden_channels * getattr(self.config, "heads", 1))

    @property
    def reads_node_numbers(self) -> bool:
        """Whether a node's number matters, so that every step must see the whole graph."""
        return False

    @property
    def step(self) -> float:
        """How far a layer goes from its input to its output; 1: all the way."""
        return 1.0

    @property
    def graph_wide(self) -> str:
        """What a prediction needs of the whole graph, in words; empty if every layer is local."""
        if any(getattr(module, "needs_labels", False) for module in self.modules()):
            return "the oracle reads every label"
        if any(isinstance(module, PairNorm) for module in self.modules()):
            return "PairNorm subtracts the mean over all nodes"
        return ""

    @property
    def fixed_attention(self) -> bool:
        """Whether the weights of neighbours follow from the graph alone: none is learnt."""
        convs = [m for m in self.modules() if isinstance(m, NeighborAttention)]
        uniform = (UniformScore, NeighborMeanScore)
        return all(isinstance(m.score, uniform) and m.edge_map is None for m in convs)

    def reach(self, number: int) -> Reach:
        """How far layer ``number``, from 1, looks; here as far as its convolution."""
        return cast(NeighborAttention, cast(nn.ModuleList, self.convs)[number - 1]).reach

    def encode(self, x: Features) -> Features:
        """h⁰ from the features [n, d]; here these."""
        return x

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        """h^l, with the layer's class prediction and attention where it has them; l from 1."""
        raise UserError(f"{type(self).__name__} does not say what a layer computes")

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        """The class logits [n, C] from h^1 … h^L and h^0; here the last layer's output."""
        return hidden[-1]

    def forward(
        self,
        x: Features,
        edge_index: Tensor | Neighbors,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Class logits [n, C].

        Args:
            x: [n, d] node features, dense or sparse.
            edge_index: [2, ·] as in PyG, or :class:`~deepgat.ops.Neighbors` built once.
            edge_weight: [number of edges] ≥ 0, multiplies e^score.
            edge_attr: [number of edges, edge_dim].
            label_features: [n, ≥ label_hops, C], z_1, z_2, … of
                :class:`~deepgat.data.PropagateLabels`; zeros when left out.
            labels: the true labels, for the oracle alone.
        """
        x = ops.as_features(x)
        ops.checks.features(x)
        neighbors = ops.weighted_neighbors(edge_index, x.size(0), edge_weight, edge_attr)
        return self.run(x, neighbors, label_features, labels).logits

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

        ``segment`` > 0 forgets what happens inside every so many layers and recomputes it in the
        backward pass; :mod:`deepgat.nn.checkpoint`.

        ``until`` sees every prediction that layers make and may end the run: the last one it saw
        is then the output. Prediction l is made inside layer l + 1, so stopping there costs one
        more layer.
        """
        x = self.features(x)
        context = Context(
            ops.as_neighbors(edge_index, x.size(0)),
            label_features,
            labels,
            with_attention=with_attention,
        )
        h = self.encode(x)
        if self.has_encoder:
            assert isinstance(h, Tensor)
            context.initial = h
        if self.reads_every_layer:
            segment = min(segment, 1)
        length = 1 if until is not None else segment or self.num_layers
        layer_logits: dict[int, Tensor] = {}
        hidden: list[Tensor] = []
        attention: list[Attention] = []
        for first in range(1, self.num_layers + 1, length):
            numbers = range(first, min(first + length, self.num_layers + 1))
            run = partial(recomputed, self._last_state, self) if segment else self.run_layers
            states, predictions, weights = run(numbers, h, context)
            h = states[-1]
            hidden += states
            layer_logits |= predictions
            attention += weights
            if until is not None and any(until(*item) for item in predictions.items()):
                last = layer_logits[max(layer_logits)]
                return LayerOutputs(last, layer_logits, hidden, attention, context.initial)
        logits = self.readout(hidden, context.initial)
        layer_logits[self.num_layers] = logits
        return LayerOutputs(
            logits, layer_logits, hidden, attention, context.initial, max(segment, 1)
        )

    def run_layers(self, numbers: range, h: Features, context: Context) -> Computed:
        """Some layers, one after the other."""
        states: list[Tensor] = []
        predictions: dict[int, Tensor] = {}
        attention: list[Attention] = []
        for number in numbers:
            result = self.layer(number, h, context)
            if result.class_logits is not None:
                logits = result.class_logits
                predictions[number - 1] = (
                    logits.squeeze(1) if logits.size(1) == 1 else logits.mean(1)
                )
            if result.attention is not None:
                attention.append(result.attention)
            h = result.out
            states.append(result.out)
        return Computed(states, predictions, attention)

    def _last_state(self, numbers: range, h: Features, context: Context) -> Computed:
        """The same, with the last state alone: the others are not held on to."""
        computed = self.run_layers(numbers, h, context)
        return computed._replace(states=computed.states[-1:])

    def features(self, x: Features) -> Features:
        """The features as the network reads them."""
        x = ops.as_features(x)
        ops.checks.features(x)
        if x.size(1) != self.in_channels:
            raise UserError(
                f"x has {x.size(1)} columns but the model was made for {self.in_channels} features"
            )
        assert not isinstance(x, ops.Columns)
        return ops.unit_rows(x) if getattr(self.config, "unit_features", False) else x

    def convolve(
        self,
        number: int,
        x: Features,
        context: Context,
        label_features: Tensor | None = None,
        undropped: Features | None = None,
    ) -> ConvOutput:
        """The convolution of layer ``number``, from 1, on x; other arguments as in its ``run``."""
        conv = cast(NeighborAttention, cast(nn.ModuleList, self.convs)[number - 1])
        return conv.run(
            x,
            context.neighbors,
            label_features,
            context.labels,
            context.with_attention,
            undropped=undropped,
        )

    def dropped(self, h: Features, rate: float | None = None) -> Features:
        """h after dropout."""
        return ops.dropout(h, self.dropout if rate is None else rate, self.training)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for module in self.children():
            _reset(module)

    def convolution_weights(self) -> list[nn.Parameter]:
        """What the layers multiply by: W₂, W^l of an identity map, W' of a skip, and biases.

        The encoder, the readout, class heads, norms and scores are the rest. GCNII decays the two
        differently.
        """
        found: dict[int, nn.Parameter] = {}
        for module in self.modules():
            if isinstance(module, NeighborAttention):
                own = (module.weight, module.bias)
                found |= {id(p): p for p in own if p is not None}
                if module.res is not None:
                    found |= {id(p): p for p in module.res.parameters()}
            elif isinstance(module, IdentityMap):
                found[id(module.weight)] = module.weight
        return list(found.values())

    def class_head_weights(self) -> list[nn.Parameter]:
        """W₁ and b₁ of every layer that predicts classes."""
        heads = (m for m in self.modules() if isinstance(m, NeighborAttention))
        found = {id(p): p for m in heads for p in (m.class_weight, m.class_bias) if p is not None}
        return list(found.values())

    def forget_projections(self, forget: bool) -> None:
        """Whether layers recompute their projections in the backward pass."""
        for module in self.modules():
            if isinstance(module, NeighborAttention):
                module.forget_projections = forget

    def layer_bytes(self, num_nodes: int) -> tuple[float, float]:
        """(what the backward pass of one layer needs, the input of one layer): an estimate.

        Per node and layer: the projected and the summed values, the layer's input and its dropped
        copy, what normalisation and activation keep, and the class logits of every head.
        """
        heads = getattr(self.config, "heads", 1)
        wide = 5 + (getattr(self.config, "norm", "none") != "none") + (self.step < 1)
        numbers = wide * self.width + 3 * heads * self.out_channels
        return 4.0 * num_nodes * numbers, 4.0 * num_nodes * self.width

    def labels_of(self, number: int, h: Features, context: Context) -> Tensor:
        """z of layer ``number``, from 1: [n, C]; zeros where none are given."""
        like = next(self.parameters())
        given = context.label_features
        if given is None:
            return like.new_zeros(h.size(0), self.out_channels)
        rows, classes = h.size(0), self.out_channels
        fits = given.dim() == 3 and given.size(1) >= self.label_hops
        if not fits or (given.size(0), given.size(2)) != (rows, classes):
            raise UserError(
                f"label_features has shape {list(given.shape)}: expected "
                f"[{rows}, at least {self.label_hops}, {classes}] from "
                f"PropagateLabels(hops={self.label_hops})"
            )
        return given[:, number - 1].to(like.dtype)


def _reset(module: nn.Module) -> None:
    """``reset_parameters`` of the outermost modules that have one."""
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
        return
    for child in module.children():
        _reset(child)


def linear(layer: nn.Module, x: Features) -> Tensor:
    """``layer(x)`` of a linear layer, for dense or sparse x."""
    return ops.linear(x, cast(Tensor, layer.weight), cast(Tensor, layer.bias))
