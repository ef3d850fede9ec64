"""G²: gradient gating around any convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepgat import ops
from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import CONVS, loss_with, make_conv
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context
from deepgat.nn.attention import NeighborAttention, Reach
from deepgat.nn.conv_output import ConvOutput
from deepgat.ops import Features, Neighbors
from deepgat.ops.deterministic import lerp


@dataclass(frozen=True)
class G2Config(Config):
    """Settings of :class:`G2`."""

    num_layers: int = layers(2)
    hidden_channels: int = setting(64, "width of the layers", least=1)
    input_dropout: float = share(0.5, "share of the features dropped in training")
    output_dropout: float = share(0.1, "share of the last layer's output dropped in training")
    power: float = setting(2.5, "p of the gate", least=1)
    reduction: str = setting(
        "mean", "the gate takes the mean or the sum over neighbours", ("mean", "sum")
    )
    gate_conv: str = setting(
        "same", "the gate looks at the layer's output, or at that of a convolution of its own",
        ("same", "own"),
    )  # fmt: skip
    conv: str = setting("sage", "the convolution inside: GCN's, GAT's, DeepGAT's, SAGE's", CONVS)
    unit_features: bool = setting(False, "divide every node's features by their sum")


class G2(Network):
    r"""G²: a node stops changing, per channel, once it is like its neighbours.

    .. math::
        h^0 = \sigma(X W + b), \qquad
        h^l = (1 - \tau) \odot h^{l-1} + \tau \odot F(h^{l-1}), \qquad
        \tau_v = \tanh \Big( \mathrm{mean}_{u \in N_v \setminus v}
            |\hat\tau_v - \hat\tau_u|^p \Big)

    F = σ(conv) has one set of weights for all layers; τ̂ is F's output or, with
    ``gate_conv="own"``, that of a second convolution of its kind. The logits are h^L W_c + b_c; σ
    is ReLU. Rusch et al., *Gradient Gating for Deep Multi-Rate Learning on Graphs*, ICLR 2023.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`G2Config`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels]; layers
    [n, hidden_channels].
    """

    Config = G2Config
    config: G2Config

    def make_modules(self) -> None:
        self.encoder = nn.Linear(self.in_channels, self.hidden_channels)
        self.classifier = nn.Linear(self.hidden_channels, self.out_channels)
        self.loss = loss_with(self.config.conv)
        self.conv = self._make_conv()
        self.gate_conv = self._make_conv() if self.config.gate_conv == "own" else None

    def _make_conv(self) -> NeighborAttention:
        return make_conv(self, self.config.conv, self.hidden_channels, self.hidden_channels)

    def encode(self, x: Features) -> Tensor:
        return F.relu(linear(self.encoder, self.dropped(x, self.config.input_dropout)))

    def reach(self, number: int) -> Reach:
        """One hop beyond the convolution: the gate compares the outputs of neighbours."""
        states, lists = self.conv.reach
        return Reach(states + 1, lists + 1)

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        assert isinstance(h, Tensor)
        neighbors = context.neighbors
        result = self.conv.run(h, neighbors, with_attention=context.with_attention)
        out = rate = F.relu(result.out)
        if self.gate_conv is not None:
            rate = F.relu(self.gate_conv.run(h, neighbors).out)
        return result._replace(out=lerp(h, out, self.gate(rate, neighbors)))

    def gate(self, rate: Tensor, neighbors: Neighbors) -> Tensor:
        """τ from τ̂: [n, D] → [n, D]."""
        total = ops.neighbor_differences(neighbors, rate, self.config.power)
        if self.config.reduction == "mean":
            total = total / neighbors.others.clamp(min=1).unsqueeze(1)
        return torch.tanh(total)

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return linear(self.classifier, self.dropped(hidden[-1], self.config.output_dropout))
