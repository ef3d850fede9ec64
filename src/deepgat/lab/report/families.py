"""Which runs belong on one page: those by the same preset with the same changes to it.

Hyper-parameters differ between systems and datasets within a preset, so runs are compared with the
preset's own recipe. The learning rate is no change: of several the best on validation counts, as
everywhere in the reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, NamedTuple

from deepgat.data import parse_split
from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError
from deepgat.lab.report.scores import Record
from deepgat.training.recipes import PRESET_NAMES, recipe

FREE = {"model": ("model", "score", "layers"), "training": ("seed", "device", "lr")}
"""Settings in which the runs of a family differ."""
MANY = 4
"""Changes that a name tells one by one."""


class Family(NamedTuple):
    """A preset, and what was changed in it."""

    preset: str
    changes: tuple[str, ...]

    @property
    def protocol(self) -> str:
        """By whose rules its numbers are chosen."""
        return "authors" if self.preset == "authors" else "honest"

    @property
    def name(self) -> str:
        told = self.changes[:MANY]
        more = len(self.changes) - len(told)
        return ", ".join([self.preset, *told, *([f"and {more} more changes"] if more else [])])


def families(records: Iterable[Record]) -> dict[Family, list[Record]]:
    """Family → its runs; the one with the most runs first."""
    found: dict[Family, list[Record]] = {}
    for record in records:
        found.setdefault(family_of(record), []).append(record)
    found = {name: runs for item in found.items() for name, runs in _by_splits(*item).items()}

    def order(item: tuple[Family, Sequence[Record]]) -> tuple[Any, ...]:
        family, runs = item
        return (-len(runs), PRESET_NAMES.index(family.preset), family.changes)

    return dict(sorted(found.items(), key=order))


def family_of(record: Record) -> Family:
    """The preset that a run is nearest to; of equally near ones the first."""
    ways = [(preset, _changes(record, preset)) for preset in PRESET_NAMES]
    preset, changes = min(ways, key=lambda way: len(way[1]))
    return Family(preset, tuple(changes))


def _by_splits(family: Family, runs: Sequence[Record]) -> dict[Family, list[Record]]:
    """Runs on different kinds of splits of one dataset are no repetitions of each other."""
    kinds: dict[str, set[str]] = {}
    for record in runs:
        kinds.setdefault(record["dataset"], set()).add(_kind(record["split"]))
    if all(len(found) == 1 for found in kinds.values()):
        return {family: list(runs)}
    parts: dict[Family, list[Record]] = {}
    for record in runs:
        kind = _kind(record["split"])
        own = kind == _kind(_default_split(record["dataset"]))
        changes = family.changes if own else (*family.changes, f"splits {kind}")
        parts.setdefault(family._replace(changes=changes), []).append(record)
    return parts


def _changes(record: Record, preset: str) -> list[str]:
    settings = record["model"]
    usual = _usual(
        preset, settings["model"], settings["score"], record["dataset"], settings["layers"]
    )
    found = []
    for section, expected in usual.items():
        values = record[section]
        # a setting that the record does not name had its default when the run was made
        found += [
            f"{name}={values[name]}"
            for name in expected
            if name not in FREE[section] and name in values and values[name] != expected[name]
        ]
    return found + _decay_of_heads(record["training"], usual["training"])


def _decay_of_heads(values: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What the preset has of it and the run has not: a spec leaves out what makes no difference."""
    return [
        f"{name}={default}"
        for name, default in (("weight_decay_heads", None), ("decay_nodes_heads", 0))
        if name not in values and expected[name] != default
    ]


@cache
def _usual(
    preset: str, model: str, score: str, dataset: str, layers: int
) -> Mapping[str, Mapping[str, Any]]:
    try:
        made = recipe(preset, model, score=score, dataset=dataset, layers=layers)
    except UserError:  # a system or a score that is no more
        made = recipe(preset)
    try:
        made = made.plainest(find_entry(dataset).nodes)
    except UserError:  # a graph of one's own
        made = made.plainest(None)
    return {"model": asdict(made.model), "training": asdict(made.training)}


def _kind(split: str) -> str:
    """A split without its number: "random:3:20/30" → "random:20/30"."""
    name, *rest = str(split).split(":")
    return ":".join([name, *rest[1:]])


@cache
def _default_split(dataset: str) -> str:
    try:
        return str(parse_split(find_entry(dataset).default_split))
    except UserError:  # a graph of one's own
        return ""
