"""Classes of whole graphs: the predictions of the nodes, pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GINConv
from torch_geometric.utils import scatter

from deepgat.errors import unknown_name
from deepgat.models.config import Config, setting, share
from deepgat.models.convolutions import CONVS, made_by
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context, LayerOutputs
from deepgat.nn.attention import ConvOutput
from deepgat.nn.drop_edge import EdgeSampler, all_edges
from deepgat.nn.losses import Loss, OutputLoss
from deepgat.nn.norms import BatchNorm, make_norm, normalized
from deepgat.ops import Features, Neighbors, dropout

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

    def __init__(self, network: Network | GIN, pool: str = "mean") -> None:
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
        return self.network.step if isinstance(self.network, Network) else 1.0

    def convolution_weights(self) -> list[nn.Parameter]:
        stack = self.network
        return stack.convolution_weights() if isinstance(stack, Network) else []

    def class_head_weights(self) -> list[nn.Parameter]:
        stack = self.network
        return stack.class_head_weights() if isinstance(stack, Network) else []

    def forget_projections(self, forget: bool) -> None:
        if isinstance(self.network, Network):
            self.network.forget_projections(forget)

    def layer_bytes(self, num_nodes: int) -> tuple[float, float]:
        if isinstance(self.network, Network):
            return self.network.layer_bytes(num_nodes)
        return 4.0 * num_nodes * 6 * self.network.width, 4.0 * num_nodes * self.network.width


@dataclass(frozen=True)
class ConvStackConfig(Config):
    """Settings of :class:`ConvStack`."""

    num_layers: int = setting(4, "L, number of layers", least=1)
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

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        **settings: Any,
    ) -> None:
        super().__init__(in_channels, hidden_channels, num_layers, out_channels, **settings)
        self.classifier = nn.Linear(hidden_channels, out_channels)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for number in range(1, num_layers + 1):
            inputs = in_channels if number == 1 else hidden_channels
            conv, self.loss = made_by(
                self.config.conv, inputs, hidden_channels, num_classes=out_channels
            )
            self.convs.append(conv)
            self.norms.append(make_norm(self.config.norm, hidden_channels))

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        result = self.convolve(number, self.dropped(h), context)
        return result._replace(out=F.relu(normalized(self.norms[number - 1], result.out)))

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return linear(self.classifier, self.dropped(hidden[-1]))


class GIN(nn.Module):
    r"""The graph isomorphism network (Xu et al., ICLR 2019), of PyG's convolution.

    h^l_v = MLP((1 + ε) h^(l−1)_v + Σ_{u ≠ v} h^(l−1)_u), ε learnt, the MLP two linear maps with
    batch norm and ReLU after each; logits Σ_{l=0..L} W_l h^l_v, summed over a graph's nodes.

    Args:
        in_channels, num_classes: d and C.
        layers, hidden: L and the width.
        dropout: on the logits of every layer, as in the authors' code.
    """

    def __init__(
        self, in_channels: int, num_classes: int, layers: int = 4, hidden: int = 32,
        dropout: float = 0.5,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_layers, self.width, self.dropout = layers, hidden, dropout
        self.loss: Loss = OutputLoss()
        self.edge_sampler: EdgeSampler = all_edges
        widths = [in_channels] + [hidden] * layers
        self.convs = nn.ModuleList(
            GINConv(_perceptron(width, hidden), train_eps=True) for width in widths[:-1]
        )
        self.heads = nn.ModuleList(nn.Linear(width, num_classes) for width in widths)

    def run(self, x: Features, edge_index: Tensor | Neighbors) -> LayerOutputs:
        if not isinstance(x, Tensor):
            raise TypeError("GIN reads dense features")
        edges = edge_index.square.edge_index if isinstance(edge_index, Neighbors) else edge_index
        edges = edges[:, edges[0] != edges[1]]
        states = [x]
        for conv in self.convs:
            states.append(conv(states[-1], edges))
        parts = [
            dropout(head(state), self.dropout, self.training)
            for head, state in zip(self.heads, states, strict=True)
        ]
        logits = torch.stack(parts).sum(0)
        layers: Mapping[int, Tensor] = {self.num_layers: logits}
        return LayerOutputs(logits, dict(layers), states[1:])


def _perceptron(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, hidden),
        BatchNorm(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        BatchNorm(hidden),
        nn.ReLU(),
    )
