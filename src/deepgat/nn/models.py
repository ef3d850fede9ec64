"""The systems of the paper by name: each is the one stack under other settings."""

from __future__ import annotations

from typing import Any

from deepgat.nn.build import stack_arguments
from deepgat.nn.presets import model_settings
from deepgat.nn.stack import AttentionStack


class _Named(AttentionStack):
    model: str

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        layers: int | None = None,
        *,
        score: str | None = None,
        preset: str | None = None,
        multi_label: bool = False,
        **choices: Any,
    ) -> None:
        if layers is not None:
            choices["layers"] = layers
        settings = model_settings(self.model, preset, score, **choices)
        super().__init__(in_channels, num_classes, **stack_arguments(settings, multi_label))


class DeepGAT(_Named):
    r"""Deep Graph Attention Network (Algorithm 1): neighbours attend by predicted class.

    For l = 1 … L, per head:

    .. math::
        \hat y^{l-1}_v = \mathrm{softmax}(W_1^l (h^{l-1}_v \Vert z_v)), \quad
        \alpha_{vu} = \mathrm{softmax}_{u \in N_v} \langle \hat y_v, \hat y_u \rangle, \quad
        h^l_v = \sigma(W_2^l \textstyle\sum_u \alpha_{vu} h^{l-1}_u)

    Args:
        in_channels: d, number of features.
        num_classes: C, classes, or independent labels with ``multi_label``.
        layers: L; when left out, 2 or what the preset says.
        score: "dp" or "sd".
        preset: "paper", "authors", or another body of :data:`~deepgat.nn.PRESETS`; any other
            field of :class:`~deepgat.nn.ModelSettings` may be given by name and wins.
    """

    model = "deepgat"


class GAT(_Named):
    r"""Graph Attention Network (Algorithm 2): h'_v = σ(W Σ_u α_vu h_u), scores "ad", "dp", "sd".

    With "ad" the scores are those of the original GAT and of ``torch_geometric.nn.GATConv``.
    Arguments as in :class:`DeepGAT`.
    """

    model = "gat"


class GCN(_Named):
    r"""Graph Convolutional Network: α_vu = 1/|N_v| ("row") or 1/sqrt(|N_v| |N_u|) ("symmetric").

    Arguments as in :class:`DeepGAT`.
    """

    model = "gcn"


class OracleGAT(_Named):
    r"""DeepGAT with the true agreement o(v, u) in place of the predicted score: an upper bound.

    ``score="sum"``: α = o/Σo; ``score="softmax"``: α = softmax(o). Pass ``labels`` to forward.
    Arguments as in :class:`DeepGAT`.
    """

    model = "oracle"


class GCNII(_Named):
    r"""GCNII: initial residual and identity mapping.

    .. math::
        h^l = \sigma \big( ((1-\alpha) P h^{l-1} + \alpha h^0) ((1-\beta_l) I + \beta_l W^l) \big),
        \quad \beta_l = \log(\theta / l + 1), \quad h^0 = \sigma(X W + b)

    ``initial_residual`` is α, ``identity_map`` θ. Arguments as in :class:`DeepGAT`.
    """

    model = "gcnii"


class G2(_Named):
    r"""G², gradient gating around GraphSAGE's layer; for another's see ``preset="g2"``.

    See :class:`~deepgat.nn.layers.GatedLayer`; ``gate_power`` is p. Arguments as in
    :class:`DeepGAT`.
    """

    model = "g2"
