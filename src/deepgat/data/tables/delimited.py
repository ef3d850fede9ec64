"""CSV files and edge lists, read by Arrow a block of rows at a time.

If Arrow refuses a block, Python reads it and either finds the mistake (file, line and column) or
reads what Arrow's grammar does not allow.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deepgat.data.tables.columns import Rows, Tell, check_names, is_text, numbers_in
from deepgat.data.tables.opening import opened, shown
from deepgat.data.tables.text import BLANKS, MISSING, Mistake, quoted, rows
from deepgat.errors import UserError

BLOCK = 2**22
"""Bytes read at a time."""
PER_COLUMN, WIDEST_BLOCK = 2**9, 2**26
"""Of a wide table more bytes are read at a time, so many per column, since every block costs time
for every column; but no more than the second."""
LONGEST = 2**24
"""No row may be longer."""
BEGINNING = 4096
NEWLINE, QUOTE = ord("\n"), ord('"')
BOM = b"\xef\xbb\xbf"
WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
SIGNATURES = {b"PK\x03\x04": "a zip archive", b"PAR1": "a Parquet file", b"\x1f\x8b": "gzip"}
BLANK_LINE = re.compile(rb"(?:^|\n)[ \t]+(?:\r?\n|$)")
MOST_COLUMNS = 200_000
GAPS = sorted(
    {"".join(c) for w in MISSING for c in itertools.product(*zip(w, w.upper(), strict=True))}
)
"""The words for "missing" in lower, upper and mixed case."""


class Block(NamedTuple):
    """Whole rows of a file, and where they are in it."""

    text: bytes
    offset: int
    line: int
    plain: bool
    """Whether Arrow reads it as Python does."""


class TextTable:
    """A file of delimited text, a :class:`~deepgat.data.tables.columns.Source`.

    Args:
        path: the file.
        header: the names of the columns.
        delimiter: one character; a blank stands for any number of blanks and tabs.
        start: the byte at which the rows begin, after a header line if there is one.
        comments: whether lines that begin with # or % are skipped.
    """

    def __init__(
        self, path: Path, header: list[str], delimiter: str, start: int, comments: bool = False
    ) -> None:
        self.path, self.name = path, shown(path)
        self.header, self.delimiter, self.start, self.comments = header, delimiter, start, comments

    def rows(
        self,
        texts: Collection[str],
        skip: Collection[str] = (),
        tell: Tell | None = None,
        size: int = 0,
    ) -> Iterator[Rows]:
        """See :meth:`~deepgat.data.tables.columns.Source.rows`."""
        wanted = [name for name in self.header if name.lower() not in skip]
        autos = [name for name in wanted if name.lower() not in texts]
        end = max(1, self.path.stat().st_size)
        wide = min(PER_COLUMN * len(self.header), WIDEST_BLOCK)
        for block in self._blocks(max(size, BLOCK, wide)):
            columns = self._arrow(block, wanted, autos) or self._arrow(block, wanted, [])
            if columns is None:
                columns = self._python(block, wanted)
            for name in autos:
                if is_text(columns[name]):
                    columns[name], _ = numbers_in(columns[name])
            count = len(columns[wanted[0]])
            place = partial(self._place, block.offset, len(block.text), block.line)
            yield Rows(self.name, count, columns, place)
            if tell is not None:
                tell((block.offset + len(block.text)) / end)

    def _place(self, offset: int, size: int, line: int, row: int) -> str:
        """The line of a row, found by reading its block again."""
        with opened(self.path) as file:
            file.seek(offset)
            text = file.read(size).decode("latin-1")
        found = next(itertools.islice(rows(text, self.delimiter, self.comments), row, None))
        return f"line {line + found.line}"

    def _blocks(self, size: int) -> Iterator[Block]:
        """The file, cut after rows."""
        line = 1 if self.comments else 2
        offset = self.start
        with opened(self.path) as file:
            while True:
                file.seek(offset)
                text = file.read(size)
                if not text:
                    return
                taken, plain = self._whole_rows(text, last=len(text) < size)
                if not taken and size < LONGEST:
                    size *= 2
                    continue
                if not taken:
                    raise UserError(
                        f"{self.name}: the row at line {line} or after is longer than "
                        f"{size >> 20} MB, or a quote in it is not closed; repair the file"
                    )
                yield Block(text[:taken], offset, line, plain)
                offset += taken
                line += text.count(b"\n", 0, taken)

    def _whole_rows(self, text: bytes, last: bool) -> tuple[int, bool]:
        """The bytes of the whole rows of a text, and whether Arrow reads them as Python does."""
        plain = b"\0" not in text and text.count(b"\r") == text.count(b"\r\n")
        if b'"' not in text or self.delimiter == " ":
            return len(text) if last else text.rfind(b"\n") + 1, plain
        end, usual = _quoted_rows(text, self.delimiter)
        if last:
            return len(text), plain and usual and text.count(b'"') % 2 == 0
        if not usual:
            end = 0
            try:
                for row in rows(text.decode("latin-1"), self.delimiter, self.comments):
                    end = row.end if row.end < len(text) or text.endswith(b"\n") else end
            except Mistake as mistake:
                if "never closed" not in mistake.why:
                    return len(text), False
        return end, plain and usual

    def _arrow(self, block: Block, wanted: list[str], autos: list[str]) -> dict[str, Any] | None:
        """Columns as Arrow reads them, doubles for ``autos``; None if it refuses."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv

        text = self._for_arrow(block)
        padded = text is not None and (b" " in text or b"\t" in text)
        if text is None or (padded and len(self.header) == 1):  # a line of blanks is no row
            return None
        types = {**dict.fromkeys(wanted, pa.string()), **dict.fromkeys(autos, pa.float64())}
        try:
            table = csv.read_csv(
                pa.BufferReader(text),
                csv.ReadOptions(column_names=self.header, block_size=self._at_once(len(text))),
                csv.ParseOptions(
                    delimiter=self.delimiter,
                    quote_char=False if self.delimiter == " " else '"',
                    newlines_in_values=b'"' in text,
                ),
                csv.ConvertOptions(column_types=types, include_columns=wanted, null_values=GAPS),
            )
        except pa.ArrowInvalid:
            return None
        columns = dict(zip(table.column_names, table.columns, strict=True))
        for name, column in columns.items():
            if not is_text(column):
                if pc.any(pc.is_nan(column)).as_py():  # such as "-nan"
                    return None
            elif padded:
                columns[name] = pc.ascii_trim(column, characters=BLANKS)
        return columns

    def _at_once(self, size: int) -> int:
        """Bytes that Arrow parses at once: a part of a block for each thread, unless it is wide."""
        wide = PER_COLUMN * len(self.header) > BLOCK
        return max(2**20, size if wide else size // 4)

    def _for_arrow(self, block: Block) -> bytes | None:
        """The text of a block as Arrow must have it; None if only Python can read it."""
        text = block.text
        marked = self.comments and (b"#" in text or b"%" in text)
        if not block.plain or (marked and b'"' in text):
            return None
        if self.delimiter == "\t" and BLANK_LINE.search(text):  # no row, but to Arrow it is one
            return None
        if marked:
            text = re.sub(rb"(?m)^[ \t]*[#%].*\n?", b"", text)
        if self.delimiter == " ":
            text = re.sub(rb"[ \t]{2,}|\t", b" ", text)
            text = re.sub(rb" (?=\r?\n)", b"", text).strip(b" ").replace(b"\n ", b"\n")
        return text

    def _python(self, block: Block, wanted: list[str]) -> dict[str, Any]:
        """As :meth:`_arrow`, by the grammar in Python; mistakes are errors."""
        import pyarrow as pa

        cells: dict[str, list[str]] = {name: [] for name in wanted}
        places = [(self.header.index(name), name) for name in wanted]
        try:
            for row in rows(block.text.decode("latin-1"), self.delimiter, self.comments):
                if len(row.cells) != len(self.header):
                    why = f"there are {len(row.cells)} cells, but {len(self.header)} columns"
                    raise Mistake(row.line, -1, f"{why}; repair the line")
                for number, name in places:
                    cells[name].append(_decoded(row.cells[number], row.line, number))
        except Mistake as mistake:
            where = f"{self.name}, line {block.line + mistake.line}"
            if 0 <= mistake.column < len(self.header):
                where += f", column {self.header[mistake.column]!r}"
            raise UserError(f"{where}: {mistake.why}") from None
        return {name: pa.chunked_array([found], pa.string()) for name, found in cells.items()}


def _decoded(cell: str, line: int, column: int) -> str:
    """A cell of UTF-8 bytes that was read as Latin-1."""
    raw = cell.encode("latin-1")
    if b"\0" in raw:
        why = "there is a NUL byte, so this is not a text file; export it anew"
        raise Mistake(line, column, why)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        text = quoted(raw.decode(errors="backslashreplace"))
        raise Mistake(line, column, f"{text} is not UTF-8; save the file as UTF-8") from None


def _quoted_rows(text: bytes, delimiter: str) -> tuple[int, bool]:
    """Where the last whole row of a text ends, and whether Arrow reads its quotes as Python does.

    Quotes open and close in turn. The first must follow a delimiter, the second precede one, and
    neither may have blanks beside it, except that two quotes in a row stand for one.
    """
    chars = np.frombuffer(b"\n" + text + b"\n", np.uint8)
    quotes = np.flatnonzero(chars == QUOTE)
    opening, closing = quotes[0::2], quotes[1::2]
    ends = np.frombuffer(f"\n\r{delimiter}".encode(), np.uint8)
    blanks = np.frombuffer(b" \t", np.uint8)
    usual = True
    for place, out, into in ((opening, -1, 1), (closing, 1, -1)):
        place = place[chars[place + out] != QUOTE]
        usual &= bool(np.isin(chars[place + out], ends).all())
        usual &= not np.isin(chars[place + into], blanks).any()
    newlines = np.flatnonzero(chars[1:-1] == NEWLINE)
    outside = newlines[np.searchsorted(quotes - 1, newlines) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0, usual


def csv_file(path: Path) -> TextTable:
    """A CSV file, with the names in its first line and what stands between them."""
    name = shown(path)
    with opened(path) as file:
        skipped = _check_beginning(file.read(BEGINNING), name)
        file.seek(skipped)
        line = file.readline(LONGEST)
    start = skipped + len(line)
    line = line.removesuffix(b"\n")
    if not line.strip():
        raise UserError(f"{name} is empty: expected a first line with the names of the columns")
    if len(line) == LONGEST:
        raise UserError(f"{name}, line 1 is longer than {LONGEST >> 20} MB: this is not a CSV file")
    if b"\r" in line.rstrip(b"\r"):
        raise UserError(
            f"{name}, line 1 holds a carriage return inside: save the file with line ends \\n or "
            "\\r\\n"
        )
    delimiter = max(",;\t", key=lambda char: line.count(char.encode()))
    try:
        cells = next(rows(line.decode("latin-1"), delimiter)).cells
    except Mistake:
        raise UserError(f"{name}, line 1 has a quote that is not closed: close it") from None
    try:
        names = [cell.encode("latin-1").decode().strip() for cell in cells]
    except UnicodeDecodeError:
        raise UserError(f"{name}, line 1 is not UTF-8: save the file as UTF-8") from None
    if len(names) > MOST_COLUMNS:
        raise UserError(
            f"{name} has {len(names):,} columns: at most {MOST_COLUMNS:,} can be read; use .npz "
            "for sparse features"
        )
    check_names(name, names)
    return TextTable(path, names, delimiter, start)


def edge_list(path: Path, names: list[str]) -> TextTable:
    """Two ids and perhaps a weight per line, between blanks, tabs or commas; no header.

    Lines that begin with # or % are skipped. ``names`` of these columns are given.
    """
    name = shown(path)
    content = b""
    with opened(path) as file:
        skipped = _check_beginning(file.read(BEGINNING), name)
        file.seek(skipped)
        while line := file.readline(LONGEST):
            content = line.strip()
            if content and content[:1] not in b"#%":
                break
            content = b""
    if not content:
        raise UserError(f"{name} has no edges: expected two ids per line")
    delimiter = next((char for char in ",;\t" if char.encode() in content), " ")
    width = len(content.split(None if delimiter == " " else delimiter.encode()))
    if width not in (2, 3):
        raise UserError(
            f"{name} has {width} columns in {quoted(content.decode(errors='backslashreplace'))}: "
            "expected two ids per line and perhaps a weight"
        )
    return TextTable(path, names[:width], delimiter, skipped, comments=True)


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
