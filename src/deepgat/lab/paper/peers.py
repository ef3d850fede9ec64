"""The other systems: each against its own publication, and all of them at every depth.

All start from the shipped settings (``training/shipped``). ``publications`` runs the settings as
they are, with the repetitions they name. ``peers`` runs each system on every dataset at every
depth. A system with several candidates chooses between them on the validation nodes of every
repetition. ``contenders`` runs the best systems with many repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError
from deepgat.lab.experiments.spec import RunSpec, read_specs
from deepgat.lab.paper.depths import Candidates, Change, Repeats, depth_specs
from deepgat.models.registry import find_system
from deepgat.training.config_file import Published, read_config, shipped
from deepgat.training.portfolio import PORTFOLIO

PUBLICATIONS, PEERS, CONTEST = "publications", "peers", "contenders"

OURS, PRENORM, G2 = "DeepGAT, deep", "PreNorm (ours)", "G²-GraphSAGE"
PUBLISHED_GCNII, RETRAINED_GCNII = "GCNII, as published", "GCNII, trained the same way"

GCNII_GRAPHS = ("citeseer", "pubmed")
"""Datasets besides Cora for which GCNII's authors publish a setting."""

HETEROPHILOUS = ("texas", "wisconsin", "cornell", "chameleon", "squirrel", "actor")

AS_IT_IS = (Change(),)
SHALLOW = (Change(), Change({"dropout": 0.2}, {"lr": 0.003, "weight_decay": 0.0}))
"""Candidates of a system whose shipped setting is for few layers: that setting, and one with a
smaller learning rate, little dropout and no weight decay. Deep networks without residuals need the
latter: the noise of dropout grows from layer to layer, and decay shrinks a product of many
weights."""

_WIDE_DEEP = PORTFOLIO["wide-deep"]

ALL: Mapping[str, Candidates] = {
    "MLP": ("mlp-cora", SHALLOW),
    "GCN": ("gcn-cora", SHALLOW),
    "GCN, DropEdge": ("dropedge-cora", SHALLOW),
    "GCN, residual": ("residual-cora", SHALLOW),
    "GCN, PairNorm": ("pairnorm-cora", SHALLOW),
    "JKNet": ("jk-cora", SHALLOW),
    "GAT": ("gat-cora", SHALLOW),
    "GCNII": ("gcnii-cora", AS_IT_IS),
    G2: ("g2-cora", (Change(), Change(training={"lr": 0.003}))),
    "APPNP": ("appnp-cora", AS_IT_IS),
    "DAGNN": ("dagnn-cora", AS_IT_IS),
    "DeepGAT, paper": ("deepgat-cora", SHALLOW),
    "DeepGAT, authors": ("deepgat-cs", SHALLOW),
    OURS: ("deep-cora", AS_IT_IS),
    PRENORM: ("prenorm-photo", (Change(_WIDE_DEEP.settings, _WIDE_DEEP.training),)),
}
"""System → its shipped setting and its candidates. Systems whose settings are for deep networks
already run as they are. PreNorm has the recipe ``wide-deep`` of ``auto``. G² has a second
candidate, because it repeats one layer: a step at its own learning rate, .008, changes that layer
so much that 32 or more repetitions overflow. On :data:`HETEROPHILOUS` graphs, it has a setting for
each graph."""

_NEAR_OR_FAR = (Change({"alpha": 0.1}), Change({"alpha": 0.2}))

_AS_OURS = (Change(training=find_system("deep").training),)

CONTENDERS: Mapping[str, Candidates] = {
    OURS: ("deep-cora", AS_IT_IS),
    PUBLISHED_GCNII: ("gcnii-cora", AS_IT_IS),
    RETRAINED_GCNII: ("gcnii-cora", _AS_OURS),
    "GCNII": ("gcnii-cora", _NEAR_OR_FAR),
    "APPNP": ("appnp-cora", _NEAR_OR_FAR),
    "DAGNN": ("dagnn-cora", (Change(), Change({"unit_features": True}, {"weight_decay": 0.0}))),
}
"""The best systems: label → its shipped setting and its candidates. Ours is the default as it is.
GCNII, APPNP and DAGNN choose between two candidates on validation nodes; DAGNN's are its published
settings for citation and for coauthor networks. "GCNII, as published" has its authors' settings,
which differ on :data:`GCNII_GRAPHS`. "GCNII, trained the same way" has its authors' network and our
training: two stages, averaged weights, and our weight decay, patience and choice of the epoch."""
MANY = Repeats(public=10, splits=5, seeds=2)


class Publication(NamedTuple):
    """A shipped setting with a published score, and its runs."""

    name: str
    published: Published
    specs: list[RunSpec]


def publications(datasets: Sequence[str] | None = None) -> list[Publication]:
    """The shipped settings with a published score, on these datasets or on all."""
    wanted = None if datasets is None else {find_entry(name).key for name in datasets}
    found = []
    for name in shipped():
        config = read_config(name)
        if config.published is None or (wanted is not None and config.dataset not in wanted):
            continue
        found.append(Publication(name, config.published, read_specs(name)))
    if not found:
        raise UserError(
            f"no shipped setting with a published number is on {', '.join(datasets or ())}: see "
            "deepgat models"
        )
    return found


def peer_specs(**grid: Any) -> dict[str, list[RunSpec]]:
    """System → its runs; ``grid`` as in :func:`~deepgat.lab.paper.depths.depth_specs`."""
    own = {(G2, dataset): (f"g2-{dataset}", AS_IT_IS) for dataset in HETEROPHILOUS}
    return depth_specs(ALL, elsewhere=own, **grid)


def contender_specs(**grid: Any) -> dict[str, list[RunSpec]]:
    """System → its runs, with the candidates in :data:`CONTENDERS`."""
    own = {
        (label, dataset): (f"gcnii-{dataset}", CONTENDERS[label][1])
        for label in (PUBLISHED_GCNII, RETRAINED_GCNII)
        for dataset in GCNII_GRAPHS
    }
    return depth_specs(CONTENDERS, MANY, own, **grid)
