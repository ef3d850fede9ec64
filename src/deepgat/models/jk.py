"""Jumping knowledge networks: the readout sees every layer of a GCN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import JumpingKnowledge

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import make_conv
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.norms import NORMS, make_norm, normalized
from deepgat.ops import Features


@dataclass(frozen=True)
class JKConfig(Config):
    """Settings of :class:`JK`."""

    num_layers: int = layers(2)
    hidden_channels: int = setting(64, "width of the layers", least=1)
    dropout: float = share(0.5, "share of each layer's input dropped in training")
    mode: str = setting(
        "cat", "layers joined by: concatenation, maximum, LSTM attention", ("cat", "max", "lstm")
    )
    norm: str = setting("none", "normalisation of the layers before σ", NORMS)
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    unit_features: bool = setting(False, "divide every node's features by their sum")


class JK(Network):
    r"""Jumping knowledge network.

    .. math::
        h^l = \sigma(P h^{l-1} W^l + b^l), \qquad
        \hat y = \mathrm{join}(h^1, \dots, h^L) \, W_c + b_c

    P is GCN's, 1/√(\|N_v\| \|N_u\|); σ is ReLU; ``mode`` says how layers are joined.
    Xu et al., *Representation Learning on Graphs with Jumping Knowledge Networks*, ICML 2018.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`JKConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels]; layers
    [n, hidden_channels].
    """

    Config = JKConfig
    config: JKConfig
    reads_every_layer = True

    def make_modules(self) -> None:
        mode = self.config.mode
        self.jump = JumpingKnowledge(mode, self.hidden_channels, self.num_layers)
        joined = self.hidden_channels * self.num_layers if mode == "cat" else self.hidden_channels
        self.classifier = nn.Linear(joined, self.out_channels)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for number in range(1, self.num_layers + 1):
            inputs = self.in_channels if number == 1 else self.hidden_channels
            self.convs.append(make_conv(self, "gcn", inputs, self.hidden_channels))
            self.norms.append(make_norm(self.config.norm, self.hidden_channels))

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        result = self.convolve(number, self.dropped(h), context)
        return result._replace(out=F.relu(normalized(self.norms[number - 1], result.out)))

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return linear(self.classifier, self.dropped(self.jump(list(hidden))))
