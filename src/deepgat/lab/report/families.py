"""Groups runs into families: the same preset with the same changes to it.

A preset's hyper-parameters depend on the system and the dataset, so a run is compared with the
preset's recipe for both. The learning rate is not a change, because a report uses the rate with the
best validation score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from deepgat.data import parse_split
from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError
from deepgat.lab.report.scores import Record
from deepgat.models.registry import SYSTEMS, find_system
from deepgat.training.recipes import recipe

FREE = {"settings": ("score", "num_layers"), "training": ("seed", "device", "lr")}
"""Settings that may differ within a family."""
NAMES = ("paper", "authors", "published", *SYSTEMS)
"""What families are named after: presets of systems that have several, else the system."""
MANY = 4
"""A name lists this many changes and counts the rest."""


class Family(NamedTuple):
    """A preset and the settings that differ from it."""

    preset: str
    changes: tuple[str, ...]

    @property
    def protocol(self) -> str:
        """How its best depths and learning rates are selected."""
        return "authors" if self.preset == "authors" else "honest"

    @property
    def name(self) -> str:
        told = self.changes[:MANY]
        more = len(self.changes) - len(told)
        return ", ".join([self.preset, *told, *([f"and {more} more changes"] if more else [])])


def families(records: Iterable[Record]) -> dict[Family, list[Record]]:
    """Family → its runs, the largest family first."""
    found: dict[Family, list[Record]] = {}
    for record in records:
        found.setdefault(family_of(record), []).append(record)
    found = {name: runs for item in found.items() for name, runs in _by_splits(*item).items()}

    def order(item: tuple[Family, Sequence[Record]]) -> tuple[Any, ...]:
        family, runs = item
        return (-len(runs), NAMES.index(family.preset), family.changes)

    return dict(sorted(found.items(), key=order))


def family_of(record: Record) -> Family:
    """The preset with the fewest changes to it; the first of equals."""
    system = find_system(record["system"])
    if not system.presets:
        return Family(system.name, tuple(changes(record, None)))
    ways = [Family(preset, tuple(changes(record, preset))) for preset in system.presets]
    return min(ways, key=lambda family: len(family.changes))


def _by_splits(family: Family, runs: Sequence[Record]) -> dict[Family, list[Record]]:
    """Divide runs on different kinds of splits, which are not repetitions of each other."""
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


def changes(record: Record, preset: str | None, rate: bool = False) -> list[str]:
    """The settings of a run that differ from its preset; ``rate``: including the learning rate."""
    settings = record["settings"]
    usual = _usual(
        record["system"],
        preset,
        settings.get("score"),
        record["dataset"],
        settings["num_layers"],
    )
    found = []
    for section, expected in usual.items():
        free = set(FREE[section]).difference(["lr"] if rate else [])
        found += [
            f"{name}={record[section][name]}"
            for name in expected
            if name not in free and record[section].get(name, expected[name]) != expected[name]
        ]
    return found


@cache
def _usual(
    system: str, preset: str | None, score: str | None, dataset: str, layers: int
) -> Mapping[str, Mapping[str, Any]]:
    chosen: dict[str, Any] = {} if score is None else {"score": score}
    made = recipe(system, preset=preset, dataset=dataset, num_layers=layers, **chosen)
    return {"settings": made.settings.to_dict(), "training": made.training.to_dict()}


def _kind(split: str) -> str:
    """A split without its index: "random:3:20/30" → "random:20/30"."""
    name, *rest = str(split).split(":")
    return ":".join([name, *rest[1:]])


@cache
def _default_split(dataset: str) -> str:
    try:
        return str(parse_split(find_entry(dataset).default_split))
    except UserError:  # a user's graph
        return ""
