"""The systems by name: what each computes, its network, how it is trained, and its paper.

To add a system, write its file beside this one and add an entry here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from deepgat.errors import UserError, unknown_name
from deepgat.machine import free_memory
from deepgat.models.appnp import APPNP
from deepgat.models.config import Config
from deepgat.models.dagnn import DAGNN
from deepgat.models.deep import Deep
from deepgat.models.deep_oracle import DeepOracle
from deepgat.models.deepgat import DeepGAT
from deepgat.models.ensemble import Ensemble
from deepgat.models.g2 import G2
from deepgat.models.gat import GAT
from deepgat.models.gcn import GCN
from deepgat.models.gcnii import GCNII
from deepgat.models.grand import GRAND
from deepgat.models.jk import JK
from deepgat.models.label_propagation import LabelPropagation
from deepgat.models.mlp import MLP
from deepgat.models.network import Network
from deepgat.models.oracle import Oracle
from deepgat.models.prenorm import PreNorm
from deepgat.models.sage import SAGE

DEFAULT = "deep"
"""The system that is trained when none is named."""
LABEL_PROPAGATION = "label-propagation"
"""The one system that is not trained."""
ENSEMBLE = "ensemble"
"""What ``auto`` makes of several trained networks; no one names it to train it."""

PLAINLY_SMALL = 2**26
"""Numbers in square matrices of a network that need not be counted."""

USUAL: Mapping[str, Any] = {"lr": 0.01, "weight_decay": 5e-4, "epochs": 1000}
"""The training of systems whose paper asks for nothing else."""
_GCNII: Mapping[str, Any] = {**USUAL, "weight_decay_conv": 0.01, "epochs": 1500}
_DEEP: Mapping[str, Any] = {
    **_GCNII,
    "decay_nodes": 1500,
    "decay_nodes_heads": 3500,
    "epochs": 3000,
    "patience": 50,
    "monitor": "loss-and-errors",
    "ema": 0.99,
    "self_training": 1.0,
}

AUTHORS: Mapping[str, Any] = {
    "norm": "layer",
    "bias": True,
    "output_activation": False,
    "attention_dropout": 0.6,
}
AUTHORS_LABELS: Mapping[str, Any] = {
    "label_input": "layer",
    "first_labels": "neighbor-counts",
    "loss_layers": "from-0",
}
PAPER: Mapping[str, Any] = {"dropout": 0.6, "unit_features": True}


@dataclass(frozen=True)
class System:
    """One system: how to ask for it, what it computes, and where it is from."""

    name: str
    """As ``--model`` takes it."""
    network: type[Network] | type[LabelPropagation]
    equation: str
    paper: str
    note: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Where it departs from the defaults of its network."""
    training: Mapping[str, Any] = field(default_factory=lambda: USUAL)
    """Fields of :class:`~deepgat.training.settings.TrainSettings`."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Named sets of settings: the two readings of the DeepGAT paper. The first is the default."""

    @property
    def config(self) -> Config:
        """Its settings when nothing is named."""
        return self.network.Config(**self.settings)

    @property
    def sees_every_label(self) -> bool:
        """Whether it reads the labels of test nodes too, so that it predicts nothing."""
        return getattr(self.network, "needs_labels", False)


_SYSTEMS = (
    System(
        "deep",
        Deep,
        "GCNII with P_vu = e_vu/√(d_v d_u), e_vu = exp(τ<q_v, q_u>), q = softmax(ŷ^l)",
        "this project",
        "DeepGAT's attention in GCNII's body, a class head per layer, two stages of training; "
        "auto's favourite where labels are few",
        training=_DEEP,
    ),
    System(
        "prenorm",
        PreNorm,
        "h' = h + σ(conv(ν(h)) + W' ν(h)), ν layer normalisation",
        "this project, after Li et al., DeeperGCN, 2020",
        "wide, for graphs with many labels or dissimilar neighbours; conv=deepgat, gat or gcn",
        training={
            "lr": 0.003,
            "weight_decay": 5e-3,
            "epochs": 1000,
            "patience": 60,
            "monitor": "loss-and-errors",
        },
    ),
    System(
        "deepgat",
        DeepGAT,
        "h' = σ(W Σ_u α_vu h_u), α = softmax <ŷ_v, ŷ_u>, ŷ = softmax(W₁(h ‖ z))",
        "Kato et al., Deep Graph Attention Networks, CANDARW 2024",
        "presets paper and authors; scores dp, sd",
        presets={
            "paper": PAPER,
            "authors": {
                **AUTHORS,
                **AUTHORS_LABELS,
                "sd_scale": "sqrt-output-width",
                "class_activation": "softmax",
            },
        },
    ),
    System(
        "gat",
        GAT,
        "h' = σ(W Σ_u α_vu h_u), α = softmax LeakyReLU(<w, Wh_v ‖ Wh_u>)",
        "Veličković et al., Graph Attention Networks, ICLR 2018",
        "scores ad, dp, sd; presets paper and authors: Algorithm 2 of the DeepGAT paper",
        training={**USUAL, "lr": 0.005},
        presets={
            "published": {},
            "paper": {
                **PAPER,
                "score": "dp",
                "bias": False,
                "output_activation": True,
                "attention_dropout": 0.0,
            },
            "authors": {**AUTHORS, "score": "dp", "sd_scale": "sqrt-output-width"},
        },
    ),
    System(
        "gcn",
        GCN,
        "h' = σ(P h W + b), P = 1/√(|N_v||N_u|) or 1/|N_v|",
        "Kipf and Welling, Semi-Supervised Classification with GCNs, ICLR 2017",
    ),
    System(
        "sage",
        SAGE,
        "h' = σ(W mean_{u∈N_v∖v} h_u + W' h_v + b)",
        "Hamilton et al., Inductive Representation Learning on Large Graphs, NeurIPS 2017",
    ),
    System("mlp", MLP, "h' = σ(h W + b): no edges", "—"),
    System(
        "residual",
        GCN,
        "h' = h + σ(P h W + b)",
        "He et al., Deep Residual Learning, CVPR 2016; Kipf and Welling, ICLR 2017",
        settings={"residual": "identity"},
    ),
    System(
        "pairnorm",
        GCN,
        "h' = σ(s x̃/‖x̃_v‖), x̃ = PhW − mean_v (norm=pairnorm-si); s√n x̃/‖x̃‖_F (pairnorm)",
        "Zhao and Akoglu, PairNorm: Tackling Oversmoothing in GNNs, ICLR 2020",
        settings={"norm": "pairnorm-si"},
    ),
    System(
        "pairnorm-input",
        GCN,
        "X ← s√n X̃/‖X̃‖_F, X̃ = X − mean_v, before the first layer",
        "as Kato et al. print PairNorm, CANDARW 2024",
        settings={"feature_norm": "pairnorm"},
    ),
    System(
        "dropedge",
        GCN,
        "P of the edges left after each is dropped with probability p, anew every epoch",
        "Rong et al., DropEdge: Towards Deep GCNs on Node Classification, ICLR 2020",
        settings={"drop_edge": 0.5},
    ),
    System(
        "jk",
        JK,
        "ŷ = W_c (h¹ ‖ … ‖ h^L), or their maximum, or LSTM attention over them",
        "Xu et al., Representation Learning on Graphs with Jumping Knowledge, ICML 2018",
    ),
    System(
        "gcnii",
        GCNII,
        "h' = σ(((1−α)Ph + αh⁰)((1−β)I + βW)), β = log(θ/l + 1)",
        "Chen et al., Simple and Deep Graph Convolutional Networks, ICML 2020",
        "conv=deepgat puts class attention into it",
        training=_GCNII,
    ),
    System(
        "g2",
        G2,
        "h' = (1−τ)⊙h + τ⊙F(h), τ = tanh(mean_u |F(h)_v − F(h)_u|^p), F = σ(conv)",
        "Rusch et al., Gradient Gating for Deep Multi-Rate Learning on Graphs, ICLR 2023",
        "F is GraphSAGE's layer; conv=gcn, gat or deepgat for others",
        training={
            "lr": 0.003,
            "weight_decay": 0.01,
            "epochs": 200,
            "patience": 200,
            "monitor": "val-f1",
        },
    ),
    System(
        "appnp",
        APPNP,
        "h⁰ = MLP(X), h' = (1−α)Ph + αh⁰, ŷ = h^K",
        "Gasteiger et al., Predict then Propagate, ICLR 2019",
        training={**USUAL, "weight_decay": 1e-3},
    ),
    System(
        "dagnn",
        DAGNN,
        "h⁰ = MLP(X), h' = Ph, ŷ = Σ_k sigmoid(<s, h^k> + b) h^k",
        "Liu et al., Towards Deeper Graph Neural Networks, KDD 2020",
        training={**USUAL, "weight_decay": 5e-3},
    ),
    System(
        "grand",
        GRAND,
        "ŷ = MLP(Σ_k P^k (z ⊙ X)/(K+1)), z ~ Bernoulli per node; S draws pulled to their mean",
        "Feng et al., Graph Random Neural Networks, NeurIPS 2020",
        "with views=1, consistency=0 and node_dropout=0 an MLP on S²GC's features",
        training={**USUAL, "epochs": 5000, "patience": 200, "monitor": "loss-and-errors"},
    ),
    System(
        "oracle",
        Oracle,
        "DeepGAT with o(v,u) = 1 if y_v = y_u else 0 in place of <ŷ_v, ŷ_u>",
        "Kato et al., CANDARW 2024",
        "an upper bound: it sees every label",
        presets={"paper": PAPER, "authors": {**AUTHORS, **AUTHORS_LABELS}},
    ),
    System(
        "deep-oracle",
        DeepOracle,
        "deep with e_vu = exp(τ[c_v = c_u]), c_v = y_v with probability p, else another class",
        "this project",
        "what better attention would be worth: it sees every label; right is p",
        training=_DEEP,
    ),
    System(
        LABEL_PROPAGATION,
        LabelPropagation,
        "rm_diag(Â^k) Y",
        "Zhu and Ghahramani, Learning from Labeled and Unlabeled Data with LP, 2002",
        "num_layers is k; nothing is trained",
        training={},
    ),
)
_ENSEMBLE = System(
    ENSEMBLE,
    Ensemble,
    "p = Σ_m w_m softmax(ŷ^(m)/T_m)",
    "Caruana et al., Ensemble Selection from Libraries of Models, ICML 2004",
)
SYSTEMS: Mapping[str, System] = {system.name: system for system in _SYSTEMS}
"""Name → system, the default first.

APPNP's weight decay, of 5e-4, 1e-3 and 5e-3, is the best on the validation nodes of Cora and of
CiteSeer (5 seeds, results/search.jsonl.gz)."""


def find_system(name: str | None = None) -> System:
    """The system of this name; left out, the default."""
    if name is None:
        return SYSTEMS[DEFAULT]
    if name == ENSEMBLE:
        return _ENSEMBLE
    if name not in SYSTEMS:
        raise unknown_name("model", name, SYSTEMS)
    return SYSTEMS[name]


def estimate_parameters(settings: Config, build: Callable[[Config], Network]) -> float:
    """About how many numbers the state of ``build(settings)`` holds; infinity: beyond counting.

    Networks of a few layers are built without memory (on torch's device "meta"); in L the count is
    a polynomial of degree 2 at most, since layers are alike beyond those that see labels.
    """
    plain = settings.to_dict()
    depth, first = plain["num_layers"], max(6, plain.get("label_hops", 0) + 2)

    def count(layers: int) -> int:
        with torch.device("meta"):
            network = build(settings.with_changes({"num_layers": layers}))
        return sum(tensor.numel() for tensor in network.state_dict().values())

    try:
        if depth <= first + 4:
            return count(depth)
        low, middle, high = count(first), count(first + 2), count(first + 4)
    except (RuntimeError, OverflowError, TypeError):  # of torch: sizes beyond 64 bits, or negative
        return math.inf
    steps = (depth - first) / 2
    return low + steps * (middle - low) + steps * (steps - 1) / 2 * (high - 2 * middle + low)


def check_size(
    settings: Config, in_channels: int, out_channels: int, build: Callable[[Config], Network]
) -> None:
    """Refuse a network that could not be trained here; costs nothing where it is plainly small."""
    plain = settings.to_dict()
    width = plain["hidden_channels"] * plain.get("heads", 1) * plain.get("output_heads", 1)
    if plain["num_layers"] * (in_channels + out_channels + width) ** 2 > PLAINLY_SMALL:
        check_memory(estimate_parameters(settings, build), 4)


def check_memory(parameters: float, copies: int) -> None:
    """Refuse a network that memory cannot hold; four copies to train it: gradients, Adam's two."""
    needed, free = 4.0 * copies * parameters, free_memory(torch.device("cpu"))
    if needed > free:
        raise UserError(
            f"the network would have {parameters:.3g} parameters and take {needed / 2**30:,.0f} "
            f"GiB, but {free / 2**30:,.0f} GiB of memory are free: choose fewer or narrower "
            "layers (num_layers, hidden_channels, heads)"
        )


def build_network(
    system: str,
    settings: Config,
    in_channels: int,
    out_channels: int,
    *,
    multi_label: bool = False,
    edge_dim: int | None = None,
) -> Network:
    """The network of a system with these settings, its weights drawn from torch's generator."""
    network = find_system(system).network
    if not issubclass(network, Network):
        raise UserError(f"{system} has no weights: there is nothing to train or save")
    shared: dict[str, Any] = {"multi_label": multi_label, "edge_dim": edge_dim or None}
    if system == ENSEMBLE:

        def build(name: str, chosen: Mapping[str, Any]) -> Network:
            config = find_system(name).config.with_changes(chosen, f"setting of {name}")
            return build_network(
                name, config, in_channels, out_channels, multi_label=multi_label, edge_dim=edge_dim
            )

        shared["build"] = build
    return network(in_channels, out_channels=out_channels, **shared, **settings.to_dict())
