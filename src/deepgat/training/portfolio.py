"""The recipes that ``auto`` tries, and which of them a graph's looks speak for.

Every member is complete and good in a regime of its own. They and their order were chosen on Cora,
CiteSeer, PubMed, CS, Physics, Photo, Minesweeper, Chameleon (filtered), Texas, Wisconsin and
Cornell, with few and with many labels, by validation scores or on splits of their own;
``LEAST_NODES`` was not (``docs/auto.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepgat.training.looks import Looks
from deepgat.training.recipes import Recipe, recipe


@dataclass(frozen=True)
class Member:
    """A recipe of the portfolio."""

    name: str
    system: str
    meant_for: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    cost: float = 1.0
    """About what an epoch takes on a CPU, where that of ``deep`` takes 1."""
    in_little_time: Mapping[str, Any] = field(default_factory=dict)
    """Training settings that save time on a CPU and cost next to nothing."""

    def recipe(
        self,
        looks: Looks,
        training: Mapping[str, Any],
        *,
        frugal: bool = False,
        num_layers: int | None = None,
    ) -> Recipe:
        """Its recipe for this graph.

        Args:
            looks: what the graph is like.
            training: what the user has asked for.
            frugal: take ``in_little_time``, too.
            num_layers: of ``deep``, where the user has asked for it.
        """
        settings = dict(self.settings)
        if looks.uneven_scales:
            if self.system == "prenorm":
                settings["input_norm"] = "batch"
            if self.system == "grand":  # the sum of a row would be that of its largest columns
                settings["unit_features"] = False
        if self.system == "deep" and num_layers is not None:
            settings["num_layers"] = num_layers
        own = {**self.training, **(self.in_little_time if frugal else {})}
        return recipe(self.system, training={**own, **training}, **settings)


DROPPED = {"drop_edge": 0.2}
NORMED = {"hidden_channels": 256, "norm": "layer", "residual": "linear"}
FEW_LABELS = {"layer_dropout": 0.3, "node_dropout": 0.3}
BY_ERRORS = {"monitor": "loss-and-errors"}
FOR_GRAND = {"lr": 0.05, "epochs": 500, "patience": 100}
MEMBERS = (
    Member(
        "deep",
        "deep",
        "few labels, neighbours that agree",
        FEW_LABELS,
        in_little_time={"patience": 30},
    ),
    Member(
        "deep-dense",
        "deep",
        "few labels, many neighbours",
        {"dropout": 0.3},
        in_little_time={"patience": 30},
    ),
    Member(
        "deep-4",
        "deep",
        "few labels, in little time",
        {"num_layers": 4},
        {"patience": 20, "self_training": 0.0},
        cost=0.3,
    ),
    Member("wide", "prenorm", "many labels", cost=1.1),
    Member(
        "wide-light",
        "prenorm",
        "few labels, many neighbours, in little time",
        DROPPED,
        {"weight_decay": 5e-4, "patience": 100},
        cost=1.1,
    ),
    Member(
        "wide-attention",
        "prenorm",
        "many labels, neighbours that agree",
        {"conv": "deepgat", "num_layers": 4, **DROPPED},
        cost=0.6,
    ),
    Member(
        "wide-gat",
        "prenorm",
        "many labels, neighbours of which some matter",
        {"conv": "gat", "num_layers": 4, **DROPPED},
        cost=1.1,
    ),
    Member(
        "wide-gat-2",
        "prenorm",
        "the same, with many features",
        {
            "conv": "gat",
            "num_layers": 2,
            "hidden_channels": 256,
            "input_dropout": 0.3,
            "drop_edge": 0.5,
        },
        {"lr": 0.001},
        cost=1.1,
    ),
    Member(
        "wide-deep",
        "prenorm",
        "what matters is far away, or features tell little",
        {"num_layers": 16},
        {"weight_decay": 5e-4},
        cost=2.2,
    ),
    Member(
        "wide-shallow",
        "prenorm",
        "neighbours that disagree, few nodes",
        {"num_layers": 2},
        {"lr": 0.01},
        cost=0.3,
    ),
    Member(
        "gcn",
        "gcn",
        "many labels, neighbours that agree; in little time",
        {**NORMED, "num_layers": 2, "dropout": 0.3},
        {"lr": 0.001, "patience": 100, **BY_ERRORS},
        cost=0.4,
    ),
    Member(
        "gcn-sparse",
        "gcn",
        "the same, with many features",
        {**NORMED, "num_layers": 2, "dropout": 0.3, "drop_edge": 0.5, "unit_features": True},
        {"lr": 0.001, "patience": 100, **BY_ERRORS},
        cost=0.4,
    ),
    Member(
        "gcn-deep",
        "gcn",
        "neighbours that disagree",
        {**NORMED, "num_layers": 6, "dropout": 0.7},
        {"lr": 0.003, **BY_ERRORS},
        cost=1.2,
    ),
    Member(
        "grand",
        "grand",
        "few labels; averaged with the chosen recipe",
        {
            "num_layers": 5,
            "node_dropout": 0.0,
            "norm": "batch",
            "norm_eps": 1e-3,
            "input_dropout": 0.6,
        },
        FOR_GRAND,
        cost=0.8,
    ),
    Member(
        "grand-sparse",
        "grand",
        "the same, with many features",
        {
            "num_layers": 3,
            "node_dropout": 0.0,
            "project_first": True,
            "norm": "batch",
            "input_dropout": 0.8,
            "consistency": 2.0,
        },
        FOR_GRAND,
        cost=0.35,
    ),
    Member(
        "grand-wide",
        "grand",
        "many labels; averaged with the chosen recipe",
        {
            "num_layers": 2,
            "hidden_channels": 256,
            "node_dropout": 0.0,
            "norm": "batch",
            "norm_eps": 1e-3,
        },
        {**FOR_GRAND, "lr": 0.01},
        cost=3.0,
    ),
    Member(
        "grand-wide-sparse",
        "grand",
        "the same, with many features",
        {
            "num_layers": 1,
            "hidden_channels": 256,
            "node_dropout": 0.0,
            "project_first": True,
            "norm": "batch",
            "input_dropout": 0.8,
        },
        {**FOR_GRAND, "lr": 0.01},
        cost=3.0,
    ),
    Member("g2", "g2", "neighbours that disagree", training={"patience": 60}, cost=0.25),
    Member("plain", "gcn", "as published, in little time", cost=0.1),
    Member("jk", "jk", "as published, in little time", cost=0.1),
    Member("appnp", "appnp", "as published, in little time", cost=0.25),
    Member("mlp", "mlp", "edges that tell nothing", training={"patience": 50}, cost=0.05),
)
PORTFOLIO: Mapping[str, Member] = {member.name: member for member in MEMBERS}


CHEAP = ("plain", "jk", "appnp", "mlp")
"""Members that cost little and are tried on every graph."""


COMPANIONS = ("grand", "grand-sparse", "grand-wide", "grand-wide-sparse")
"""One of them is tried, and its mean with the chosen member is taken if both are level: an MLP on
averaged features errs on other nodes than a deep network does."""
MANY_FEATURES, MOST_DENSE = 1000, 2**24
"""Averages over several hops have no zeros: the most features, and numbers in all, that ``grand``
and ``grand-wide`` average. With more features a GCN does better with features that sum to 1."""
LEAST_NODES = 10_000
"""With more features and few labels a smaller graph has no companion: on Cora and CiteSeer it gains
on development splits and loses on the public test nodes."""


LIGHT: Mapping[str, str] = {"deep": "deep-4", "deep-dense": "wide-light"}
"""What takes the favourite's place on a CPU if quality is "fast"."""


def companion(looks: Looks, *, frugal: bool = False) -> str | None:
    """The companion that is tried on a graph with these looks, if one is."""
    many = not looks.few_labels
    if looks.unlike_neighbours:
        return None
    if many and (frugal or looks.poor_features or looks.homophily is None):
        return None
    if looks.features <= MANY_FEATURES:
        fits = looks.nodes * looks.features <= MOST_DENSE
        return ("grand-wide" if many else "grand") if fits else None
    if looks.uneven_scales:  # nothing makes columns of numbers alike before they are projected
        return None
    if many:
        return "grand-wide-sparse"
    return None if frugal or looks.nodes < LEAST_NODES else "grand-sparse"


def ranked(looks: Looks) -> list[str]:
    """Names of the members beside the cheap ones; the one that the looks speak for is the first."""
    if looks.unlike_neighbours and looks.nodes < 500:
        return ["wide-shallow", "wide", "g2", "wide-gat", "gcn", "deep"]
    if looks.poor_features and not looks.few_labels:
        return ["wide-deep", "wide", "wide-gat", "gcn", "wide-shallow", "deep"]
    if looks.few_labels and looks.many_neighbours:
        return ["deep-dense", "wide-light", "wide-attention", "gcn", "deep", "g2"]
    if looks.few_labels:
        return ["deep", "gcn", "wide-shallow"]
    if looks.unlike_neighbours:
        return ["gcn-deep", "wide", "gcn", "wide-deep", "deep", "wide-shallow", "wide-gat", "g2"]
    sums = looks.features > MANY_FEATURES and looks.feature_kind != "numbers"
    gcn = "gcn-sparse" if sums and not looks.uneven_scales else "gcn"
    return ["wide-gat", gcn, "wide-gat-2", "wide", "deep", "wide-attention", "wide-deep"]
