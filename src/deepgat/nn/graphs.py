"""Classes of whole graphs: the predictions of the nodes, pooled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv
from torch_geometric.utils import scatter

from deepgat.errors import unknown_name
from deepgat.nn.drop_edge import EdgeSampler, all_edges
from deepgat.nn.losses import Loss, OutputLoss
from deepgat.nn.norms import BatchNorm
from deepgat.nn.outputs import LayerOutputs
from deepgat.nn.stack import AttentionStack
from deepgat.ops import Features, Neighbors, dropout

POOLS = ("mean", "sum", "max")


class NodeNetwork(Protocol):
    """What predicts the nodes: :class:`AttentionStack`, or :class:`GIN`."""

    num_layers: int
    loss: Loss
    edge_sampler: EdgeSampler

    def run(self, x: Features, edge_index: Tensor | Neighbors) -> LayerOutputs: ...


class GraphClassifier(nn.Module):
    """ŷ^l of a graph = pool over its nodes of the nodes' own logits, in every layer that predicts.

    Graphs come many at a time, as one graph of several components: their lists lie one after the
    other. With the readout a linear map and ``pool`` "sum" or "mean" this is the same as pooling
    h^L first.

    Args:
        network: predicts every node.
        pool: "mean", "sum" or "max".
    """

    def __init__(self, network: AttentionStack | GIN, pool: str = "mean") -> None:
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
    def gradient_share(self) -> float:
        return self.network.gradient_share if isinstance(self.network, AttentionStack) else 1.0

    def convolution_weights(self) -> list[nn.Parameter]:
        stack = self.network
        return stack.convolution_weights() if isinstance(stack, AttentionStack) else []

    def class_head_weights(self) -> list[nn.Parameter]:
        stack = self.network
        return stack.class_head_weights() if isinstance(stack, AttentionStack) else []

    def forget_projections(self, forget: bool) -> None:
        if isinstance(self.network, AttentionStack):
            self.network.forget_projections(forget)

    def layer_bytes(self, num_nodes: int) -> tuple[float, float]:
        if isinstance(self.network, AttentionStack):
            return self.network.layer_bytes(num_nodes)
        return 4.0 * num_nodes * 6 * self.network.width, 4.0 * num_nodes * self.network.width


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
