"""Rows and cells of delimited text: the grammar, in Python.

A cell is the text between two delimiters without the blanks around it. A cell that begins with a
quote ends with one, may hold delimiters and newlines, and writes a quote as ``""``. Lines without
content are not rows. A number is ``[+-]digits[.digits][e[+-]digits]``, ``inf``, or a word for
"missing" (nothing, NaN, NA, N/A, null, none). Text is UTF-8 without NUL bytes.

Arrow reads almost all blocks of a file. These functions read the few that Arrow refuses or would
read differently, and find the line of a row.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import NamedTuple

NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
MISSING = ("", "nan", "na", "n/a", "null", "none")
INFINITE = re.compile(rb"[+-]?(inf|infinity)", re.IGNORECASE)


class Mistake(enum.Enum):
    """What can be wrong with a row."""

    CELLS = enum.auto()
    NOT_A_NUMBER = enum.auto()
    REPEATED = enum.auto()
    UNKNOWN = enum.auto()
    EMPTY_ID = enum.auto()
    NOT_UTF8 = enum.auto()
    NUL_BYTE = enum.auto()
    OPEN_QUOTE = enum.auto()
    AFTER_QUOTE = enum.auto()


class Row(NamedTuple):
    cells: list[bytes]
    line: int
    """Counted from 0, the first line of the text."""
    end: int
    """The byte at which the next row begins."""


class Incomplete(Exception):  # noqa: N818 - a state of the buffer
    """The row goes on beyond the buffer."""


class WrongQuote(Exception):  # noqa: N818 - reported as a mistake of the file
    """A quote that is not closed, or is followed by more than a delimiter."""

    def __init__(self, what: Mistake, cells: list[bytes], text: bytes) -> None:
        super().__init__(what)
        self.what, self.cells, self.text = what, cells, text
        self.line = 0


def rows(text: bytes, delimiter: str, comments: bool, last: bool = True) -> Iterator[Row]:
    """The rows of a text; without ``last``, those that end before the text does.

    A :class:`WrongQuote` carries the line of its row. With ``comments``, lines that begin with #
    or % are not rows.
    """
    blanks = b" \r" if delimiter == "\t" else b" \t\r"
    at = line = 0
    while at < len(text):
        end = text.find(b"\n", at)
        if end < 0 and not last:
            return
        end = len(text) if end < 0 else end
        content = text[at:end].strip(blanks)
        if not content or (comments and content[:1] in b"#%"):
            at, line = end + 1, line + 1
            continue
        try:
            cells, at, inner = split_row(text, at, delimiter.encode(), last)
        except Incomplete:
            return
        except WrongQuote as error:
            error.line = line
            raise
        yield Row(cells, line, at)
        line += 1 + inner


def split_row(text: bytes, at: int, delimiter: bytes, last: bool) -> tuple[list[bytes], int, int]:
    """(cells, where the next row begins, newlines inside cells) of the row at ``at``."""
    end = text.find(b"\n", at)
    end = len(text) if end < 0 else end
    if b'"' not in text[at:end]:
        line = text[at:end]
        line = line[:-1] if line.endswith(b"\r") else line
        blanks = b" " if delimiter == b"\t" else b" \t"
        if delimiter == b" ":
            cells = re.split(rb"[ \t]+", line.strip(b" \t"))
        else:
            cells = line.split(delimiter)
        return [cell.strip(blanks) for cell in cells], min(end + 1, len(text)), 0
    return _split_quoted(text, at, delimiter, last)


def _split_quoted(
    text: bytes, at: int, delimiter: bytes, last: bool
) -> tuple[list[bytes], int, int]:
    blanks = b" " if delimiter == b"\t" else b" \t"
    stops = b" \t" if delimiter == b" " else delimiter
    cells: list[bytes] = []
    size, inner = len(text), 0
    while True:
        while at < size and text[at] in blanks:
            at += 1
        if text[at : at + 1] == b'"':
            cell, at = _quoted(text, at + 1, last, cells)
            inner += cell.count(b"\n")
            while delimiter != b" " and at < size and text[at] in blanks:
                at += 1
            if text[at : at + 2] in (b"\r\n", b"\r"):
                at += 1
            if at < size and text[at] not in stops and text[at] != 10:
                raise WrongQuote(Mistake.AFTER_QUOTE, cells, cell)
        else:
            start = at
            while at < size and text[at] != 10 and text[at] not in stops:
                at += 1
            cell = text[start:at]
            if cell.endswith(b"\r") and (at == size or text[at] == 10):
                cell = cell[:-1]
            cell = cell.rstrip(blanks)
        if delimiter == b" ":
            while at < size and text[at] in blanks:
                at += 1
            if text[at : at + 2] in (b"\r\n", b"\r"):
                at += 1
        cells.append(cell)
        if at >= size:
            if not last:
                raise Incomplete
            return cells, size, inner
        if text[at] == 10:
            return cells, at + 1, inner
        if delimiter != b" ":
            at += 1


def _quoted(text: bytes, at: int, last: bool, cells: list[bytes]) -> tuple[bytes, int]:
    """The content of a cell after its opening quote, and the place after the closing one."""
    start = at
    while True:
        at = text.find(b'"', at)
        if at < 0 or (at == len(text) - 1 and not last):
            if last:
                raise WrongQuote(Mistake.OPEN_QUOTE, cells, b"")
            raise Incomplete
        if text[at + 1 : at + 2] != b'"':
            return text[start:at].replace(b'""', b'"'), at + 1
        at += 2


def number_of(cell: bytes) -> float | None:
    """The number in a cell, NaN for "missing"; None where it is none."""
    if NUMBER.fullmatch(cell) or INFINITE.fullmatch(cell):
        return float(cell)
    plain = cell.decode("latin-1").lower()
    return float("nan") if plain in MISSING else None


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
