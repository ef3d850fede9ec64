"""Systems at every depth: a list of runs per system, over datasets, depths and repetitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import unknown_name
from deepgat.lab.experiments.spec import DataSpec, RunSpec, check_at_least_one
from deepgat.training.config_file import read_config

DATASETS = ("cora", "citeseer", "pubmed", "cs", "physics")
DEPTHS = (2, 4, 8, 16, 32, 64, 128)
QUICK_DATASETS, QUICK_DEPTHS, QUICK_EPOCHS = ("csbm",), (2, 8), 30


class Change(NamedTuple):
    """Changed settings of a system and of its training."""

    settings: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}


Candidates = tuple[str, Sequence[Change]]
"""A shipped setting, and changes of it among which validation nodes choose."""


class Repeats(NamedTuple):
    """The default number of repetitions of a run."""

    public: int
    """Seeds on a public split."""
    splits: int
    """Random splits, for datasets without public or stored ones."""
    seeds: int
    """Seeds on each random or stored split."""


FEW = Repeats(public=3, splits=3, seeds=1)


def depth_specs(
    settings: Mapping[str, Candidates],
    repeats: Repeats = FEW,
    elsewhere: Mapping[tuple[str, str], Candidates] | None = None,
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

    A dataset with a public split is repeated over seeds. Others are repeated over their stored
    splits, or over random splits with 20 and 30 nodes per class, with each seed. Where results are
    not published in accuracy, their metric chooses the epoch.

    Args:
        settings: label → a shipped setting and candidates: changes of it. Every repetition has one
            run for each candidate, among which validation nodes choose.
        repeats: how many seeds and splits, where ``seeds`` and ``splits`` do not say.
        elsewhere: (system, dataset) → what replaces the system's usual setting and candidates
            there.
        quick: only the first candidate, on a small graph, with few epochs and no repetitions.
        datasets: names; if None, :data:`DATASETS`.
        layers: depths; if None, :data:`DEPTHS`.
        seeds: of the weights.
        splits: how many of the stored or random splits.
        systems: labels, in any case and without superscripts; if None, all.
        epochs: the most epochs of a run; if None, the system's own.
    """
    check_at_least_one(splits=splits, epochs=epochs)
    epochs = epochs or (QUICK_EPOCHS if quick else None)
    short = {} if epochs is None else {"epochs": epochs}
    names = [find_entry(n).key for n in datasets or (QUICK_DATASETS if quick else DATASETS)]
    depths = sorted(set(layers or (QUICK_DEPTHS if quick else DEPTHS)))
    wanted = set(settings) if systems is None else {label_of(name, settings) for name in systems}
    labelled: dict[str, list[RunSpec]] = {label: [] for label in settings if label in wanted}
    for label, specs in labelled.items():
        for dataset in dict.fromkeys(names):
            name, candidates = (elsewhere or {}).get((label, dataset), settings[label])
            config = replace(read_config(name), dataset=dataset)
            choices = [config.changed(*change) for change in candidates[: 1 if quick else None]]
            metric = find_entry(dataset).metric
            chosen = short if metric == "accuracy" else {**short, "monitor": metric}
            for depth in depths:
                for split, seed in _repeats(dataset, seeds, splits, repeats, quick):
                    for choice in choices:
                        there = choice.changed({"num_layers": depth}, {**chosen, "seed": seed})
                        specs.append(RunSpec.of(DataSpec(dataset, split), there.recipe()))
    return labelled


def label_of(name: str, labels: Iterable[str]) -> str:
    """The row of a name, which may lack capitals and superscripts."""
    known = {label.lower().replace("²", "2"): label for label in labels}
    typed = name.strip().lower().replace("²", "2")
    if typed not in known:
        raise unknown_name("system", name, known)
    return known[typed]


def _repeats(
    dataset: str, seeds: Sequence[int] | None, splits: int | None, usual: Repeats, quick: bool
) -> list[tuple[str, int]]:
    """(split, seed) of every repetition."""
    entry = find_entry(dataset)
    default = entry.default_split
    if quick:
        return [(default, seed) for seed in seeds or (0,)]
    if default == "public":
        return [(default, seed) for seed in seeds or range(usual.public)]
    if default.startswith("stored"):
        drawn = [f"stored:{k}" for k in range(splits or entry.stored_splits)]
    else:
        drawn = [f"random:{k}:20/30" for k in range(splits or usual.splits)]
    return [(split, seed) for seed in seeds or range(usual.seeds) for split in drawn]
