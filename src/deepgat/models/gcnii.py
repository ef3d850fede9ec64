"""GCNII: initial residual and identity mapping, around any convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import CONVS, loss_with, make_conv
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context
from deepgat.nn.attention import ConvOutput
from deepgat.nn.residual import IdentityMap
from deepgat.ops import Features


@dataclass(frozen=True)
class GCNIIConfig(Config):
    """Settings of :class:`GCNII`."""

    num_layers: int = layers(16)
    hidden_channels: int = setting(64, "width of the layers", least=1)
    dropout: float = share(0.6, "share of each layer's input dropped in training")
    alpha: float = share(0.1, "α, share of h⁰ in every layer")
    theta: float = setting(0.5, "θ in β = log(θ/l + 1)", least=0)
    conv: str = setting("gcn", "the convolution P: GCN's, GAT's, DeepGAT's or SAGE's", CONVS)
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    unit_features: bool = setting(False, "divide every node's features by their sum")


class GCNII(Network):
    r"""GCNII: every layer keeps a share of the input, and weights near the identity.

    .. math::
        h^0 = \sigma(X W + b), \qquad
        h^l = \sigma \big( ((1-\alpha) P h^{l-1} + \alpha h^0) ((1-\beta_l) I + \beta_l W^l) \big),
        \qquad \beta_l = \log(\theta / l + 1)

    The logits are h^L W_c + b_c; σ is ReLU. P is GCN's by default. ``conv="deepgat"`` puts class
    attention in its place.
    Chen et al., *Simple and Deep Graph Convolutional Networks*, ICML 2020.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`GCNIIConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels]; layers
    [n, hidden_channels].
    """

    Config = GCNIIConfig
    config: GCNIIConfig

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        **settings: Any,
    ) -> None:
        super().__init__(in_channels, hidden_channels, num_layers, out_channels, **settings)
        self.loss = loss_with(self.config.conv)
        self.encoder = nn.Linear(in_channels, hidden_channels)
        self.classifier = nn.Linear(hidden_channels, out_channels)
        self.convs, self.maps = nn.ModuleList(), nn.ModuleList()
        for _ in range(num_layers):
            conv = make_conv(
                self.config.conv,
                hidden_channels,
                hidden_channels,
                num_classes=out_channels,
                multi_label=self.multi_label,
                bias=False,
                project=False,
                edge_dim=self.edge_dim,
            )
            self.convs.append(conv)
            self.maps.append(IdentityMap(hidden_channels))

    def encode(self, x: Features) -> Tensor:
        return F.relu(linear(self.encoder, self.dropped(x)))

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        assert context.initial is not None
        beta = math.log(self.config.theta / number + 1)
        result = self.convolve(number, self.dropped(h), context)
        update = cast(IdentityMap, self.maps[number - 1]).update
        out = update(result.out, context.initial, self.config.alpha, beta)
        return result._replace(out=out)

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return linear(self.classifier, self.dropped(hidden[-1]))
