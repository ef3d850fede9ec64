"""Delimited text to columns: the definition, in Python; ``ops/cpu/table.cpp`` is the fast form.

A cell is what stands between delimiters, blanks around it removed; a cell that begins with a quote
ends with one, may hold delimiters and newlines, and has ``""`` for a quote. Lines without content
are not rows. A number is ``[+-]digits[.digits][e[+-]digits]``, ``inf``, or a word for "missing"
(nothing, NaN, NA, N/A, null, none). Text must be UTF-8 without NUL bytes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
MISSING = {b"", b"nan", b"na", b"n/a", b"null", b"none"}
INFINITE = re.compile(rb"[+-]?(inf|infinity)", re.IGNORECASE)
SHOWN = 80
"""Bytes of a wrong cell that are kept to be shown."""


class Kind(enum.IntEnum):
    """What becomes of the cells of a column."""

    NUMBER = 0
    AUTO = 1
    """A number, until a cell is none: then the column has "turned"."""
    TEXT = 2
    """The number of a text in a dictionary; −1 for an empty cell."""
    NEW_ID = 3
    """A text that is in the dictionary only once."""
    KNOWN_ID = 4
    """A text that is in the dictionary already."""
    ANY_ID = 5
    SKIP = 6


class Mistake(enum.IntEnum):
    """What may be wrong with a row."""

    NONE = 0
    CELLS = 1
    NOT_A_NUMBER = 2
    REPEATED = 3
    UNKNOWN = 4
    EMPTY_ID = 5
    NOT_UTF8 = 6
    NUL_BYTE = 7
    OPEN_QUOTE = 8
    AFTER_QUOTE = 9
    TOO_MANY = 10


class Found(NamedTuple):
    """The first mistake of a table."""

    what: Mistake
    line: int
    column: int
    """From 0; −1 where the whole row is wrong."""
    detail: int
    """CELLS: how many there are; REPEATED: the number of the text."""
    text: bytes


class Names(Protocol):
    """Texts numbered in the order in which they first came."""

    def take(self, text: bytes) -> int: ...
    def texts(self) -> list[str]: ...
    def __len__(self) -> int: ...


class Table(Protocol):
    """Rows taken from buffers, kept as columns."""

    def feed(self, buffer: memoryview, last: bool) -> int:
        """Takes whole rows; returns how many bytes they were. Stops at the first mistake."""
        ...

    def rows(self) -> int: ...
    def turned(self) -> list[bool]: ...
    def mistake(self) -> Found | None: ...
    def column(self, number: int) -> np.ndarray:
        """Doubles, or int32 numbers of texts; to be asked for once."""
        ...

    def jumps(self) -> np.ndarray:
        """[k, 2]: (row, line) wherever a row is not one line below the one before."""
        ...


class PlainNames:
    def __init__(self) -> None:
        self.known: dict[bytes, int] = {}

    def take(self, text: bytes) -> int:
        return self.known.setdefault(text, len(self.known))

    def texts(self) -> list[str]:
        return [text.decode() for text in self.known]

    def __len__(self) -> int:
        return len(self.known)


class PlainTable:
    def __init__(
        self,
        kinds: Sequence[Kind],
        names: Sequence[PlainNames | None],
        delimiter: str,
        comments: bool,
        first_line: int,
    ) -> None:
        self.kinds, self.names = kinds, names
        self.delimiter, self.comments = delimiter.encode(), comments
        self.cells: list[list[float]] = [[] for _ in kinds]
        self.has_turned = [False] * len(kinds)
        self.line = self.expected = first_line
        self.count = 0
        self.places: list[tuple[int, int]] = []
        self.found: Found | None = None

    def feed(self, buffer: memoryview, last: bool) -> int:
        text, at = bytes(buffer), 0
        while at < len(text) and self.found is None:
            after = self._row(text, at, last)
            if after < 0:
                break
            at = after
        return at

    def rows(self) -> int:
        return self.count

    def turned(self) -> list[bool]:
        return self.has_turned

    def mistake(self) -> Found | None:
        return self.found

    def column(self, number: int) -> np.ndarray:
        numeric = self.kinds[number] in (Kind.NUMBER, Kind.AUTO)
        return np.array(self.cells[number], dtype=np.float64 if numeric else np.int32)

    def jumps(self) -> np.ndarray:
        return np.array(self.places, dtype=np.int64).reshape(-1, 2)

    def _row(self, text: bytes, at: int, last: bool) -> int:
        """Where the next row begins; −1 where this one is not complete, or wrong."""
        end = text.find(b"\n", at)
        if end < 0 and not last:
            return -1
        end = len(text) if end < 0 else end
        content = text[at:end].strip(b" \r" if self.delimiter == b"\t" else b" \t\r")
        if not content or (self.comments and content[:1] in b"#%"):
            self.line += 1
            return min(end + 1, len(text)) if end < len(text) else end
        try:
            cells, after, inner = split_row(text, at, self.delimiter, last)
        except Incomplete:
            return -1
        except WrongQuote as error:
            self._store(error.cells)
            if self.found is None:
                self._fail(error.what, len(error.cells), error.text)
            return -1
        self._store(cells)
        if self.found is None and len(cells) != len(self.kinds):
            self._fail(Mistake.CELLS, -1, b"", len(cells))
        if self.found is not None:
            return -1
        if self.line != self.expected:
            self.places.append((self.count, self.line))
        self.count += 1
        self.expected = self.line + 1
        self.line += 1 + inner
        return after

    def _store(self, cells: list[bytes]) -> None:
        for number, cell in enumerate(cells[: len(self.kinds)]):
            self._cell(number, cell)
            if self.found is not None:
                return

    def _fail(self, what: Mistake, column: int, text: bytes, detail: int = 0) -> None:
        self.found = Found(what, self.line, column, detail, text[:SHOWN])

    def _cell(self, number: int, cell: bytes) -> None:
        kind, names, to = self.kinds[number], self.names[number], self.cells[number]
        if kind in (Kind.NUMBER, Kind.AUTO):
            value = None if self.has_turned[number] else number_of(cell)
            if value is not None:
                to.append(value)
            elif kind is Kind.NUMBER:
                self._fail(Mistake.NOT_A_NUMBER, number, cell)
            else:
                self.has_turned[number] = True
                to.clear()
        elif kind is not Kind.SKIP:
            assert names is not None
            self._name(number, kind, names, cell, to)

    def _name(
        self, number: int, kind: Kind, names: PlainNames, cell: bytes, to: list[float]
    ) -> None:
        known = names.known.get(cell)
        if kind is Kind.TEXT and not cell:
            to.append(-1)
        elif not cell:
            self._fail(Mistake.EMPTY_ID, number, cell)
        elif kind is Kind.KNOWN_ID and known is None:
            self._fail(Mistake.UNKNOWN, number, cell)
        elif kind is Kind.NEW_ID and known is not None:
            self._fail(Mistake.REPEATED, number, cell, known)
        elif known is not None:
            to.append(known)
        elif b"\0" in cell:
            self._fail(Mistake.NUL_BYTE, number, cell)
        elif not is_utf8(cell):
            self._fail(Mistake.NOT_UTF8, number, cell)
        else:
            to.append(names.take(cell))


class Incomplete(Exception):  # noqa: N818 - a state of the buffer
    """The row goes on beyond the buffer."""


class WrongQuote(Exception):  # noqa: N818 - told as a mistake of the file
    """A quote that is not closed, or is followed by more than a delimiter."""

    def __init__(self, what: Mistake, cells: list[bytes], text: bytes) -> None:
        super().__init__(what)
        self.what, self.cells, self.text = what, cells, text


def split_row(text: bytes, at: int, delimiter: bytes, last: bool) -> tuple[list[bytes], int, int]:
    """(cells, where the next row begins, newlines inside cells) of the row at ``at``."""
    end = text.find(b"\n", at)
    end = len(text) if end < 0 else end
    if b'"' not in text[at:end]:
        line = text[at:end]
        line = line[:-1] if line.endswith(b"\r") else line
        cells = line.split() if delimiter == b" " else line.split(delimiter)
        blanks = b" " if delimiter == b"\t" else b" \t"
        if delimiter == b" ":
            cells = re.split(rb"[ \t]+", line.strip(b" \t"))
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
    return float("nan") if cell.lower() in MISSING else None


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
