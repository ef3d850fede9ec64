"""GCNII: initial residual and identity mapping, around any convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from deepgat import ops
from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import CONVS, loss_with, make_conv
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context
from deepgat.nn.conv_output import ConvOutput
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

    def make_modules(self) -> None:
        self.loss = loss_with(self.config.conv)
        self.encoder = nn.Linear(self.in_channels, self.hidden_channels)
        self.classifier = nn.Linear(self.hidden_channels, self.out_channels)
        self.convs, self.maps = nn.ModuleList(), nn.ModuleList()
        conv, width = self.config.conv, self.hidden_channels
        for _ in range(self.num_layers):
            self.convs.append(make_conv(self, conv, width, width, bias=False, project=False))
            self.maps.append(IdentityMap(width))

    def encode(self, x: Features) -> Tensor:
        return F.relu(linear(self.encoder, self.dropped(x)))

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        assert context.initial is not None
        beta = math.log(self.config.theta / number + 1)
        result = self.convolve(number, self.dropped(h), context)
        weight = cast(IdentityMap, self.maps[number - 1]).weight
        out = ops.residual_map(result.out, context.initial, weight, self.config.alpha, beta)
        return result._replace(out=out)

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return linear(self.classifier, self.dropped(hidden[-1]))
