"""Options for reading your graph, checked by name and value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from deepgat.data.tables.plan import FeaturePlan
from deepgat.data.tables.structure_features import STRUCTURES
from deepgat.errors import UserError, unknown_name

MISSING = ("refuse", "mean", "zero")
SCALES = ("standard", "unit", "none")
RARE = ("refuse", "unlabel")
CHOICES = {"missing": MISSING, "scale": SCALES, "rare": RARE}


@dataclass(frozen=True)
class ReadOptions:
    """The meaning of the columns of a user's files, and how to treat gaps in them.

    Names of columns are found in any case; lists are separated by commas.
    """

    id: str = "id"
    """The column of the nodes' names."""
    label: str = "label"
    """The column of their classes; several labels of one node are separated by semicolons."""
    part: str = "split"
    """The column that says train, val or test."""
    source: str = "source"
    target: str = "target"
    weight: str = "weight"
    """The columns of edges; all others are edge features."""
    text: str = ""
    """Columns to read as bags of words."""
    drop: str = ""
    """Columns to leave out."""
    structure: str = ""
    """Structural features to add: degree, pagerank, spectral."""
    scale: str = "standard"
    """Columns of numbers: to mean 0 and deviation 1, to 0 … 1 ("unit"), or left alone."""
    missing: str = "refuse"
    """A missing number: refused, or the mean of its column, or 0 (after scaling)."""
    rare: str = "refuse"
    """A class too small for the split that is drawn: refused, or its nodes made unlabelled."""
    undirected: bool = True
    """Give every edge both ways."""
    nodes: str = ""
    """For an edge list: the file of its nodes (CSV, Parquet, or features in .npy)."""

    plan: FeaturePlan | None = field(default=None, repr=False)
    """How a model's training made features of columns, to have the same for another graph. It
    decides ``text``, ``structure``, ``scale`` and ``drop``, and is no option that is written."""

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown_name(f"choice for {name}", str(getattr(self, name)), choices)
        for name in listed(self.structure):
            if name not in STRUCTURES:
                raise unknown_name("structural feature", name, STRUCTURES)

    @staticmethod
    def of(given: Mapping[str, Any]) -> ReadOptions:
        """From keywords or texts; an unknown name is refused with the nearest one."""
        kinds = {name: type(value) for name, value in _usual().items()}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name == "plan" and isinstance(value, FeaturePlan | None):
                values[name] = value
            elif name in kinds:
                values[name] = _typed(name, value, kinds[name])
            else:
                raise unknown_name("option for reading a graph", name, kinds)
        if values.get("nodes"):  # a model finds it again from anywhere
            values["nodes"] = os.path.abspath(values["nodes"])
        return ReadOptions(**values)

    def changes(self) -> dict[str, Any]:
        """What differs from the defaults, as plain values: enough to read the same graph again."""
        found = {name: (getattr(self, name), usual) for name, usual in _usual().items()}
        return {name: value for name, (value, usual) in found.items() if value != usual}


def _usual() -> dict[str, Any]:
    """The options that can be written, as they are when nothing is said."""
    return {item.name: item.default for item in fields(ReadOptions) if item.name != "plan"}


def listed(text: str) -> list[str]:
    """ "a, b" → ["a", "b"]."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _typed(name: str, value: Any, kind: type) -> Any:
    if kind is bool and isinstance(value, str):
        if value.lower() not in ("yes", "no", "true", "false"):
            raise UserError(f"{name} is {value!r}: expected yes or no")
        return value.lower() in ("yes", "true")
    if kind is str and isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if not isinstance(value, kind):
        raise UserError(f"{name} is {value!r}: expected a value of type {kind.__name__}")
    return value
