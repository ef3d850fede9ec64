"""A multilayer perceptron: what the features say without the graph."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import Linear

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context
from deepgat.nn.attention import Reach
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.norms import NORMS, make_norm, normalized
from deepgat.ops import Features


@dataclass(frozen=True)
class MLPConfig(Config):
    """Settings of :class:`MLP`."""

    num_layers: int = layers(2)
    hidden_channels: int = setting(64, "width of the hidden layers", least=1)
    dropout: float = share(0.5, "share of each layer's input dropped in training")
    norm: str = setting("none", "normalisation of the hidden layers before σ", NORMS)
    unit_features: bool = setting(False, "divide every node's features by their sum")


class MLP(Network):
    r"""Multilayer perceptron, the same for every node.

    .. math:: h^l = \sigma(\mathrm{norm}(h^{l-1} W^l + b^l))

    σ is ReLU, in all layers but the last. It looks at no edges.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`MLPConfig`'s.

    Shapes: x [n, in_channels] → logits [n, out_channels].
    """

    Config = MLPConfig
    config: MLPConfig

    def make_modules(self) -> None:
        self.lins, self.norms = nn.ModuleList(), nn.ModuleList()
        for number in range(1, self.num_layers + 1):
            inputs = self.in_channels if number == 1 else self.hidden_channels
            outputs = self.out_channels if number == self.num_layers else self.hidden_channels
            self.lins.append(
                Linear(inputs, outputs, weight_initializer="glorot", bias_initializer="zeros")
            )
            if number < self.num_layers:
                self.norms.append(make_norm(self.config.norm, self.hidden_channels))

    def reach(self, number: int) -> Reach:
        return Reach()

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        out = linear(self.lins[number - 1], self.dropped(h))
        if number < self.num_layers:
            out = F.relu(normalized(self.norms[number - 1], out))
        return ConvOutput(out)

    def convolution_weights(self) -> list[nn.Parameter]:
        return list(self.lins.parameters())
