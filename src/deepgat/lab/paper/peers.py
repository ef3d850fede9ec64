"""The other systems: each beside its own publication, and all of them side by side at every depth.

All start from the shipped settings (``training/shipped``). ``publications`` runs them as they are,
over the repetitions they name. ``peers`` takes each system to every dataset and depth; most
choose, on the validation nodes of every repetition, between two :data:`CANDIDATES`, some have
:data:`OWN_CANDIDATES`. ``contenders`` takes the best of them, with many repetitions and candidates
of each system's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError
from deepgat.lab.experiments.spec import RunSpec, read_specs
from deepgat.lab.paper.depths import AS_IT_IS, Change, Repeats, depth_specs
from deepgat.training.config_file import ConfigFile, Published, read_config, shipped

PUBLICATIONS, PEERS, CONTEST = "publications", "peers", "contenders"

OURS, G2, PUBLISHED_GCNII = "DeepGAT, deep", "G²-GraphSAGE", "GCNII, as published"

GCNII_GRAPHS = ("citeseer", "pubmed")
"""Those beside Cora for which GCNII's authors name a setting."""

HETEROPHILOUS = ("texas", "wisconsin", "cornell", "chameleon", "squirrel", "actor")

SETTINGS: Mapping[str, str] = {
    "MLP": "mlp-cora",
    "GCN": "gcn-cora",
    "GCN, DropEdge": "dropedge-cora",
    "GCN, residual": "residual-cora",
    "GCN, PairNorm": "pairnorm-cora",
    "JKNet": "jk-cora",
    "GAT": "gat-cora",
    "GCNII": "gcnii-cora",
    G2: "g2-cora",
    "APPNP": "appnp-cora",
    "DAGNN": "dagnn-cora",
    "DeepGAT, paper": "deepgat-cora",
    "DeepGAT, authors": "deepgat-cs",
    OURS: "deep-cora",
}
"""Each system's name and the shipped setting it is taken from; on :data:`HETEROPHILOUS` graphs G²
has a setting for each."""

CANDIDATES = (Change(), Change({"dropout": 0.2}, {"lr": 0.003, "weight_decay": 0.0}))
"""What a system whose shipped setting has a few layers has to choose from: its own settings, which
suit those; and a smaller step with little dropout between the layers and no weight decay, which
deep networks without residuals need: dropout's noise grows from layer to layer, and decay shrinks a
product of many weights."""

OWN_CANDIDATES: Mapping[str, Sequence[Change]] = {
    **dict.fromkeys(("GCNII", "APPNP", "DAGNN", OURS), AS_IT_IS),
    G2: (Change(), Change(training={"lr": 0.003})),
}
"""Of systems whose own settings are for depth already: they are taken as they are. But G² repeats
one layer, and a step of its own rate, .008, changes that so much that 32 and more overflow."""


_NEAR_OR_FAR = (Change({"alpha": 0.1}), Change({"alpha": 0.2}))

CONTENDERS: Mapping[str, tuple[str, Sequence[Change]]] = {
    OURS: ("deep-cora", AS_IT_IS),
    "GCNII, trained as deep": ("deep-cora", (Change({"sharpness": 0.0, "layer_loss": 0.0}),)),
    PUBLISHED_GCNII: ("gcnii-cora", AS_IT_IS),
    "GCNII": ("gcnii-cora", _NEAR_OR_FAR),
    "APPNP": ("appnp-cora", _NEAR_OR_FAR),
    "DAGNN": (
        "dagnn-cora",
        (Change(), Change({"unit_features": True}, {"weight_decay": 0.0})),
    ),
}
"""The best systems, each with a shipped setting. Ours is the preset as it is; GCNII, APPNP and
DAGNN have two candidates each, to choose from on validation nodes: DAGNN's are its published
settings for citation networks and for the coauthor networks. One row is ours without class
attention or layer loss, which leaves GCNII with our way of training. GCNII stands there once more
with its authors' settings, which are others on :data:`GCNII_GRAPHS`."""
MANY = Repeats(public=10, splits=5, seeds=2)


@dataclass(frozen=True)
class Publication:
    """A shipped setting with the number that others printed for it."""

    name: str
    config: ConfigFile
    published: Published
    specs: tuple[RunSpec, ...]


def publications(datasets: Sequence[str] | None = None) -> list[Publication]:
    """The shipped settings that have a published number, on these datasets or on all."""
    wanted = None if datasets is None else {find_entry(name).key for name in datasets}
    found = []
    for name in shipped():
        config = read_config(name)
        if config.published is None or (wanted is not None and config.dataset not in wanted):
            continue
        found.append(Publication(name, config, config.published, tuple(read_specs(name))))
    if not found:
        raise UserError(
            f"no shipped setting with a published number is on {', '.join(datasets or ())}: see "
            "deepgat models"
        )
    return found


def peer_specs(**grid: Any) -> dict[str, list[RunSpec]]:
    """System → its runs, as :func:`~deepgat.lab.paper.depths.depth_specs` takes the grid."""
    configs = {label: read_config(setting) for label, setting in SETTINGS.items()}
    candidates = {label: OWN_CANDIDATES.get(label, CANDIDATES) for label in configs}
    own = {(G2, dataset): read_config(f"g2-{dataset}") for dataset in HETEROPHILOUS}
    return depth_specs(configs, candidates, elsewhere=own, **grid)


def contender_specs(**grid: Any) -> dict[str, list[RunSpec]]:
    """System → its runs, each with the candidates of its own that :data:`CONTENDERS` names."""
    configs = {label: read_config(setting) for label, (setting, _) in CONTENDERS.items()}
    candidates = {label: changes for label, (_, changes) in CONTENDERS.items()}
    own = {(PUBLISHED_GCNII, dataset): read_config(f"gcnii-{dataset}") for dataset in GCNII_GRAPHS}
    return depth_specs(configs, candidates, MANY, own, **grid)
