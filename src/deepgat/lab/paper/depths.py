"""Systems at every depth: a list of runs per system, over datasets, depths and repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from deepgat.data.catalogue.entries import STORED_SPLITS, find_entry
from deepgat.errors import UserError, unknown_name
from deepgat.lab.experiments.spec import DataSpec, RunSpec
from deepgat.training.config_file import ConfigFile

DATASETS = ("cora", "citeseer", "pubmed", "cs", "physics")
DEPTHS = (2, 4, 8, 16, 32, 64, 128)
QUICK_DATASETS, QUICK_DEPTHS, QUICK_EPOCHS = ("csbm",), (2, 8), 30


class Change(NamedTuple):
    """Changed settings of a system and of its training."""

    settings: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}

    def of(self, config: ConfigFile) -> ConfigFile:
        return config.changed(self.settings, self.training)


class Repeats(NamedTuple):
    """The default number of repetitions of a run."""

    public: int
    """Seeds on a public split."""
    splits: int
    """Random splits, for datasets without public or stored ones."""
    seeds: int
    """Seeds on each random or stored split."""
    stored: int = STORED_SPLITS
    """Stored splits, for datasets that have them; the default is all."""


FEW = Repeats(public=3, splits=3, seeds=1)
AS_IT_IS = (Change(),)


def depth_specs(
    configs: Mapping[str, ConfigFile],
    candidates: Mapping[str, Sequence[Change]] | None = None,
    repeats: Repeats = FEW,
    elsewhere: Mapping[tuple[str, str], ConfigFile] | None = None,
    *,
    quick: bool = False,
    datasets: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    splits: int | None = None,
    systems: Sequence[str] | None = None,
    epochs: int | None = None,
) -> dict[str, list[RunSpec]]:
    """System → its runs on every dataset at every depth, repeated over seeds and splits.

    Every repetition has one run for each of the system's candidates; a system without candidates
    has one run. A dataset with a public split is repeated over seeds. Others are repeated over
    their stored splits, or over random splits with 20 and 30 nodes per class, with each seed.

    Args:
        configs: system → its configuration.
        candidates: system → changes, from which validation nodes choose.
        repeats: how many seeds and splits.
        elsewhere: (system, dataset) → a configuration that replaces the system's usual one and
            its candidates there.
        quick: only the first candidate, on a small graph, with few epochs and no repetitions.
        datasets: names; if None, :data:`DATASETS`.
        layers: depths; if None, :data:`DEPTHS`.
        seeds: if None, as many as ``repeats`` says.
        splits: if None, as many as ``repeats`` says.
        systems: labels, in any case and without superscripts; if None, all.
        epochs: the most epochs of a run; if None, the system's own.
    """
    if splits is not None and splits < 1:
        raise UserError(f"splits is {splits}: expected 1 or more")
    if epochs is not None and epochs < 1:
        raise UserError(f"epochs is {epochs}: expected 1 or more")
    short = {} if epochs is None else {"epochs": epochs}
    if quick:
        short = {"epochs": QUICK_EPOCHS, **short}
    names = [find_entry(n).key for n in datasets or (QUICK_DATASETS if quick else DATASETS)]
    depths = layers or (QUICK_DEPTHS if quick else DEPTHS)
    wanted = set(configs) if systems is None else {_label(name, configs) for name in systems}
    often = repeats if splits is None else repeats._replace(splits=splits, stored=splits)
    among = {
        label: (candidates or {}).get(label, AS_IT_IS)[: 1 if quick else None] for label in configs
    }
    choices = {
        (label, dataset): [candidate.of(config) for candidate in among[label]]
        for label, config in configs.items()
        for dataset in names
    } | {place: [config] for place, config in (elsewhere or {}).items()}
    return {
        label: [
            _spec(choice, dataset, split, depth, {**short, "seed": seed})
            for dataset in dict.fromkeys(names)
            for depth in sorted(set(depths))
            for split, seed in _repeats(dataset, seeds, often, quick)
            for choice in choices[label, dataset]
        ]
        for label in configs
        if label in wanted
    }


def _label(name: str, labels: Mapping[str, ConfigFile]) -> str:
    """The system of a name, which may lack capitals and superscripts."""
    known = {label.lower().replace("²", "2"): label for label in labels}
    typed = name.strip().lower().replace("²", "2")
    if typed not in known:
        raise unknown_name("system", name, known)
    return known[typed]


def _spec(
    config: ConfigFile, dataset: str, split: str, layers: int, training: Mapping[str, Any]
) -> RunSpec:
    there = Change({"num_layers": layers}, training).of(replace(config, dataset=dataset))
    return RunSpec.of(DataSpec(dataset, split), there.recipe())


def _repeats(
    dataset: str, seeds: Sequence[int] | None, often: Repeats, quick: bool
) -> list[tuple[str, int]]:
    usual = find_entry(dataset).default_split
    if quick:
        return [(usual, seed) for seed in seeds or (0,)]
    if usual == "public":
        return [(usual, seed) for seed in seeds or range(often.public)]
    if usual.startswith("stored"):
        stem, ending, count = "stored", "", often.stored
    else:
        stem, ending, count = "random", ":20/30", often.splits
    return [
        (f"{stem}:{k}{ending}", seed) for seed in seeds or range(often.seeds) for k in range(count)
    ]
