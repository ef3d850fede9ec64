"""DeepGAT with true classes in the attention: what perfect predictions would give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from deepgat.models.config import Config, layers, setting, share
from deepgat.models.deepgat import DeepGAT
from deepgat.nn.norms import NORMS
from deepgat.nn.scores import OracleScore, ScoreFactory


@dataclass(frozen=True)
class OracleConfig(Config):
    """Settings of :class:`Oracle`; they mean what they mean in DeepGAT."""

    num_layers: int = layers(2)
    hidden_channels: int = setting(8, "D, width of each head in hidden layers", least=1)
    heads: int = setting(8, "H, heads in hidden layers, concatenated", least=1)
    output_heads: int = setting(1, "heads of the last layer, averaged", least=1)
    score: str = setting("sum", "α = o/Σo, or softmax(o)", ("sum", "softmax"))
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
    loss_layers: str = setting(
        "from-1", "loss terms l = 1..L, or l = 0..L with the raw features' prediction",
        ("from-1", "from-0"),
    )  # fmt: skip
    delta: float = setting(0.4, "δ in γ(l) = δ/(l+δ) + 1, the weight of layer l's loss", least=0)


class Oracle(DeepGAT):
    r"""DeepGAT with the true agreement o(v, u) = [y_v = y_u] in place of ⟨ŷ_v, ŷ_u⟩.

    An upper bound to compare with, not a model: it looks at every label, test nodes included. Its
    layers still predict classes, and are trained to; only the attention ignores them.
    Kato et al., *Deep Graph Attention Networks*, CANDARW 2024, Lemma 2.

    Args: as in :class:`DeepGAT`; settings are :class:`OracleConfig`'s.

    Shapes: as in :class:`DeepGAT`; pass ``labels`` [n] to :meth:`forward`.
    """

    Config = OracleConfig  # type: ignore[assignment]
    config: OracleConfig  # type: ignore[assignment]
    needs_labels = True

    def score(self) -> ScoreFactory:
        return partial(OracleScore, inside_softmax=self.config.score == "softmax")
