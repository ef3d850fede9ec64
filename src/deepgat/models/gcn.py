"""Graph convolutional networks (GCN); PairNorm, DropEdge and residual connections on request."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.network import Network
from deepgat.models.outputs import Context
from deepgat.nn.attention import NeighborAttention
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.norms import NORMS, make_norm, normalized
from deepgat.nn.scores import UniformScore
from deepgat.ops import Columns, Features


@dataclass(frozen=True)
class GCNConfig(Config):
    """Settings of :class:`GCN`."""

    num_layers: int = layers(2)
    hidden_channels: int = setting(64, "width of the hidden layers", least=1)
    dropout: float = share(0.5, "share of each layer's input dropped in training")
    normalization: str = setting(
        "symmetric", "P_vu = 1/√(|N_v||N_u|), or 1/|N_v|", ("symmetric", "row")
    )
    norm: str = setting("none", "normalisation of the hidden layers before σ", NORMS)
    norm_scale: float = setting(1.0, "s of PairNorm, the length it gives to features", above=0)
    feature_norm: str = setting(
        "none", "PairNorm of the features before the first layer", ("none", "pairnorm")
    )
    residual: str = setting(
        "none", "what a layer adds to its output: its input, or a linear map of it",
        ("none", "identity", "linear"),
    )  # fmt: skip
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    unit_features: bool = setting(False, "divide every node's features by their sum")


class GCN(Network):
    r"""Graph convolutional network.

    .. math::
        h^l = \sigma(\mathrm{norm}(P h^{l-1} W^l + b^l)), \qquad
        P_{vu} = \frac{1}{\sqrt{|N_v| |N_u|}}, \quad u \in N_v \ni v

    σ is ReLU; the last layer, from ``hidden_channels`` to the classes, has neither σ nor norm.
    Kipf and Welling, *Semi-Supervised Classification with Graph Convolutional Networks*, ICLR 2017.

    ``norm="pairnorm-si"`` is PairNorm (Zhao and Akoglu, ICLR 2020), s x̃_v/‖x̃_v‖ of the centred
    x̃; ``drop_edge`` is DropEdge (Rong et al., ICLR 2020); ``residual="identity"`` adds h^(l-1),
    after dropout, wherever widths agree (He et al., CVPR 2016). ``feature_norm`` is PairNorm as the
    DeepGAT paper prints it: of the features alone.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`GCNConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels].
    """

    Config = GCNConfig
    config: GCNConfig

    def make_modules(self) -> None:
        config = self.config
        self.feature_norm = make_norm(config.feature_norm, self.in_channels, config.norm_scale)
        self.has_encoder = config.feature_norm != "none"
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for number in range(1, self.num_layers + 1):
            inputs = self.in_channels if number == 1 else self.hidden_channels
            outputs = self.out_channels if number == self.num_layers else self.hidden_channels
            self.convs.append(
                NeighborAttention(
                    inputs,
                    outputs,
                    score=UniformScore,
                    normalization=config.normalization,
                    residual=config.residual == "linear",
                    edge_dim=self.edge_dim,
                )
            )
            if number < self.num_layers:
                self.norms.append(make_norm(config.norm, self.hidden_channels, config.norm_scale))

    def encode(self, x: Features) -> Features:
        if not self.has_encoder:
            return x
        assert not isinstance(x, Columns)
        return self.feature_norm(x if isinstance(x, Tensor) else x.to_dense())

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        x = self.dropped(h)
        result = self.convolve(number, x, context)
        out = result.out
        if number < self.num_layers:
            out = F.relu(normalized(self.norms[number - 1], out))
        if self.config.residual == "identity" and isinstance(x, Tensor) and x.shape == out.shape:
            out = x + out
        return result._replace(out=out)
