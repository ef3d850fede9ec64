"""CSV files and edge lists, read by Arrow a block of rows at a time.

Arrow reads a block as the columns that are wanted. If it refuses, Python reads the same block and
either finds the mistake (file, line and column) or reads what Arrow's grammar does not allow.
"""

from __future__ import annotations

import enum
import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from deepgat.data.tables.columns import Column, Columns, check_names
from deepgat.data.tables.mistakes import Found, explain, quoted
from deepgat.data.tables.opening import opened, shown
from deepgat.data.tables.text import (
    MISSING,
    Incomplete,
    Mistake,
    WrongQuote,
    is_utf8,
    number_of,
    rows,
    split_row,
)
from deepgat.data.tables.vocabulary import Vocabulary
from deepgat.errors import UserError

BLOCK = 2**22
"""Bytes read at a time."""
BUFFER = 2**24
"""No row may be longer."""
BYTES_PER_NAME = 32
"""Arrow builds a hash table of all ids for every block, so that more ids ask for larger blocks."""
BEGINNING = 4096
NEWLINE, QUOTE = ord("\n"), ord('"')
BOM = b"\xef\xbb\xbf"
WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
SIGNATURES = {b"PK\x03\x04": "a zip archive", b"PAR1": "a Parquet file", b"\x1f\x8b": "gzip"}
MOST_COLUMNS = 200_000
GAPS = sorted(
    {"".join(c) for w in MISSING for c in itertools.product(*zip(w, w.upper(), strict=True))}
)
"""The words for "missing" in lower, upper and mixed case."""
Tell: TypeAlias = Callable[[float], None]
"""Receives the share of a job that is done."""


class Kind(enum.Enum):
    """What becomes of the cells of a column."""

    NUMBER = enum.auto()
    AUTO = enum.auto()
    """Numbers, unless some cell is not a number."""
    TEXT = enum.auto()
    """The number of a text in a dictionary; −1 for an empty cell."""
    NEW_ID = enum.auto()
    """A text that appears only once."""
    KNOWN_ID = enum.auto()
    """A text that is in the dictionary already."""
    ANY_ID = enum.auto()
    SKIP = enum.auto()


class Wanted(NamedTuple):
    """What a column becomes, with the dictionary of its texts."""

    kind: Kind
    names: Vocabulary | None = None


class Header(NamedTuple):
    names: list[str]
    delimiter: str
    start: int
    """The byte at which the rows begin."""


class Block(NamedTuple):
    """Whole rows of a file."""

    text: bytes
    offset: int
    line: int
    plain: bool
    """Whether Arrow may read it."""


def read_header(path: Path) -> Header:
    """The names in the first line of a CSV file, and what stands between them."""
    name = shown(path)
    with opened(path) as file:
        skipped = _check_beginning(file.read(BEGINNING), name)
        file.seek(skipped)
        line = file.readline(BUFFER)
    start = skipped + len(line)
    line = line.removesuffix(b"\n")
    if not line.strip():
        raise UserError(f"{name} is empty: expected a first line with the names of the columns")
    if len(line) == BUFFER:
        raise UserError(f"{name}, line 1 is longer than {BUFFER >> 20} MB: this is not a CSV file")
    if b"\r" in line.rstrip(b"\r"):
        raise UserError(
            f"{name}, line 1 holds a carriage return inside: save the file with line ends \\n or "
            "\\r\\n"
        )
    delimiter = max(",;\t", key=lambda char: line.count(char.encode()))
    try:
        cells, _, _ = split_row(line, 0, delimiter.encode(), last=True)
    except (WrongQuote, Incomplete):
        raise UserError(f"{name}, line 1 has a quote that is not closed: close it") from None
    if not all(is_utf8(cell) for cell in cells):
        raise UserError(f"{name}, line 1 is not UTF-8: save the file as UTF-8")
    names = [cell.decode().strip() for cell in cells]
    if len(names) > MOST_COLUMNS:
        raise UserError(
            f"{name} has {len(names):,} columns: at most {MOST_COLUMNS:,} can be read; use .npz "
            "for sparse features"
        )
    check_names(name, names)
    return Header(names, delimiter, start)


def read_csv(path: Path, wanted: Mapping[str, Wanted]) -> Columns:
    """The columns of a CSV file with a header line.

    ``wanted`` says by name (in lower case) what columns become. All others are numbers if every
    cell is one, and texts otherwise.
    """
    header = read_header(path)
    plan = [wanted.get(name.lower(), Wanted(Kind.AUTO)) for name in header.names]
    reader = _Reader(path, header, plan)
    table = _joined(reader)
    if any(reader.turned):  # a second look at the file, for the columns that hold texts
        texts = [Wanted(Kind.TEXT, Vocabulary()) if t else Wanted(Kind.SKIP) for t in reader.turned]
        more = _joined(_Reader(path, header, texts))
        both = {item.name: item for item in (*table.columns, *more.columns)}
        table = replace(table, columns=[both[name] for name in header.names if name in both])
    return table


def read_csv_pieces(
    path: Path, wanted: Mapping[str, Wanted], tell: Tell | None = None
) -> Iterator[Columns]:
    """As :func:`read_csv`, one block of rows at a time.

    A column of no kind that holds a text is left out of that piece and of those after it.
    """
    header = read_header(path)
    plan = [wanted.get(name.lower(), Wanted(Kind.AUTO)) for name in header.names]
    reader = _Reader(path, header, plan, tell=tell)
    for values in reader.pieces():
        yield reader.columns(values, reader.starts[-1], texts=False)


def read_edge_list(path: Path, ends: Wanted) -> Columns:
    """Two ids and perhaps a weight per line, between blanks, tabs or commas; no header.

    Lines that begin with # or % are skipped.
    """
    width, delimiter, skipped = _sniff_edge_list(path)
    plan = [ends, ends, Wanted(Kind.NUMBER)][:width]
    header = Header(["source", "target", "weight"][:width], delimiter, skipped)
    return _joined(_Reader(path, header, plan, comments=True, first_line=1))


def _joined(reader: _Reader) -> Columns:
    pieces = list(reader.pieces())
    whole: list[np.ndarray | None] = []
    for number, item in enumerate(reader.plan):
        kept = item.kind is not Kind.SKIP and not reader.turned[number]
        dtype = np.float64 if item.kind in (Kind.NUMBER, Kind.AUTO) else np.int32
        parts = [piece[number] for piece in pieces] if kept else []
        whole.append(np.concatenate([np.empty(0, dtype), *parts]) if kept else None)
        for piece in pieces:
            piece[number] = None
    return reader.columns(whole)


class _Reader:
    """Reads the blocks of one file as the columns of a plan."""

    def __init__(
        self,
        path: Path,
        header: Header,
        plan: Sequence[Wanted],
        comments: bool = False,
        first_line: int = 2,
        tell: Tell | None = None,
    ) -> None:
        self.path, self.header, self.plan = path, header, plan
        self.comments, self.first_line, self.tell = comments, first_line, tell
        self.turned = [False] * len(plan)
        """Per column: whether it was of no kind and holds texts."""
        self.starts: list[int] = []
        self.places: list[tuple[int, int, int]] = []
        """Per block: its first row; and its first byte, its size and its first line."""
        self.rows = 0

    def pieces(self) -> Iterator[list[Any]]:
        """The values of every column, one block after the other; None for a column left out."""
        for block in self._blocks():
            self.starts.append(self.rows)
            self.places.append((block.offset, len(block.text), block.line))
            try:
                values, count = self._values(block)
            except UserError:
                self._check_repeated()  # an earlier mistake
                raise
            self.rows += count
            yield values
        self._check_repeated()

    def columns(self, values: Sequence[Any], first: int = 0, texts: bool = True) -> Columns:
        """Values of the rows from ``first`` on as a table, with the texts of its dictionaries."""
        columns = []
        for item, title, found in zip(self.plan, self.header.names, values, strict=True):
            if found is None:
                continue
            if item.kind in (Kind.NUMBER, Kind.AUTO):
                columns.append(Column(title, numbers=found))
            else:
                assert item.names is not None
                known = item.names.texts() if texts and item.kind is Kind.TEXT else ()
                columns.append(Column(title, codes=found, texts=known))
        count = self.rows - first
        return Columns(shown(self.path), count, columns, lambda row: self.place(row + first))

    def place(self, row: int) -> str:
        """The line of a row, found by reading its block again."""
        number = bisect_right(self.starts, row) - 1
        offset, size, line = self.places[number]
        with opened(self.path) as file:
            file.seek(offset)
            text = file.read(size)
        return f"line {line + self._line(text, row - self.starts[number])}"

    def _blocks(self) -> Iterator[Block]:
        """The file, cut after rows."""
        hashed = max((i.names.hashed() for i in self.plan if i.names is not None), default=0)
        size = max(min(BLOCK, BUFFER), BYTES_PER_NAME * hashed)
        end = self.path.stat().st_size
        offset, line = self.header.start, self.first_line
        with opened(self.path) as file:
            while offset < end:
                file.seek(offset)
                text = file.read(size)
                last = len(text) < size
                if self.tell is not None:
                    self.tell(file.tell() / end)
                taken, plain = self._whole_rows(text, last)
                if not taken and size < BUFFER:
                    size *= 2
                    continue
                if not taken:
                    raise UserError(
                        f"{shown(self.path)}: the row at line {line} or after is longer than "
                        f"{size >> 20} MB, or a quote in it is not closed; repair the file"
                    )
                text = text[:taken]
                yield Block(text, offset, line, plain)
                offset += taken
                line += int(np.count_nonzero(np.frombuffer(text, np.uint8) == NEWLINE))

    def _whole_rows(self, text: bytes, last: bool) -> tuple[int, bool]:
        """The bytes of the whole rows of a text, and whether Arrow reads them as Python does."""
        plain = b"\0" not in text
        if b"\r" in text:
            plain &= text.count(b"\r") == text.count(b"\r\n")
        if b'"' not in text:
            return len(text) if last else text.rfind(b"\n") + 1, plain
        end, usual = _quoted_rows(text, self.header.delimiter)
        if last:
            return len(text), plain and usual and text.count(b'"') % 2 == 0
        if usual:
            return end, plain
        end = 0
        try:
            for row in rows(text, self.header.delimiter, self.comments, last=False):
                end = row.end
        except WrongQuote:
            return len(text), False
        return end, False

    def _values(self, block: Block) -> tuple[list[Any], int]:
        """The values of a block: doubles, or int32 numbers of texts; and how many rows it has."""
        cells, count, mistakes = self._cells(block)
        values: list[Any] = [None] * len(cells)
        ids = []
        for number, (item, found) in enumerate(zip(self.plan, cells, strict=True)):
            if found is None or isinstance(found, np.ndarray):
                values[number] = found
            elif item.kind in (Kind.NUMBER, Kind.AUTO):
                values[number], wrong = _numbers(found)
                if wrong >= 0 and item.kind is Kind.AUTO:
                    self.turned[number], values[number] = True, None
                elif wrong >= 0:
                    text = found[wrong].as_py()
                    mistakes.append(Found(wrong, number, Mistake.NOT_A_NUMBER, text))
            elif item.kind is Kind.TEXT:
                assert item.names is not None
                values[number] = _codes(found, item.names)
            else:
                ids.append(number)
                if (row := found.index("").as_py()) >= 0:
                    mistakes.append(Found(row, number, Mistake.EMPTY_ID))
        if ids:
            mistakes += self._number_ids(ids, cells, values)
        if mistakes:
            raise self._explained(min(mistakes, key=lambda found: found[:2]), block)
        return values, count

    def _number_ids(self, ids: list[int], cells: list[Any], values: list[Any]) -> list[Found]:
        """Puts the numbers of the ids in some columns among the values; the unknown ones.

        All these columns are of one kind and have one dictionary.
        """
        import pyarrow as pa

        kind, names = self.plan[ids[0]]
        assert names is not None
        count, before = len(cells[ids[0]]), len(names)
        texts = pa.chunked_array([chunk for number in ids for chunk in cells[number].chunks])
        if kind is Kind.NEW_ID:  # repeated ones are looked for at the end
            names.append(texts)
            codes = np.arange(before, before + count, dtype=np.int32)[None]
        elif kind is Kind.KNOWN_ID:
            codes = names.find(texts).reshape(len(ids), count)
        else:  # numbered row by row
            order = np.arange(len(texts)).reshape(len(ids), count).T.ravel()
            codes = names.add(texts.take(pa.array(order))).reshape(count, len(ids)).T
        mistakes = []
        for number, found in zip(ids, codes, strict=True):
            values[number] = found
            if (found < 0).any():
                row = int((found < 0).argmax())
                text = cells[number][row].as_py().encode()
                if text:
                    mistakes.append(Found(row, number, Mistake.UNKNOWN, text))
        return mistakes

    def _cells(self, block: Block) -> tuple[list[Any], int, list[Found]]:
        """(columns, rows, mistakes): doubles [rows], or the cells as an Arrow array.

        The cells of a column of texts or ids are strings, those of a column of numbers are bytes.
        """
        text = _for_arrow(block, self.header.delimiter, self.comments)
        if text is not None:
            for numeric in (True, False):
                found = self._arrow(text, numeric)
                if found is not None:
                    return *found, []
        return self._python(block)

    def _arrow(self, text: bytes, numeric: bool) -> tuple[list[Any], int] | None:
        """Columns as Arrow reads them, numbers as bytes unless ``numeric``; None if it refuses."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv

        padded = b" " in text or b"\t" in text
        if padded and len(self.plan) == 1:  # Arrow would take a line of blanks for a row
            return None
        numbers = {i for i in self._wanted() if self.plan[i].kind in (Kind.NUMBER, Kind.AUTO)}
        types = {
            str(i): pa.float64() if numeric and i in numbers else pa.string()
            for i in self._wanted()
        }
        try:
            table = csv.read_csv(
                pa.BufferReader(text),
                csv.ReadOptions(
                    column_names=[str(i) for i in range(len(self.plan))],
                    block_size=max(2**20, len(text) // 4),
                ),
                csv.ParseOptions(delimiter=self.header.delimiter, newlines_in_values=b'"' in text),
                csv.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=GAPS
                ),
            )
        except pa.ArrowInvalid:
            return None
        cells: list[Any] = [None] * len(self.plan)
        for name, column in zip(table.column_names, table.columns, strict=True):
            if column.type == pa.float64():
                values = column.to_numpy()
                if np.count_nonzero(np.isnan(values)) != column.null_count:  # such as "-nan"
                    return None
                cells[int(name)] = values
                continue
            if padded:
                column = pc.ascii_trim(column, characters=_blanks(self.header.delimiter))
            cells[int(name)] = column.cast(pa.binary()) if int(name) in numbers else column
        return cells, table.num_rows

    def _python(self, block: Block) -> tuple[list[Any], int, list[Found]]:
        """As :meth:`_cells`, by the grammar in Python, up to the first row of a wrong shape."""
        import pyarrow as pa

        good: list[list[bytes]] = []
        mistakes = []
        try:
            for row in rows(block.text, self.header.delimiter, self.comments):
                if len(row.cells) != len(self.plan):
                    found = Found(len(good), -1, Mistake.CELLS, cells=len(row.cells))
                    mistakes.append(found)
                    break
                good.append(row.cells)
        except WrongQuote as error:
            mistakes.append(Found(len(good), len(error.cells), error.what, error.text))
        cells: list[Any] = [None] * len(self.plan)
        for number in self._wanted():
            column = [row[number] for row in good]
            if self.plan[number].kind in (Kind.NUMBER, Kind.AUTO):
                cells[number] = pa.chunked_array([pa.array(column, pa.binary())])
                continue
            for at, cell in enumerate(column):
                if b"\0" in cell or not is_utf8(cell):
                    what = Mistake.NUL_BYTE if b"\0" in cell else Mistake.NOT_UTF8
                    mistakes.append(Found(at, number, what, cell))
                    column[at] = b"?"
            cells[number] = pa.chunked_array([pa.array(column, pa.binary()).cast(pa.string())])
        return cells, len(good), mistakes

    def _wanted(self) -> list[int]:
        return [
            number
            for number, item in enumerate(self.plan)
            if item.kind is not Kind.SKIP and not self.turned[number]
        ]

    def _check_repeated(self) -> None:
        for number, (kind, names) in enumerate(self.plan):
            if kind is Kind.NEW_ID and names is not None:
                row = names.first_repeated()
                if row is not None:
                    found = Found(row, number, Mistake.REPEATED, names[row].encode())
                    where = f"{shown(self.path)}, {self.place(row)}"
                    raise explain(found, where, self.header.names)

    def _explained(self, found: Found, block: Block) -> UserError:
        line = block.line + self._line(block.text, found.row)
        return explain(found, f"{shown(self.path)}, line {line}", self.header.names)

    def _line(self, text: bytes, row: int) -> int:
        """The line of a row in a text, both from 0."""
        try:
            found = rows(text, self.header.delimiter, self.comments)
            return next(itertools.islice(found, row, None)).line
        except WrongQuote as error:
            return error.line


def _blanks(delimiter: str) -> str:
    return " " if delimiter == "\t" else " \t"


def _quoted_rows(text: bytes, delimiter: str) -> tuple[int, bool]:
    """Where the last whole row of a text ends, and whether Arrow reads its quotes as Python does.

    Quotes open and close in turn. The first must follow a delimiter, the second precede one, and
    neither may have blanks beside it, except that two quotes in a row stand for one.
    """
    chars = np.frombuffer(b"\n" + text + b"\n", np.uint8)
    quotes = np.flatnonzero(chars == QUOTE)
    opening, closing = quotes[0::2], quotes[1::2]
    ends = np.frombuffer(f"\n\r{delimiter}".encode(), np.uint8)
    blanks = np.frombuffer(_blanks(delimiter).encode(), np.uint8)
    usual = True
    for place, out, into in ((opening, -1, 1), (closing, 1, -1)):
        place = place[chars[place + out] != QUOTE]
        usual &= bool(np.isin(chars[place + out], ends).all())
        usual &= not np.isin(chars[place + into], blanks).any()
    newlines = np.flatnonzero(chars[1:-1] == NEWLINE)
    outside = newlines[np.searchsorted(quotes - 1, newlines) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0, usual


def _for_arrow(block: Block, delimiter: str, comments: bool) -> bytes | None:
    """The text of a block as Arrow must have it; None if only Python can read it."""
    text = block.text
    if not block.plain:
        return None
    marked = comments and (b"#" in text or b"%" in text)
    if delimiter != " " and not marked:
        return text
    if b'"' in text:
        return None
    if marked:
        text = re.sub(rb"(?m)^[ \t]*[#%].*\n?", b"", text)
    if delimiter == " ":
        text = re.sub(rb"[ \t]{2,}|\t", b" ", text)
        text = re.sub(rb" (?=\r?\n)", b"", text).strip(b" ").replace(b"\n ", b"\n")
    return text


def _numbers(cells: Any) -> tuple[np.ndarray, int]:
    """The numbers in an Arrow array of bytes, and the first row that holds none, or −1."""
    encoded = cells.combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    known = np.empty(len(encoded.dictionary))
    for code, cell in enumerate(encoded.dictionary.to_pylist()):
        number = number_of(cell)
        if number is None:
            return known, int((codes == code).argmax())
        known[code] = number
    return known[codes], -1


def _codes(cells: Any, names: Vocabulary) -> np.ndarray:
    """The numbers of texts, int32; −1 for empty ones."""
    import pyarrow as pa

    encoded = cells.combine_chunks().dictionary_encode()
    texts, codes = encoded.dictionary, encoded.indices.to_numpy()
    empty = texts.index("").as_py()
    numbers = np.full(len(texts), -1, dtype=np.int32)
    filled = np.arange(len(texts)) != empty
    numbers[filled] = names.add(texts.filter(pa.array(filled)))
    return numbers[codes]


def _check_beginning(begin: bytes, name: str) -> int:
    """Refuse what is plainly no text; the length of a byte order mark."""
    if begin.startswith(WIDE_BOMS):
        raise UserError(f"{name} is UTF-16: save it as UTF-8")
    for signature, what in SIGNATURES.items():
        if begin.startswith(signature):
            raise UserError(f"{name} is {what} and not text: unpack it, or correct its name")
    if b"\0" in begin:
        raise UserError(f"{name} holds NUL bytes, so it is not text: export it as UTF-8 text")
    return len(BOM) if begin.startswith(BOM) else 0


def _sniff_edge_list(path: Path) -> tuple[int, str, int]:
    """(columns, delimiter, where the rows begin), from the first line that has an edge."""
    name = shown(path)
    content = b""
    with opened(path) as file:
        skipped = _check_beginning(file.read(BEGINNING), name)
        file.seek(skipped)
        while line := file.readline(BUFFER):
            content = line.strip()
            if content and content[:1] not in b"#%":
                break
            content = b""
    if content:
        delimiter = next((char for char in ",;\t" if char.encode() in content), " ")
        width = len(content.split(None if delimiter == " " else delimiter.encode()))
        if width not in (2, 3):
            raise UserError(
                f"{name} has {width} columns in {quoted(content)}: expected two ids per line and "
                "perhaps a weight"
            )
        return width, delimiter, skipped
    raise UserError(f"{name} has no edges: expected two ids per line")
