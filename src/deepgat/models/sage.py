"""GraphSAGE with the mean aggregator."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn import functional as F

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import make_conv
from deepgat.models.network import Network
from deepgat.models.outputs import Context
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.norms import NORMS, make_norm, normalized
from deepgat.ops import Features


@dataclass(frozen=True)
class SAGEConfig(Config):
    """Settings of :class:`SAGE`."""

    num_layers: int = layers(2)
    hidden_channels: int = setting(64, "width of the hidden layers", least=1)
    dropout: float = share(0.5, "share of each layer's input dropped in training")
    norm: str = setting("none", "normalisation of the hidden layers before σ", NORMS)
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    unit_features: bool = setting(False, "divide every node's features by their sum")


class SAGE(Network):
    r"""GraphSAGE: the mean of the neighbours and the node itself, each with weights of its own.

    .. math::
        h^l_v = \sigma \Big( W^l \, \mathrm{mean}_{u \in N_v \setminus v} h^{l-1}_u
            + W'^l h^{l-1}_v + b^l \Big)

    σ is ReLU, in all layers but the last. A node without neighbours hears 0.
    Hamilton et al., *Inductive Representation Learning on Large Graphs*, NeurIPS 2017.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`SAGEConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels].
    """

    Config = SAGEConfig
    config: SAGEConfig

    def make_modules(self) -> None:
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for number in range(1, self.num_layers + 1):
            inputs = self.in_channels if number == 1 else self.hidden_channels
            outputs = self.out_channels if number == self.num_layers else self.hidden_channels
            self.convs.append(make_conv(self, "sage", inputs, outputs))
            if number < self.num_layers:
                self.norms.append(make_norm(self.config.norm, self.hidden_channels))

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        result = self.convolve(number, self.dropped(h), context)
        if number == self.num_layers:
            return result
        return result._replace(out=F.relu(normalized(self.norms[number - 1], result.out)))
