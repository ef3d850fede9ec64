"""The graph isomorphism network (GIN), the usual yardstick for classes of whole graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv

from deepgat import ops
from deepgat.errors import UserError
from deepgat.models.config import Config, layers, setting, share
from deepgat.models.network import Network
from deepgat.models.outputs import Context
from deepgat.nn.attention import Reach
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.norms import BatchNorm
from deepgat.ops import Features


@dataclass(frozen=True)
class GINConfig(Config):
    """Settings of :class:`GIN`."""

    num_layers: int = layers(4)
    hidden_channels: int = setting(32, "width of the layers", least=1)
    dropout: float = share(0.5, "share of every layer's logits dropped in training")


class GIN(Network):
    r"""Graph isomorphism network, with PyG's convolution.

    .. math::
        h^l_v = \mathrm{MLP}^l \Big( (1 + \epsilon^l) h^{l-1}_v
            + \textstyle\sum_{u \in N_v \setminus v} h^{l-1}_u \Big), \qquad
        \hat y = \textstyle\sum_{l=0}^L (W_l h^l + b_l)

    ε is learnt; the MLP is two linear maps with batch norm and ReLU after each. The logits of a
    graph are the sum over its nodes: ``GraphClassifier(GIN(…), pool="sum")``.
    Xu et al., *How Powerful are Graph Neural Networks?*, ICLR 2019; dropout as in their code.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`GINConfig`'s.

    Shapes: x [n, in_channels], dense; edge_index [2, ·] → logits [n, out_channels].
    """

    Config = GINConfig
    config: GINConfig
    reads_every_layer = True

    def make_modules(self) -> None:
        widths = [self.in_channels] + [self.hidden_channels] * self.num_layers
        self.convs = nn.ModuleList(
            GINConv(_perceptron(width, self.hidden_channels), train_eps=True)
            for width in widths[:-1]
        )
        self.heads = nn.ModuleList(nn.Linear(width, self.out_channels) for width in widths)

    def encode(self, x: Features) -> Tensor:
        if not isinstance(x, Tensor):
            raise UserError("GIN reads dense features: pass x.to_dense()")
        return x

    def reach(self, number: int) -> Reach:
        return Reach(1, 1)

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        edges = context.neighbors.square.edge_index
        others = edges[:, edges[0] != edges[1]]
        return ConvOutput(self.convs[number - 1](h, others))

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        assert initial is not None
        logits = [
            ops.dropout(head(h), self.dropout, self.training)
            for head, h in zip(self.heads, [initial, *hidden], strict=True)
        ]
        return torch.stack(logits).sum(0)


def _perceptron(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, hidden),
        BatchNorm(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        BatchNorm(hidden),
        nn.ReLU(),
    )
