"""Groups runs into families: the same preset with the same changes to it.

A preset's hyper-parameters depend on the system and the dataset, so a run is compared with the
preset's recipe for both. The learning rate is not a change, because a report uses the rate with the
best validation score.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from deepgat.data import parse_split
from deepgat.data.catalogue.entries import ENTRIES
from deepgat.errors import UserError
from deepgat.lab.report.scores import Record
from deepgat.models.registry import find_system
from deepgat.training.recipes import recipe
from deepgat.training.search import AUTO

FREE = ("score", "num_layers", "seed", "device")
"""Settings that may differ within a family."""
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
        try:
            found.setdefault(family_of(record), []).append(record)
        except UserError as error:  # a system or a setting that this deepgat does not have
            text = f"the run {record['signature']} is left out of the tables: {error}"
            warnings.warn(text, stacklevel=2)
    found = {name: runs for item in found.items() for name, runs in _by_splits(*item).items()}
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def family_of(record: Record, free: Sequence[str] = (*FREE, "lr")) -> Family:
    """The preset with the fewest changes to it; the first of equals."""
    if record["system"] == AUTO:
        raise UserError("searches have a table of their own, by deepgat reproduce auto")
    system = find_system(record["system"])
    ways = [
        Family(preset or system.name, tuple(_changes(record, preset, free)))
        for preset in system.presets or (None,)
    ]
    return min(ways, key=lambda family: len(family.changes))


def _changes(record: Record, preset: str | None, free: Sequence[str]) -> Iterable[str]:
    settings = record["settings"]
    place = (record["dataset"], settings["num_layers"])
    for section, usual in _usual(record["system"], preset, settings.get("score"), *place).items():
        for name, value in usual.items():
            own = record[section].get(name, value)
            if name not in free and own != value:
                yield f"{name}={own}"


@cache
def _usual(
    system: str, preset: str | None, score: str | None, dataset: str, layers: int
) -> Mapping[str, Mapping[str, Any]]:
    chosen: dict[str, Any] = {} if score is None else {"score": score}
    made = recipe(system, preset=preset, dataset=dataset, num_layers=layers, **chosen)
    training = {"class_weight": None, **made.training.to_dict()}
    return {"settings": made.settings.to_dict(), "training": training}


def _by_splits(family: Family, runs: Sequence[Record]) -> dict[Family, list[Record]]:
    """Divide runs on different kinds of splits, which are not repetitions of each other."""
    kinds = {(record["dataset"], kind_of_split(record["split"])) for record in runs}
    if len(kinds) == len({record["dataset"] for record in runs}):
        return {family: list(runs)}
    parts: dict[Family, list[Record]] = {}
    for record in runs:
        kind, entry = kind_of_split(record["split"]), ENTRIES.get(record["dataset"])
        own = entry is not None and kind == kind_of_split(str(parse_split(entry.default_split)))
        changes = family.changes if own else (*family.changes, f"splits {kind}")
        parts.setdefault(family._replace(changes=changes), []).append(record)
    return parts


def kind_of_split(split: str) -> str:
    """A split without its number: "random:3:20/30" → "random:20/30"."""
    kind, *rest = str(split).split(":")
    return ":".join([kind, *(part for part in rest if "/" in part)])
