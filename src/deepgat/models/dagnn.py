"""DAGNN: every node decides how many hops of its neighbourhood to believe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import make_conv
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context
from deepgat.nn.attention import Reach
from deepgat.nn.conv_output import ConvOutput
from deepgat.ops import Features


@dataclass(frozen=True)
class DAGNNConfig(Config):
    """Settings of :class:`DAGNN`."""

    num_layers: int = layers(10, "K, number of hops")
    hidden_channels: int = setting(64, "width of the predictor's hidden layer", least=1)
    dropout: float = share(0.8, "share of the input of the predictor's layers dropped")
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    unit_features: bool = setting(False, "divide every node's features by their sum")


class DAGNN(Network):
    r"""DAGNN: an MLP predicts every node's class; a gate weighs the predictions of every hop.

    .. math::
        h^0 = \sigma(X W + b) W' + b', \qquad h^k = P h^{k-1}, \qquad
        \hat y_v = \sum_{k=0}^{K} \mathrm{sigmoid}(\langle s, h^k_v \rangle + b_s) \, h^k_v

    with P_vu = 1/√(\|N_v\| \|N_u\|); σ is ReLU. A hop is a layer without weights.
    Liu et al., *Towards Deeper Graph Neural Networks*, KDD 2020.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`DAGNNConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels], as is every h^k.
    """

    Config = DAGNNConfig
    config: DAGNNConfig
    reads_every_layer = True

    def make_modules(self) -> None:
        self.lin1 = nn.Linear(self.in_channels, self.hidden_channels)
        self.lin2 = nn.Linear(self.hidden_channels, self.out_channels)
        self.gate = nn.Linear(self.out_channels, 1)
        classes = self.out_channels
        self.hop = make_conv(self, "gcn", classes, classes, bias=False, project=False)

    @property
    def width(self) -> int:
        return self.out_channels

    def encode(self, x: Features) -> Tensor:
        hidden = F.relu(linear(self.lin1, self.dropped(x)))
        return linear(self.lin2, self.dropped(hidden))

    def reach(self, number: int) -> Reach:
        return self.hop.reach

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        return self.hop.run(h, context.neighbors, with_attention=context.with_attention)

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        assert initial is not None
        hops = torch.stack([initial, *hidden], 1)
        gate = torch.sigmoid(linear(self.gate, hops.flatten(0, 1))).view(*hops.shape[:2], 1)
        return (gate * hops).sum(1)
