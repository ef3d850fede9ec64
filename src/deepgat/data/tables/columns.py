"""A table in memory: named columns of numbers or of encoded texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from deepgat.errors import UserError


@dataclass(frozen=True, eq=False)
class Column:
    """One column: ``numbers`` [rows] with NaN for "missing", or ``codes`` [rows] into ``texts``."""

    name: str
    numbers: np.ndarray | None = None
    codes: np.ndarray | None = None
    """int32, −1 for an empty cell."""
    texts: Sequence[str] = ()
    labels: Sequence[str] = ()
    """Names of all labels, for a column with several labels per node."""

    def as_texts(self) -> Column:
        """The same column as texts, since labels may be numbers."""
        if self.numbers is None:
            return self
        values, codes = np.unique(self.numbers, return_inverse=True)
        missing = np.isnan(values)
        codes = np.where(missing[codes], -1, codes).astype(np.int32)
        return Column(self.name, codes=codes, texts=[number_text(v) for v in values[~missing]])


@dataclass(frozen=True, eq=False)
class Columns:
    """A table with its columns in order; ``name`` and ``place`` (of a row) appear in errors."""

    name: str
    rows: int
    columns: Sequence[Column] = ()
    place: Callable[[int], str] = field(default=lambda row: f"row {row + 1}")

    def find(self, name: str) -> Column | None:
        """The column with this name, ignoring case."""
        wanted = name.strip().lower()
        return next((item for item in self.columns if item.name.lower() == wanted), None)

    def at(self, row: int, column: str) -> str:
        """The beginning of an error: "nodes.csv, line 7, column 'age'"."""
        return f"{self.name}, {self.place(row)}, column {column!r}"


def number_text(value: float) -> str:
    """A number as people write it: 3, not 3.0."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def check_names(table: str, names: Sequence[str]) -> None:
    """Refuse columns without a name and repeated names."""
    seen = set()
    for number, name in enumerate(names, start=1):
        if not name:
            raise UserError(f"{table}, line 1: column {number} has no name; give it one")
        if name.lower() in seen:
            raise UserError(f"{table}, line 1: the column {name!r} appears twice; rename one")
        seen.add(name.lower())
