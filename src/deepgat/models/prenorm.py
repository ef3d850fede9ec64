"""PreNorm: a wide residual network around any convolution, normalised before every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from deepgat.errors import UserError
from deepgat.models.config import Config, layers, setting, share
from deepgat.models.convolutions import CONVS, make_conv
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context
from deepgat.nn.attention import NeighborAttention
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.losses import OutputAndLayersLoss
from deepgat.nn.norms import make_norm, normalized
from deepgat.nn.scores import ClassScore
from deepgat.ops import Features


@dataclass(frozen=True)
class PreNormConfig(Config):
    """Settings of :class:`PreNorm`."""

    num_layers: int = layers(8)
    hidden_channels: int = setting(128, "width of the layers", least=1)
    dropout: float = share(0.5, "share of what every layer adds that is dropped in training")
    input_dropout: float = share(0.0, "share of the features dropped in training")
    conv: str = setting("sage", "the convolution inside: GCN's, GAT's, DeepGAT's, SAGE's", CONVS)
    heads: int = setting(4, "heads of conv=gat, which share the width", least=1)
    input_norm: str = setting(
        "none", "batch: subtract every feature's mean and divide by its deviation",
        ("none", "batch"),
    )  # fmt: skip
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    unit_features: bool = setting(False, "divide every node's features by their sum")

    def check(self) -> None:
        if self.conv == "gat" and self.hidden_channels % self.heads:
            raise UserError(
                f"hidden_channels is {self.hidden_channels}, which {self.heads} heads cannot share "
                "evenly: expected a multiple of heads"
            )


class PreNorm(Network):
    r"""PreNorm: every layer adds to what it is given, and a node keeps apart from its neighbours.

    .. math::
        h^0 = \sigma(X W + b), \qquad
        h^l = h^{l-1} + \sigma \big( \mathrm{conv}^l(\nu(h^{l-1})) + W'^l \nu(h^{l-1}) + b'^l \big),
        \qquad \hat y = W_c \, \nu(h^L) + b_c

    ν is layer normalisation, with weights of its own in every place, and σ ReLU. W' is a node's own
    share: what its neighbours say is not mixed with what it says itself, so they may as well differ
    from it. The sum h passes through all layers unchanged, so depth costs no gradient.
    ``conv="deepgat"`` attends by predicted class, with Deep's score and loss.
    Li et al., *DeeperGCN: All You Need to Train Deeper GCNs*, 2020 (the order of norm, σ and sum
    differs); Xiong et al., *On Layer Normalization in the Transformer Architecture*, ICML 2020.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`PreNormConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels]; layers
    [n, hidden_channels].
    """

    Config = PreNormConfig
    config: PreNormConfig

    def make_modules(self) -> None:
        if self.config.conv == "deepgat":
            self.loss = OutputAndLayersLoss(delta=0.4, weight=0.3)
        self.input_norm = make_norm(self.config.input_norm, self.in_channels)
        self.encoder = nn.Linear(self.in_channels, self.hidden_channels)
        self.classifier = nn.Linear(self.hidden_channels, self.out_channels)
        self.convs = nn.ModuleList(self._make_conv() for _ in range(self.num_layers))
        self.norms = nn.ModuleList(
            nn.LayerNorm(self.hidden_channels) for _ in range(self.num_layers + 1)
        )

    @property
    def width(self) -> int:
        return self.config.hidden_channels  # which heads share

    def _make_conv(self) -> NeighborAttention:
        width, conv = self.hidden_channels, self.config.conv
        if conv == "deepgat":
            score = partial(
                ClassScore, independent_labels=self.multi_label, sharpness=3.0, detached=True
            )
            return NeighborAttention(
                width, width, edge_dim=self.edge_dim, bias=False, residual=True,
                score=score, num_classes=self.out_channels, class_bias=True,
            )  # fmt: skip
        heads = self.config.heads if conv == "gat" else 1
        return make_conv(self, conv, width, width // heads, heads=heads, bias=False, residual=True)

    def encode(self, x: Features) -> Tensor:
        if self.config.input_norm != "none":
            if not isinstance(x, Tensor):
                raise UserError("input_norm=batch needs dense features: set it to none")
            x = self.input_norm(x)
        x = self.dropped(x, self.config.input_dropout)
        h = self.dropped(F.relu(linear(self.encoder, x)))
        assert isinstance(h, Tensor)
        return h

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        assert isinstance(h, Tensor)
        result = self.convolve(number, normalized(self.norms[number - 1], h), context)
        added = self.dropped(F.relu(result.out))
        assert isinstance(added, Tensor)
        return result._replace(out=h + added)

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return linear(self.classifier, normalized(self.norms[-1], hidden[-1]))
