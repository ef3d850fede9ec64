"""APPNP: predict, then propagate by personalised PageRank."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import make_conv
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context
from deepgat.nn.attention import Reach
from deepgat.nn.conv_output import ConvOutput
from deepgat.ops import Features
from deepgat.ops.deterministic import lerp


@dataclass(frozen=True)
class APPNPConfig(Config):
    """Settings of :class:`APPNP`."""

    num_layers: int = layers(10, "K, number of hops")
    hidden_channels: int = setting(64, "width of the predictor's hidden layer", least=1)
    dropout: float = share(0.5, "share of the input of the predictor's layers dropped")
    attention_dropout: float = share(0.0, "share of the propagation's weights dropped")
    alpha: float = share(0.1, "α, share of h⁰ in every hop")
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    unit_features: bool = setting(False, "divide every node's features by their sum")


class APPNP(Network):
    r"""APPNP: an MLP predicts every node's class, and K hops spread the predictions.

    .. math::
        h^0 = \sigma(X W + b) W' + b', \qquad h^k = (1 - \alpha) P h^{k-1} + \alpha h^0, \qquad
        P_{vu} = \frac{1}{\sqrt{|N_v| |N_u|}}

    h^K are the logits; σ is ReLU. A hop is a layer without weights.
    Gasteiger et al., *Predict then Propagate*, ICLR 2019.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`APPNPConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels], as is every h^k.
    """

    Config = APPNPConfig
    config: APPNPConfig

    def make_modules(self) -> None:
        self.lin1 = nn.Linear(self.in_channels, self.hidden_channels)
        self.lin2 = nn.Linear(self.hidden_channels, self.out_channels)
        classes, dropout = self.out_channels, self.config.attention_dropout
        self.hop = make_conv(
            self, "gcn", classes, classes, dropout=dropout, bias=False, project=False
        )

    @property
    def width(self) -> int:
        return self.out_channels

    def encode(self, x: Features) -> Tensor:
        hidden = F.relu(linear(self.lin1, self.dropped(x)))
        return linear(self.lin2, self.dropped(hidden))

    def reach(self, number: int) -> Reach:
        return self.hop.reach

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        assert context.initial is not None
        result = self.hop.run(h, context.neighbors, with_attention=context.with_attention)
        return result._replace(out=lerp(result.out, context.initial, self.config.alpha))
