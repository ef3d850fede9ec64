"""The other systems: each beside its own publication, and all of them side by side at every depth.

Both start from the shipped settings (:mod:`deepgat.config`). ``publications`` runs them as they
are, over the repetitions they name. ``peers`` takes the one model of each system to every dataset
and depth; how it is trained is chosen in every repetition, on validation nodes, from the same
:data:`CANDIDATES` for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deepgat.config import Config, Published, read_config, shipped
from deepgat.data.entries import find_entry
from deepgat.errors import UserError, unknown_name
from deepgat.experiments.spec import DataSpec, RunSpec, read_specs

PUBLICATIONS, PEERS = "publications", "peers"
TARGETS = (PUBLICATIONS, PEERS)

SETTINGS: Mapping[str, str] = {
    "MLP": "mlp-cora",
    "GCN": "gcn-cora",
    "GCN, DropEdge": "dropedge-cora",
    "GCN, residual": "residual-cora",
    "GCN, PairNorm": "pairnorm-cora",
    "JKNet": "jk-cora",
    "GAT": "gat-cora",
    "GCNII": "gcnii-cora",
    "G²-GraphSAGE": "g2-texas",
    "APPNP": "appnp-cora",
    "DAGNN": "dagnn-cora",
    "DeepGAT, paper": "deepgat-cora",
    "DeepGAT, authors": "deepgat-cs",
    "DeepGAT, deep": "deep-cora",
}
"""Each system's name and the shipped setting it is taken from."""

CANDIDATES: tuple[Mapping[str, float], ...] = ({}, {"lr": 0.003, "weight_decay": 5e-4})
"""Training settings to choose from: the system's own, which suit the depth it was published at,
and a smaller step with the usual decay of citation networks."""

DATASETS = ("cora", "citeseer", "pubmed", "cs", "physics")
HETEROPHILOUS = ("texas", "wisconsin", "cornell", "chameleon", "squirrel", "actor")
DEPTHS = (2, 4, 8, 16, 32, 64, 128)
STORED_SPLITS = 10
QUICK_DATASETS, QUICK_DEPTHS, QUICK_EPOCHS = ("csbm",), (2, 8), 30


@dataclass(frozen=True)
class Publication:
    """A shipped setting with the number that others printed for it."""

    name: str
    config: Config
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


def peer_specs(
    *,
    quick: bool = False,
    datasets: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    splits: int | None = None,
    systems: Sequence[str] | None = None,
) -> dict[str, list[RunSpec]]:
    """System → its runs: every dataset at every depth, repeated over seeds and splits.

    Every repetition has one run for each of :data:`CANDIDATES` (``quick``: the first alone).
    A dataset with a public split is repeated over seeds; one with stored splits over those; the
    rest over random splits of 20 and 30 nodes per class, with each seed.
    """
    if splits is not None and splits < 1:
        raise UserError(f"splits is {splits}: expected 1 or more")
    names = [find_entry(n).key for n in datasets or (QUICK_DATASETS if quick else DATASETS)]
    depths = layers or (QUICK_DEPTHS if quick else DEPTHS)
    wanted = set(SETTINGS) if systems is None else {_label(name) for name in systems}
    found: dict[str, list[RunSpec]] = {}
    for label, setting in SETTINGS.items():
        if label not in wanted:
            continue
        config = read_config(setting)
        found[label] = [
            _spec(config, dataset, split, seed, depth, quick, candidate)
            for dataset in dict.fromkeys(names)
            for depth in sorted(set(depths))
            for split, seed in _repeats(dataset, seeds, splits, quick)
            for candidate in (CANDIDATES[:1] if quick else CANDIDATES)
        ]
    return found


def _label(name: str) -> str:
    """The system of a name that may be typed without capitals and superscripts."""
    known = {label.lower().replace("²", "2"): label for label in SETTINGS}
    typed = name.strip().lower().replace("²", "2")
    if typed not in known:
        raise unknown_name("system", name, known)
    return known[typed]


def _spec(
    config: Config,
    dataset: str,
    split: str,
    seed: int,
    layers: int,
    quick: bool,
    candidate: Mapping[str, float],
) -> RunSpec:
    short = {"epochs": QUICK_EPOCHS} if quick else {}
    there = replace(
        config,
        dataset=dataset,
        model={**config.model, "layers": layers},
        training={**config.training, **candidate, **short, "seed": seed},
    )
    model, training = there.recipe()
    return RunSpec(DataSpec(dataset, split), model, training)


def _repeats(
    dataset: str, seeds: Sequence[int] | None, splits: int | None, quick: bool
) -> list[tuple[str, int]]:
    usual = find_entry(dataset).default_split
    public = usual == "public"
    if quick:
        return [(usual, seed) for seed in seeds or (0,)]
    if public:
        return [(usual, seed) for seed in seeds or (0, 1, 2)]
    count = splits or (STORED_SPLITS if usual.startswith("stored") else 3)
    stem, ending = ("stored", "") if usual.startswith("stored") else ("random", ":20/30")
    return [(f"{stem}:{k}{ending}", seed) for seed in seeds or (0,) for k in range(count)]
