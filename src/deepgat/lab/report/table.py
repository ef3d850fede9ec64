"""A table of text cells, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, field


class Sourced(str):
    """A cell's text with the signatures of the runs it was computed from."""

    __slots__ = ("runs",)
    runs: tuple[str, ...]

    def __new__(cls, text: str, runs: Iterable[str]) -> Sourced:
        made = super().__new__(cls, text)
        made.runs = tuple(runs)
        return made


@dataclass(frozen=True)
class Table:
    """Rows of text cells; every row has a cell for each column."""

    name: str
    """Used as the file name, such as "table2"."""
    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

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


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
