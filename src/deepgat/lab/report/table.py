"""A table of text cells, as Markdown and as CSV; and the names of files."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

NONE = "–"
"""A cell without a value."""
LONGEST = 150
"""Bytes of a file name without its ending."""


class Sourced(str):
    """A cell's text with the signatures of the runs it was computed from, and its numbers.

    ``numbers`` are what a chart draws: the mean, both ends of its band and, if there is one, the
    published value.
    """

    __slots__ = ("numbers", "runs")
    runs: tuple[str, ...]
    numbers: tuple[Any, ...]

    def __new__(
        cls, text: str, runs: Iterable[str], numbers: Iterable[float | None] = ()
    ) -> Sourced:
        made = super().__new__(cls, text)
        made.runs, made.numbers = tuple(runs), tuple(numbers)
        return made


@dataclass(frozen=True)
class Table:
    """Rows of text cells; every row has a cell for each column."""

    name: str
    """Becomes the file name, such as "table2"."""
    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    charts: list[dict[str, Any]] = field(default_factory=list)
    """Its numbers as the panels of one figure: see :mod:`deepgat.lab.report.charts`."""

    def markdown(self) -> str:
        lines = [
            f"**{self.title}**",
            "",
            _row(self.columns),
            _row(["---"] * len(self.columns)),
            *(_row(row) for row in self.rows),
        ]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return file.getvalue()


def file_name(name: str, taken: set[str]) -> str:
    """A file name for any text, without an ending: safe on every system, and not in ``taken``.

    It is added to ``taken``. The middle of what is longer than :data:`LONGEST` bytes is left out.
    """
    safe = re.sub(r"[^\w.]+", "-", unicodedata.normalize("NFC", name)).strip("-.") or "unnamed"
    if len(whole := safe.encode()) > LONGEST:
        ends = (whole[: 2 * LONGEST // 3], whole[-LONGEST // 3 :])
        safe = "-".join(part.decode(errors="ignore").strip("-.") for part in ends)
    made, count = safe, 1
    while made.casefold() in taken:  # file systems that ignore case
        count += 1
        made = f"{safe}-{count}"
    taken.add(made.casefold())
    return made


def filed(tables: Iterable[Table], taken: set[str], prefix: str = "") -> list[Table]:
    """The tables under the names of their files."""
    return [replace(table, name=file_name(prefix + table.name, taken)) for table in tables]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
