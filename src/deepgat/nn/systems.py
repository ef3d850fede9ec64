"""The systems the library has, with their equations and papers: what ``deepgat models`` lists."""

from __future__ import annotations

from dataclasses import dataclass

LABEL_PROPAGATION = "label-propagation"
"""The one system without weights; :func:`deepgat.data.label_propagation` computes it."""


@dataclass(frozen=True)
class System:
    """One system: how to ask for it, what it computes, and where it is from."""

    name: str
    """As ``--model`` takes it."""
    equation: str
    paper: str
    note: str = ""


SYSTEMS: tuple[System, ...] = (
    System(
        "deepgat",
        "h' = σ(W Σ_u α_vu h_u), α = softmax <ŷ_v, ŷ_u>, ŷ = softmax(W₁(h ‖ z))",
        "Kato et al., Deep Graph Attention Networks, CANDARW 2024",
        "presets paper and authors; scores dp, sd",
    ),
    System(
        "gat",
        "h' = σ(W Σ_u α_vu h_u), α = softmax LeakyReLU(<w, Wh_v ‖ Wh_u>)",
        "Veličković et al., Graph Attention Networks, ICLR 2018",
        "scores ad, dp, sd",
    ),
    System(
        "gcn",
        "h' = σ(P h W), P = 1/|N_v| or 1/√(|N_v||N_u|)",
        "Kipf and Welling, Semi-Supervised Classification with GCNs, ICLR 2017",
        "scores row, symmetric; preset standard has it as most users know it",
    ),
    System(
        "sage",
        "h' = σ(W mean_{u∈N_v∖v} h_u + W' h_v + b)",
        "Hamilton et al., Inductive Representation Learning on Large Graphs, NeurIPS 2017",
    ),
    System(
        "oracle",
        "DeepGAT with o(v,u) = 1 if y_v = y_u else 0 in place of <ŷ_v, ŷ_u>",
        "Kato et al., CANDARW 2024",
        "an upper bound: it sees every label",
    ),
    System(
        LABEL_PROPAGATION,
        "rm_diag(Â^k) Y",
        "Zhu and Ghahramani, Learning from Labeled and Unlabeled Data with LP, 2002",
        "layers is k; nothing is trained",
    ),
    System("mlp", "h' = σ(h W + b): no edges", "—"),
    System(
        "residual",
        "h' = h + σ(P h W)",
        "He et al., Deep Residual Learning, CVPR 2016; Kipf and Welling, ICLR 2017",
    ),
    System(
        "pairnorm",
        "h' = σ(s x̃/‖x̃_v‖), x̃ = PhW − mean_v (norm=pairnorm-si); s√n x̃/‖x̃‖_F (pairnorm)",
        "Zhao and Akoglu, PairNorm: Tackling Oversmoothing in GNNs, ICLR 2020",
    ),
    System(
        "pairnorm-input",
        "X ← s√n X̃/‖X̃‖_F, X̃ = X − mean_v, before the first layer",
        "as Kato et al. print PairNorm, CANDARW 2024",
    ),
    System(
        "dropedge",
        "P of the edges left after each is dropped with probability p, anew every epoch",
        "Rong et al., DropEdge: Towards Deep GCNs on Node Classification, ICLR 2020",
    ),
    System(
        "jk",
        "ŷ = W_c (h¹ ‖ … ‖ h^L), or their maximum, or LSTM attention over them",
        "Xu et al., Representation Learning on Graphs with Jumping Knowledge, ICML 2018",
    ),
    System(
        "gcnii",
        "h' = σ(((1−α)Ph + αh⁰)((1−β)I + βW)), β = log(θ/l + 1)",
        "Chen et al., Simple and Deep Graph Convolutional Networks, ICML 2020",
    ),
    System(
        "g2",
        "h' = (1−τ)⊙h + τ⊙F(h), τ = tanh(mean_u |F(h)_v − F(h)_u|^p), F = σ(conv)",
        "Rusch et al., Gradient Gating for Deep Multi-Rate Learning on Graphs, ICLR 2023",
        "F is GraphSAGE's layer; --preset g2 with --model gcn, gat or deepgat for others",
    ),
    System(
        "appnp",
        "h⁰ = MLP(X), h' = (1−α)Ph + αh⁰, ŷ = h^K",
        "Gasteiger et al., Predict then Propagate, ICLR 2019",
    ),
    System(
        "dagnn",
        "h⁰ = MLP(X), h' = Ph, ŷ = Σ_k sigmoid(<s, h^k> + b) h^k",
        "Liu et al., Towards Deeper Graph Neural Networks, KDD 2020",
    ),
    System(
        "deep",
        "GCNII with P_vu = e_vu/√(d_v d_u), e_vu = exp(τ<q_v, q_u>), q = softmax(ŷ^l)",
        "this project",
        "DeepGAT's attention in GCNII's body, a class head per layer, two stages of training; what "
        "deepgat train does when nothing is named; τ=0 and λ=0 are GCNII",
    ),
)
