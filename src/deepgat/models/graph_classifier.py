"""Classes of whole graphs: the predictions of the nodes, pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.utils import scatter

from deepgat.errors import unknown_name
from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import CONVS, loss_with, make_conv
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context, LayerOutputs
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.drop_edge import EdgeSampler
from deepgat.nn.losses import Loss
from deepgat.nn.norms import make_norm, normalized
from deepgat.ops import Features, Neighbors

POOLS = ("mean", "sum", "max")


class GraphClassifier(nn.Module):
    """ŷ^l of a graph = pool over its nodes of the nodes' own logits, in every layer that predicts.

    Graphs come many at a time, as one graph of several components: their lists lie one after the
    other. With the readout a linear map and ``pool`` "sum" or "mean" this is the same as pooling
    h^L first.

    Args:
        network: predicts every node.
        pool: "mean", "sum" or "max".
    """

    def __init__(self, network: Network, pool: str = "mean") -> None:
        super().__init__()
        if pool not in POOLS:
            raise unknown_name("pool", pool, POOLS)
        self.network = network
        self.pool = pool
        self.num_layers = network.num_layers
        self.loss: Loss = network.loss
        self.edge_sampler: EdgeSampler = network.edge_sampler
        self.needs_labels = False

    def run(
        self, x: Features, edge_index: Tensor | Neighbors, graph_of: Tensor, num_graphs: int
    ) -> LayerOutputs:
        """``graph_of`` [n]: the graph of each node. The logits are [num_graphs, C]."""
        outputs = self.network.run(x, edge_index)
        pooled = {
            layer: scatter(logits, graph_of, 0, num_graphs, self.pool)
            for layer, logits in outputs.layer_logits.items()
        }
        return LayerOutputs(pooled[max(pooled)], pooled, outputs.hidden)

    @property
    def step(self) -> float:
        return self.network.step

    def convolution_weights(self) -> list[nn.Parameter]:
        return self.network.convolution_weights()

    def class_head_weights(self) -> list[nn.Parameter]:
        return self.network.class_head_weights()

    def forget_projections(self, forget: bool) -> None:
        self.network.forget_projections(forget)

    def layer_bytes(self, num_nodes: int) -> tuple[float, float]:
        return self.network.layer_bytes(num_nodes)


@dataclass(frozen=True)
class ConvStackConfig(Config):
    """Settings of :class:`ConvStack`."""

    num_layers: int = layers(4)
    hidden_channels: int = setting(32, "width of the layers", least=1)
    dropout: float = share(0.0, "share of each layer's input dropped in training")
    norm: str = setting("batch", "normalisation of the layers before σ", ("none", "layer", "batch"))
    conv: str = setting("deepgat", "GCN's, GAT's, DeepGAT's or SAGE's convolution", CONVS)
    unit_features: bool = setting(False, "divide every node's features by their sum")


class ConvStack(Network):
    r"""Layers of one convolution and a linear readout, for the nodes of small graphs.

    .. math::
        h^l = \sigma(\mathrm{norm}(\mathrm{conv}(h^{l-1}))), \qquad \hat y = h^L W_c + b_c

    σ is ReLU. With DeepGAT's convolution every layer predicts classes and is trained to.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`ConvStackConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels].
    """

    Config = ConvStackConfig
    config: ConvStackConfig

    def make_modules(self) -> None:
        self.loss = loss_with(self.config.conv)
        self.classifier = nn.Linear(self.hidden_channels, self.out_channels)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for number in range(1, self.num_layers + 1):
            inputs = self.in_channels if number == 1 else self.hidden_channels
            self.convs.append(make_conv(self, self.config.conv, inputs, self.hidden_channels))
            self.norms.append(make_norm(self.config.norm, self.hidden_channels))

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        result = self.convolve(number, self.dropped(h), context)
        return result._replace(out=F.relu(normalized(self.norms[number - 1], result.out)))

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return linear(self.classifier, self.dropped(hidden[-1]))
