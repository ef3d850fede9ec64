"""Deep: DeepGAT's attention in GCNII's body, at any depth. This project's own network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepgat import ops
from deepgat.errors import UserError
from deepgat.models.config import Config, layers, setting, share
from deepgat.models.network import Network, linear
from deepgat.models.outputs import Context
from deepgat.nn.attention import NeighborAttention
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.losses import OutputAndLayersLoss
from deepgat.nn.residual import IdentityMap
from deepgat.nn.scores import ClassScore, ScoreFactory
from deepgat.ops import Features


@dataclass(frozen=True)
class DeepConfig(Config):
    """Settings of :class:`Deep`."""

    num_layers: int = layers(16)
    hidden_channels: int = setting(64, "width of the layers", least=1)
    dropout: float = share(0.6, "share of the features and of every layer's output dropped")
    layer_dropout: float | None = setting(
        None, "share of the outputs between layers dropped; left out: dropout",
        kind=float, least=0, below=1,
    )  # fmt: skip
    node_dropout: float = share(0.0, "share of the nodes whose h⁰ is dropped as a whole")
    alpha: float = share(0.2, "α, share of h⁰ in every layer")
    theta: float = setting(0.5, "θ in β = log(θ/l + 1)", least=0)
    sharpness: float = setting(3.0, "τ, factor on the agreement of two class predictions", least=0)
    attention_from: int = setting(
        4,
        "the first layer that attends by class, counted as step_depth says",
        least=1,
    )
    step_depth: int = setting(
        16,
        "d: of more than d layers each does d/L of what a layer does, and L/d of them count as "
        "one; 0: all do and count as they are",
        least=0,
    )
    layer_loss: float = setting(0.3, "λ, weight of the loss of the layers before the last", least=0)
    unit_features: bool = setting(False, "divide every node's features by their sum")

    def check(self) -> None:
        if 0 < self.step_depth < min(self.num_layers, self.attention_from):
            raise UserError(
                f"attention_from is {self.attention_from}, but {self.num_layers} layers are steps "
                f"on the way of {self.step_depth}: expected 1 to {self.step_depth}, or step_depth=0"
            )

    def place(self, number: int) -> int:
        """⌈l min(1, d/L)⌉, the place of layer l among d layers."""
        depth, most = self.step_depth, self.num_layers
        return -(-number * depth // most) if 0 < depth < most else number

    def attends(self, number: int) -> bool:
        """Whether layer ``number``, from 1, attends by class."""
        return self.place(number) >= self.attention_from


class Deep(Network):
    r"""Deep: GCNII whose propagation attends by predicted class, in steps that shrink with depth.

    .. math::
        h^0 = \sigma(X W + b), \qquad q = \mathrm{softmax}(W_1^l h^{l-1} + b_1^l), \qquad
        e_{vu} = \exp(\tau \langle q_v, q_u \rangle), \qquad
        P_{vu} = \frac{e_{vu}}{\sqrt{d_v d_u}}, \quad d_v = \sum_{u \in N_v} e_{vu}

    .. math::
        F_l(h) = \sigma \big( ((1-\alpha) P h + \alpha h^0) ((1-\beta_l) I + \beta_l W^l) \big),
        \qquad h^l = h^{l-1} + \min(1, d/L) \, (F_l(h^{l-1}) - h^{l-1})

    β_l = log(θ/k + 1), where k = ⌈l min(1, d/L)⌉ is the place of layer l among d layers. Layers
    before ``attention_from`` weigh neighbours alike (τ = 0). q is computed without dropout and
    passes no gradient: only their own loss trains the predictions. The loss is
    CE(ŷ^L) + λ Σ_{l<L} γ̃(l) CE(ŷ^l), γ̃ the paper's γ divided by its sum. The logits are
    h^L W_c + b_c; σ is ReLU. Beyond d layers more is dropped between layers (``layer_dropout``).
    In training, ``node_dropout`` sets h⁰ of whole nodes to 0 and scales that of the others, so that
    every layer has to rely on neighbours. With τ = 0 and λ = 0, up to d layers are GCNII.

    Chen et al., ICML 2020 (GCNII); Kato et al., CANDARW 2024 (DeepGAT); Feng et al., NeurIPS 2020
    (dropped nodes). ``docs/deep.md`` has the reasons.

    Args: as in :class:`~deepgat.models.network.Network`; settings are :class:`DeepConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels]; layers
    [n, hidden_channels].
    """

    Config = DeepConfig
    config: DeepConfig

    def make_modules(self) -> None:
        self.loss = OutputAndLayersLoss(delta=0.4, weight=self.config.layer_loss)
        self.encoder = nn.Linear(self.in_channels, self.hidden_channels)
        self.classifier = nn.Linear(self.hidden_channels, self.out_channels)
        self.convs, self.maps = nn.ModuleList(), nn.ModuleList()
        for number in range(1, self.num_layers + 1):
            self.convs.append(NeighborAttention(
                self.hidden_channels, self.hidden_channels, edge_dim=self.edge_dim, bias=False,
                score=self.score(number), num_classes=self.out_channels, class_bias=True,
                normalization="symmetric", project=False,
            ))  # fmt: skip
            self.maps.append(IdentityMap(self.hidden_channels))

    def score(self, number: int) -> ScoreFactory:
        """The attention of layer ``number``, from 1."""
        return partial(
            ClassScore,
            independent_labels=self.multi_label,
            sharpness=self.config.sharpness,
            detached=True,
            attends=self.config.attends(number),
        )

    @property
    def step(self) -> float:
        """min(1, d/L)."""
        depth = self.config.step_depth
        return depth / self.num_layers if 0 < depth < self.num_layers else 1.0

    @property
    def layer_dropout(self) -> float:
        """Dropout p' between layers; the encoder and the readout keep ``dropout``.

        Steps of d/L average the noise of L/d layers and would leave next to none of it:
        p'/(1 − p') = √(L/d) · p/(1 − p).
        """
        p = self.config.layer_dropout
        if p is None:
            p = self.config.dropout
        if self.step == 1:
            return p
        odds = math.sqrt(self.num_layers / self.config.step_depth) * p / (1 - p)
        return odds / (1 + odds)

    def encode(self, x: Features) -> Tensor:
        h = F.relu(linear(self.encoder, self.dropped(x)))
        if not self.training or not self.config.node_dropout:
            return h
        kept: Tensor = ops.dropout(h.new_ones(h.size(0), 1), self.config.node_dropout, True)
        return h * kept

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        assert isinstance(h, Tensor)
        assert context.initial is not None
        beta = math.log(self.config.theta / self.config.place(number) + 1)
        result = self.convolve(number, self.dropped(h, self.layer_dropout), context, undropped=h)
        weight = cast(IdentityMap, self.maps[number - 1]).weight
        out = ops.residual_map(result.out, context.initial, weight, self.config.alpha, beta)
        return result._replace(out=out if self.step == 1 else self._step(h, out))

    def _step(self, h: Tensor, out: Tensor) -> Tensor:
        """h + step · (out − h), in float32 at least: bf16 would round small steps away."""
        dtype = torch.promote_types(out.dtype, torch.float32)
        return torch.lerp(h.to(dtype), out.to(dtype), self.step)

    def readout(self, hidden: Sequence[Tensor], initial: Tensor | None) -> Tensor:
        return linear(self.classifier, self.dropped(hidden[-1]))
