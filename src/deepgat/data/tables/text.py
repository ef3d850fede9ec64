"""Rows and cells of delimited text: the grammar, in Python.

A cell is the text between two delimiters without the blanks around it. A cell that begins with a
quote ends with one, may hold delimiters and newlines, and writes a quote as ``""``. Lines without
content are not rows. A number is ``[+-]digits[.digits][e[+-]digits]``, ``inf``, or a word for
"missing" (nothing, NaN, NA, N/A, null, none). Text is UTF-8 without NUL bytes.

Arrow reads almost all blocks of a file. These functions read the few that Arrow refuses or would
read differently, and find the line of a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

NUMBER = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|inf|infinity)", re.I)
MISSING = ("", "nan", "na", "n/a", "null", "none")
QUOTED = r'"([^"]*+(?:""[^"]*+)*+)"'
BLANKS = " \t\r"


class Row(NamedTuple):
    cells: list[str]
    line: int
    """Counted from 0, the first line of the text."""
    end: int
    """The place at which the next row begins."""


class Mistake(Exception):  # noqa: N818 - a mistake of the file, told as a UserError
    """A row that cannot be read: its line and column from 0, and what to do."""

    def __init__(self, line: int, column: int, why: str) -> None:
        super().__init__(why)
        self.line, self.column, self.why = line, column, why


def rows(text: str, delimiter: str, comments: bool = False) -> Iterator[Row]:
    """The rows of a text. With ``comments``, lines that begin with # or % are not rows.

    A blank as delimiter stands for any number of blanks and tabs, and quotes are ordinary then.
    """
    cell = re.compile(
        rf"[ \t]*+(?:{QUOTED}[ \t]*+\r?|([^\"{delimiter}\n][^{delimiter}\n]*)?)(\n|\Z|{delimiter})"
        if delimiter != "\t"
        else rf" *+(?:{QUOTED} *+\r?|([^\"\t\n][^\t\n]*)?)(\n|\Z|\t)"
    )
    at = line = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        content = text[at:end].strip(BLANKS)
        if not content or (comments and content[0] in "#%"):
            at, line = end + 1, line + 1
            continue
        if delimiter == " ":
            at = min(end + 1, len(text))
            yield Row(re.split(r"[ \t]+", content), line, at)
            line += 1
            continue
        cells: list[str] = []
        first, more = at, True
        while more:
            found = cell.match(text, at)
            if found is None:
                raise _wrong_quote(text[at:].lstrip(BLANKS), line, len(cells))
            quoted, plain, stop = found.groups()
            content = (plain or "").rstrip(BLANKS) if quoted is None else quoted.replace('""', '"')
            cells.append(content)
            at, more = found.end(), stop == delimiter
        yield Row(cells, line, at)
        line += max(1, text.count("\n", first, at))


def _wrong_quote(text: str, line: int, column: int) -> Mistake:
    closed = re.match(QUOTED, text)
    if closed is None:
        why = "a quote is opened and never closed; close it, or the file was cut short"
    else:
        why = (
            f"text follows the closing quote of {quoted(closed[1])}; write a quote inside as two "
            "quotes"
        )
    return Mistake(line, column, why)


def number_of(cell: str) -> float | None:
    """The number in a cell, NaN for "missing"; None where it is none."""
    if NUMBER.fullmatch(cell):
        return float(cell)
    return float("nan") if cell.lower() in MISSING else None


def quoted(text: str, most: int = 40) -> str:
    """A piece of a file in a sentence: short, on one line, unprintable characters escaped."""
    return ascii(text[:most] + "…") if len(text) > most else repr(text)
