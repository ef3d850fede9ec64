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
    """Which column has which meaning, and how to treat numbers, gaps and small classes.

    Column names ignore case; lists are separated by commas.
    """

    id: str = "id"
    """The column of node ids."""
    label: str = "label"
    """The column of classes; semicolons separate several labels of one node."""
    part: str = "split"
    """The column that says train, val or test."""
    source: str = "source"
    target: str = "target"
    weight: str = "weight"
    """The columns of the edge table; all others are edge features."""
    text: str = ""
    """Columns to read as bags of words."""
    drop: str = ""
    """Columns to leave out."""
    structure: str = ""
    """Structural features to add: degree, pagerank, spectral."""
    scale: str = "standard"
    """Scale numbers to mean 0 and deviation 1, to 0 … 1 ("unit"), or not at all ("none")."""
    missing: str = "refuse"
    """A missing number is an error, the mean of its column, or 0 after scaling."""
    rare: str = "refuse"
    """A class too small for a random split is an error, or its nodes become unlabelled."""
    undirected: bool = True
    """Add missing reverse edges."""
    nodes: str = ""
    """For an edge list: the file of its nodes (CSV, Parquet, or features in .npy)."""

    plan: FeaturePlan | None = field(default=None, repr=False)
    """The plan of a trained model, to give another graph the same features. It overrides ``text``,
    ``structure``, ``scale`` and ``drop``, and is never saved as an option."""

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown_name(f"choice for {name}", str(getattr(self, name)), choices)
        for name in listed(self.structure):
            if name not in STRUCTURES:
                raise unknown_name("structural feature", name, STRUCTURES)

    @staticmethod
    def of(given: Mapping[str, Any]) -> ReadOptions:
        """From keywords or texts; the error for an unknown name suggests the closest one."""
        kinds = {name: type(value) for name, value in _usual().items()}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name == "plan" and isinstance(value, FeaturePlan | None):
                values[name] = value
            elif name in kinds:
                values[name] = _typed(name, value, kinds[name])
            else:
                raise unknown_name("option for reading a graph", name, kinds)
        if values.get("nodes"):  # absolute, so that a model finds it from any folder
            values["nodes"] = os.path.abspath(values["nodes"])
        return ReadOptions(**values)

    def changes(self) -> dict[str, Any]:
        """Options that differ from the defaults, as plain values."""
        found = {name: (getattr(self, name), usual) for name, usual in _usual().items()}
        return {name: value for name, (value, usual) in found.items() if value != usual}


def _usual() -> dict[str, Any]:
    """The defaults of all options but the plan."""
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
