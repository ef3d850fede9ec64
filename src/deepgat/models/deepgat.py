"""Deep graph attention networks (DeepGAT): Algorithm 1 of the paper, in one file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.network import Network
from deepgat.models.outputs import Context
from deepgat.nn.attention import NeighborAttention
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.losses import LayerwiseLoss
from deepgat.nn.norms import NORMS, make_norm, norm_elu, normalized
from deepgat.nn.scores import SD_SCALES, ClassScore, ScoreFactory, unscaled
from deepgat.ops import Columns, Features


@dataclass(frozen=True)
class DeepGATConfig(Config):
    """Settings of :class:`DeepGAT`. The defaults are the paper's equations.

    Where the paper and its authors' code disagree, each side is a value of one of these settings.
    ``docs/ledger.md`` explains every one.
    """

    num_layers: int = layers(2)
    hidden_channels: int = setting(8, "D, width of each head in hidden layers", least=1)
    heads: int = setting(8, "H, heads in hidden layers, concatenated", least=1)
    output_heads: int = setting(1, "heads of the last layer, averaged", least=1)
    score: str = setting("dp", "dot product of two class predictions, or scaled", ("dp", "sd"))
    sd_scale: str = setting(
        "width", "SD divides by dim(q), or by √(per-head output width)", tuple(SD_SCALES)
    )
    dropout: float = share(0.0, "share of each layer's input dropped in training")
    attention_dropout: float = share(0.0, "share of attention weights dropped in training")
    norm: str = setting("none", "normalisation of every layer before σ", NORMS)
    residual: str = setting(
        "none", "what a layer adds to its output: its input, or a linear map of it",
        ("none", "identity", "linear"),
    )  # fmt: skip
    drop_edge: float = share(0.0, "share of edges dropped anew at each epoch of training")
    bias: bool = setting(False, "learn a bias in every layer")
    output_activation: bool = setting(True, "apply σ to the last layer too")
    unit_features: bool = setting(False, "divide every node's features by their sum")
    label_hops: int = setting(3, "how many of the first layers see labels z; 0: none", least=0)
    label_input: str = setting(
        "prediction", "who sees z: the class head alone, or the whole layer",
        ("prediction", "layer"),
    )  # fmt: skip
    first_labels: str = setting(
        "zero", "z of layer 1: rm_diag(I)Y = 0, or raw neighbour label counts",
        ("zero", "neighbor-counts"),
    )  # fmt: skip
    class_activation: str = setting(
        "by-task", "inside attention: sigmoid for independent labels, or always softmax",
        ("by-task", "softmax"),
    )  # fmt: skip
    loss_layers: str = setting(
        "from-1", "loss terms l = 1..L, or l = 0..L with the raw features' prediction",
        ("from-1", "from-0"),
    )  # fmt: skip
    delta: float = setting(0.4, "δ in γ(l) = δ/(l+δ) + 1, the weight of layer l's loss", least=0)


class DeepGAT(Network):
    r"""Deep graph attention network: neighbours attend to each other by predicted class.

    Algorithm 1. For l = 1 … L, per head, with h⁰ = X and N_v ∋ v:

    .. math::
        \hat y^{l-1}_v &= \mathrm{softmax}(W_1^l (h^{l-1}_v \Vert z^l_v)) \\
        \alpha_{vu} &= \mathrm{softmax}_{u \in N_v} \langle \hat y_v, \hat y_u \rangle \\
        h^l_v &= \sigma \big( W_2^l \textstyle\sum_{u \in N_v} \alpha_{vu} h^{l-1}_u \big)

    σ is ELU; heads are concatenated, in the last layer averaged. The last layer has one channel per
    class, and ŷ^L = softmax(h^L). z^l are the training labels after l − 1 hops of propagation, a
    node's own left out. The loss adds up every layer's prediction, Σ_l γ(l) CE(ŷ^l, y), with
    γ(l) = δ/(l + δ) + 1. Dropout on α is ``attention_dropout``.

    The loop over l, and filing prediction l − 1 that layer l makes, are
    :meth:`Network.run_layers`; ``PropagateLabels`` makes z. One layer is
    :class:`~deepgat.nn.NeighborAttention`. Its steps for one head, in plain torch over a dense
    adjacency ``A`` with self-loops:

    >>> from deepgat.nn import NeighborAttention
    >>> conv = NeighborAttention(4, 5, num_classes=3, bias=False)
    >>> h, edge_index = torch.randn(3, 4), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> A = torch.eye(3).index_put(tuple(edge_index.flip(0)), torch.tensor(1.0))
    >>> y = (h @ conv.class_weight.T).softmax(-1)            # ŷ = softmax(W₁ h)
    >>> scores = (y @ y.T).masked_fill(A == 0, -torch.inf)   # <ŷ_v, ŷ_u> for u in N_v
    >>> alpha = scores.softmax(-1)                           # α_vu
    >>> out = alpha @ h @ conv.weight.T                      # W₂ Σ_u α_vu h_u
    >>> torch.allclose(conv(h, edge_index), out, atol=1e-6)
    True

    Kato et al., *Deep Graph Attention Networks*, CANDARW 2024.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`DeepGATConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·], label_features [n, ≥ label_hops, C] → logits
    [n, out_channels]; hidden layers [n, heads · hidden_channels].
    """

    Config = DeepGATConfig
    config: DeepGATConfig

    def make_modules(self) -> None:
        config = self.config
        self.loss = LayerwiseLoss(config.delta, 0 if config.loss_layers == "from-0" else 1)
        self.first_labels = config.first_labels
        self.label_hops = 0 if self.multi_label else min(config.label_hops, self.num_layers)
        to_prediction = config.label_input == "prediction"
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for number in range(1, self.num_layers + 1):
            last, sees_labels = number == self.num_layers, number <= self.label_hops
            inputs = self.in_channels if number == 1 else self.width
            if sees_labels and not to_prediction:
                inputs += self._heads_into(number) * self.out_channels
            conv = NeighborAttention(
                inputs,
                self.out_channels if last else self.hidden_channels,
                heads=config.output_heads if last else config.heads,
                concat=not last,
                dropout=config.attention_dropout,
                edge_dim=self.edge_dim,
                bias=config.bias,
                residual=config.residual == "linear",
                score=self.score(),
                num_classes=self.out_channels,
                label_channels=self.out_channels if sees_labels and to_prediction else 0,
            )
            self.convs.append(conv)
            self.norms.append(make_norm(config.norm, self.out_channels if last else self.width))

    def score(self) -> ScoreFactory:
        """What makes the score of a layer: the agreement of two class predictions."""
        config = self.config
        return partial(
            ClassScore,
            scale=SD_SCALES[config.sd_scale] if config.score == "sd" else unscaled,
            independent_labels=self.multi_label and config.class_activation == "by-task",
        )

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        z = self.labels_of(number, h, context) if number <= self.label_hops else None
        if z is not None and self.config.label_input == "layer":
            h, z = beside_every_head(h, z, self._heads_into(number)), None
        x = self.dropped(h)
        result = self.convolve(number, x, context, z)
        activated = number < self.num_layers or self.config.output_activation
        out = (norm_elu if activated else normalized)(self.norms[number - 1], result.out)
        if self.config.residual == "identity" and isinstance(x, Tensor) and x.shape == out.shape:
            out = x + out
        return result._replace(out=out)

    def _heads_into(self, number: int) -> int:
        """Heads side by side in the input of a layer; the features themselves have none."""
        return 1 if number == 1 else self.config.heads


def beside_every_head(h: Features, z: Tensor, heads: int) -> Features:
    """(h_v1 ‖ … ‖ h_vH), z_v → (h_v1 ‖ z_v ‖ … ‖ h_vH ‖ z_v): the authors' code.

    Since W₂ aggregates z too, a training node's own label returns to it through its neighbours' z,
    two hops away, although z_v itself leaves it out.
    """
    if not isinstance(h, Tensor):  # sparse features, which have no heads
        assert not isinstance(h, Columns)
        return Columns((h, z))
    per_head = h.unflatten(1, (heads, -1))
    return torch.cat([per_head, z.unsqueeze(1).expand(-1, heads, -1)], -1).flatten(1)
