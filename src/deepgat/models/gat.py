"""Graph attention networks (GAT)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.network import Network
from deepgat.models.outputs import Context
from deepgat.nn.attention import NeighborAttention
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.norms import NORMS, make_norm, norm_elu, normalized
from deepgat.nn.scores import SD_SCALES, AdditiveScore, DotScore, ScoreFactory, unscaled
from deepgat.ops import Features


@dataclass(frozen=True)
class GATConfig(Config):
    """Settings of :class:`GAT`. The defaults are those of its paper on Cora."""

    num_layers: int = layers(2)
    hidden_channels: int = setting(8, "D, width of each head in hidden layers", least=1)
    heads: int = setting(8, "H, heads in hidden layers, concatenated", least=1)
    output_heads: int = setting(1, "heads of the last layer, averaged", least=1)
    score: str = setting("ad", "additive, dot product, or scaled dot product", ("ad", "dp", "sd"))
    sd_scale: str = setting(
        "width", "SD divides by dim(q), or by √(per-head output width)", tuple(SD_SCALES)
    )
    dropout: float = share(0.6, "share of each layer's input dropped in training")
    attention_dropout: float = share(0.6, "share of attention weights dropped in training")
    norm: str = setting("none", "normalisation of every layer before σ", NORMS)
    residual: str = setting(
        "none", "what a layer adds to its output: its input, or a linear map of it",
        ("none", "identity", "linear"),
    )  # fmt: skip
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    bias: bool = setting(True, "learn a bias in every layer")
    output_activation: bool = setting(False, "apply σ to the last layer too")
    unit_features: bool = setting(False, "divide every node's features by their sum")


class GAT(Network):
    r"""Graph attention network: neighbours are weighed by a score of their features.

    .. math::
        h^l_v = \sigma \Big( \textstyle\sum_{u \in N_v} \alpha_{vu} W^l h^{l-1}_u + b^l \Big),
        \qquad \alpha_{vu} = \mathrm{softmax}_{u \in N_v} \, s(v, u)

    per head, heads concatenated; σ is ELU. The last layer averages ``output_heads`` heads of one
    channel per class. Scores: "ad" LeakyReLU(⟨w, Wh_v ‖ Wh_u⟩), the original; "dp" ⟨Wh_v, Wh_u⟩;
    "sd" the same divided by the width. Dropout on attention weights is ``attention_dropout``.
    Veličković et al., *Graph Attention Networks*, ICLR 2018; with "dp" and "sd" Algorithm 2 of
    Kato et al., *Deep Graph Attention Networks*, CANDARW 2024.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`GATConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels]; hidden layers
    [n, heads · hidden_channels].
    """

    Config = GATConfig
    config: GATConfig

    def make_modules(self) -> None:
        config = self.config
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for number in range(1, self.num_layers + 1):
            last = number == self.num_layers
            conv = NeighborAttention(
                self.in_channels if number == 1 else self.width,
                self.out_channels if last else self.hidden_channels,
                heads=config.output_heads if last else config.heads,
                concat=not last,
                dropout=config.attention_dropout,
                edge_dim=self.edge_dim,
                bias=config.bias,
                residual=config.residual == "linear",
                score=self.score(),
            )
            self.convs.append(conv)
            self.norms.append(make_norm(config.norm, self.out_channels if last else self.width))

    def score(self) -> ScoreFactory:
        """What makes the score of a layer."""
        if self.config.score == "ad":
            return AdditiveScore
        sd = self.config.score == "sd"
        return partial(DotScore, scale=SD_SCALES[self.config.sd_scale] if sd else unscaled)

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        x = self.dropped(h)
        result = self.convolve(number, x, context)
        activated = number < self.num_layers or self.config.output_activation
        out = (norm_elu if activated else normalized)(self.norms[number - 1], result.out)
        if self.config.residual == "identity" and isinstance(x, Tensor) and x.shape == out.shape:
            out = x + out
        return result._replace(out=out)
