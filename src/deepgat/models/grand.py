"""GRAND: random propagation of the features, and predictions that agree over several draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F

from deepgat import ops
from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import make_conv
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Computed, Context, LayerOutputs
from deepgat.nn.attention import Reach
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.losses import ViewsLoss
from deepgat.nn.norms import NORMS, BatchNorm, make_norm, normalized
from deepgat.nn.remembered import remembered
from deepgat.ops import Features, SparseMatrix


@dataclass(frozen=True)
class GRANDConfig(Config):
    """Settings of :class:`GRAND`."""

    num_layers: int = layers(8, "K, number of hops")
    hidden_channels: int = setting(32, "width of the predictor's hidden layer", least=1)
    dropout: float = share(0.5, "share of the hidden layer dropped")
    input_dropout: float = share(0.5, "features dropped, after the hops unless project_first")
    node_dropout: float = share(0.5, "δ, share of the nodes whose features are dropped")
    views: int = setting(4, "S, random draws per step of training", least=1, most=1000)
    consistency: float = setting(1.0, "λ, weight of the draws' disagreement in the loss", least=0)
    temperature: float = setting(0.5, "T, to which the draws' mean is sharpened", above=0)
    project_first: bool = setting(
        False, "multiply by W before the hops: they are as narrow as the hidden layer"
    )
    norm: str = setting("none", "normalisation of h^K and of the hidden layer", NORMS)
    norm_eps: float = setting(
        1e-5, "ε, added to the variance of h^K by norm=batch; a large one leaves features as "
        "uneven as they are", above=0,
    )  # fmt: skip
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    unit_features: bool = setting(True, "divide every node's features by their sum")


class GRAND(Network):
    r"""GRAND: an MLP on the mean of the features 0 to K hops away, of randomly chosen nodes.

    .. math::
        h^0 = \frac{1}{K+1} \mathrm{diag}(z) X, \quad
        z_v \sim \frac{\mathrm{Bernoulli}(1-\delta)}{1-\delta}, \qquad
        h^k = P h^{k-1} + h^0, \qquad
        \hat y = \sigma(h^K W + b) W' + b'

    with P_vu = 1/√(\|N_v\| \|N_u\|), so that h^K is the mean of P^k diag(z) X over k = 0 … K; σ is
    ReLU. A hop is a layer without weights. A step of training draws z and the dropout S times; with
    p^(s) = softmax(ŷ^(s)) and p̄ their mean, sharpened to p̄'_c = p̄_c^(1/T) / Σ_d p̄_d^(1/T) without
    gradient, its loss is

    .. math::
        \frac{1}{S} \sum_s \Big( \mathrm{CE}(\hat y^{(s)}) +
        \lambda \, \frac{1}{n} \sum_v \big\| p^{(s)}_v - \bar p'_v \big\|^2 \Big)

    Feng et al., *Graph Random Neural Networks for Semi-Supervised Learning on Graphs*, NeurIPS
    2020. With one draw, δ = 0 and λ = 0 it is a multilayer perceptron on S²GC's features (Zhu and
    Koniusz, ICLR 2021), which training on a CPU computes once.

    With ``project_first``, h^0 = diag(z) X W / (K + 1) and ŷ = σ(h^K + b) W' + b': the same without
    a norm and where nothing is dropped, but dropped features are missing from all averages. Many
    sparse features need little memory and time that way.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`GRANDConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels]; h^k
    [n, in_channels], dense, or [n, hidden_channels] with ``project_first``.
    """

    Config = GRANDConfig
    config: GRANDConfig

    def make_modules(self) -> None:
        self.loss = ViewsLoss(self.config.consistency, self.config.temperature)
        self.lin1 = nn.Linear(self.in_channels, self.hidden_channels)
        self.lin2 = nn.Linear(self.hidden_channels, self.out_channels)
        self.input_norm = make_norm(self.config.norm, self.width)
        if self.config.norm == "batch":
            self.input_norm = BatchNorm(self.width, self.config.norm_eps, from_first=True)
        self.hidden_norm = make_norm(self.config.norm, self.hidden_channels)
        self.hop = make_conv(self, "gcn", self.width, self.width, bias=False, project=False)
        self._draw_weights()

    def _draw_weights(self) -> None:
        """As the authors do: uniform between ±1/√(outputs)."""
        for module in (self.lin1, self.lin2):
            bound = module.out_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound)
            nn.init.uniform_(module.bias, -bound, bound)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._draw_weights()

    @property
    def width(self) -> int:
        return self.hidden_channels if self.config.project_first else self.in_channels

    @property
    def _drops_nodes(self) -> bool:
        return self.training and self.config.node_dropout > 0

    def run(self, *args: Any, **known: Any) -> LayerOutputs:
        """As :meth:`Network.run`; in training ``layer_logits`` has a prediction of every draw.

        Draw s has the number K − s + 1; everything else is the first draw's.
        """
        outputs = super().run(*args, **known)
        if self.training:
            for number in range(1, self.config.views):
                again = super().run(*args, **known)
                outputs.layer_logits[self.num_layers - number] = again.logits
        return outputs

    def features(self, x: Features) -> Features:
        """The features over K + 1, dense as averages are; with ``project_first`` as they are."""
        given = ops.as_features(x)
        assert not isinstance(given, ops.Columns)

        def read() -> Features:
            found = super(GRAND, self).features(given)
            if self.config.project_first:
                return found
            found = found.to_dense() if isinstance(found, SparseMatrix) else found
            assert isinstance(found, Tensor)
            return found / (self.num_layers + 1)

        return cast(Features, remembered(self, "features", read, given))

    def encode(self, x: Features) -> Tensor:
        if self.config.project_first:
            dropped = self.dropped(x, self.config.input_dropout)
            x = ops.linear(dropped, self.lin1.weight) / (self.num_layers + 1)
        assert isinstance(x, Tensor)
        if not self._drops_nodes:
            return x
        kept: Tensor = ops.dropout(x.new_ones(x.size(0), 1), self.config.node_dropout, True)
        return x * kept

    def reach(self, number: int) -> Reach:
        return self.hop.reach

    def run_layers(self, numbers: range, h: Features, context: Context) -> Computed:
        run = super().run_layers
        every = range(1, self.num_layers + 1)
        fixed = not self._drops_nodes and self.hop.edge_map is None
        fixed &= not self.config.project_first
        if not fixed or context.with_attention or numbers != every:
            return run(numbers, h, context)
        assert isinstance(h, Tensor)
        return remembered(self, "hops", lambda: run(every, h, context), h, context.neighbors)

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        assert context.initial is not None
        result = self.hop.run(h, context.neighbors, with_attention=context.with_attention)
        return result._replace(out=result.out + context.initial)

    def layer_bytes(self, num_nodes: int) -> tuple[float, float]:
        """As :meth:`Network.layer_bytes`: of a hop its outputs, and the predictor's share."""
        first, views = self.config.project_first, self.config.views
        kept = 4.0 * num_nodes * self.width * (views if first else 1)  # else all draws share it
        hidden = 0 if first else 2 * self.hidden_channels
        predictor = 4.0 * num_nodes * views * (4 * self.width + hidden)
        return kept + predictor / self.num_layers, kept

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        if self.config.project_first:
            h = F.relu(normalized(self.input_norm, hidden[-1]) + self.lin1.bias)
        else:
            x = self.dropped(normalized(self.input_norm, hidden[-1]), self.config.input_dropout)
            h = F.relu(linear(self.lin1, x))
        return linear(self.lin2, self.dropped(normalized(self.hidden_norm, h)))
