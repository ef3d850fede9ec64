"""Systems at every depth: one list of runs per system, over datasets, depths and repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepgat.config import Config
from deepgat.data.entries import find_entry
from deepgat.errors import UserError, unknown_name
from deepgat.experiments.spec import DataSpec, RunSpec

DATASETS = ("cora", "citeseer", "pubmed", "cs", "physics")
DEPTHS = (2, 4, 8, 16, 32, 64, 128)
STORED_SPLITS = 10
QUICK_DATASETS, QUICK_DEPTHS, QUICK_EPOCHS = ("csbm",), (2, 8), 30
OWN: tuple[Mapping[str, Any], ...] = ({},)
"""A system's own training alone."""


def depth_specs(
    configs: Mapping[str, Config],
    candidates: Sequence[Mapping[str, Any]] = OWN,
    *,
    quick: bool = False,
    datasets: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    splits: int | None = None,
    systems: Sequence[str] | None = None,
) -> dict[str, list[RunSpec]]:
    """System → its runs: every dataset at every depth, repeated over seeds and splits.

    Every repetition has one run for each of the candidates, which are changes of the training
    (``quick``: the first alone). A dataset with a public split is repeated over seeds; one with
    stored splits over those; the rest over random splits of 20 and 30 nodes per class, with each
    seed.
    """
    if splits is not None and splits < 1:
        raise UserError(f"splits is {splits}: expected 1 or more")
    names = [find_entry(n).key for n in datasets or (QUICK_DATASETS if quick else DATASETS)]
    depths = layers or (QUICK_DEPTHS if quick else DEPTHS)
    wanted = set(configs) if systems is None else {_label(name, configs) for name in systems}
    return {
        label: [
            _spec(config, dataset, split, seed, depth, quick, candidate)
            for dataset in dict.fromkeys(names)
            for depth in sorted(set(depths))
            for split, seed in _repeats(dataset, seeds, splits, quick)
            for candidate in (candidates[:1] if quick else candidates)
        ]
        for label, config in configs.items()
        if label in wanted
    }


def _label(name: str, labels: Mapping[str, Config]) -> str:
    """The system of a name that may be typed without capitals and superscripts."""
    known = {label.lower().replace("²", "2"): label for label in labels}
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
    candidate: Mapping[str, Any],
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
