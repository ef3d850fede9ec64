"""CSV files and edge lists, read a buffer at a time: text is never held as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from deepgat.data.tables import native
from deepgat.data.tables.columns import Column, Columns, check_names
from deepgat.data.tables.opening import opened, shown
from deepgat.data.tables.text import (
    Found,
    Incomplete,
    Kind,
    Mistake,
    Names,
    PlainNames,
    PlainTable,
    Table,
    WrongQuote,
    is_utf8,
    split_row,
)
from deepgat.errors import UserError

BUFFER = 2**24
"""Bytes read at a time; no row may be longer."""
BEGINNING = 4096
NEWLINE = ord("\n")
BOM = b"\xef\xbb\xbf"
WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
SIGNATURES = {b"PK\x03\x04": "a zip archive", b"PAR1": "a Parquet file", b"\x1f\x8b": "gzip"}
MOST_COLUMNS = 200_000
Tell: TypeAlias = Callable[[float], None]
"""Is told the share of a job that is done."""


class Wanted(NamedTuple):
    """What a column is to become, with the dictionary of its texts."""

    kind: Kind
    names: Names | None = None


class Header(NamedTuple):
    names: list[str]
    delimiter: str
    start: int
    """The byte at which the rows begin."""


def new_names() -> Names:
    """An empty dictionary, of the kernel where it was built."""
    return PlainNames() if native.functions() is None else native.NativeNames()


def new_table(wanted: Sequence[Wanted], delimiter: str, comments: bool, first_line: int) -> Table:
    kinds = [item.kind for item in wanted]
    names: Any = [item.names for item in wanted]
    kind = PlainTable if native.functions() is None else native.NativeTable
    return kind(kinds, names, delimiter, comments, first_line)


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

    ``wanted`` says by name (in lower case) what columns are to become; all others are numbers
    where every cell is one, else texts.
    """
    header = read_header(path)
    plan = [wanted.get(name.lower(), Wanted(Kind.AUTO)) for name in header.names]
    found = _checked(_read(path, plan, header.delimiter, header.start), path, header.names)
    turned = found.turned()
    table = _columns(found, plan, turned, header.names, shown(path), first_line=2)
    if any(turned):  # a second look at the file, for the columns that turned out to be text
        texts = [Wanted(Kind.TEXT, new_names()) if t else Wanted(Kind.SKIP) for t in turned]
        again = _checked(_read(path, texts, header.delimiter, header.start), path, header.names)
        nothing = [False] * len(texts)
        more = _columns(again, texts, nothing, header.names, shown(path), first_line=2)
        both = {item.name: item for item in (*table.columns, *more.columns)}
        table = replace(table, columns=[both[name] for name in header.names if name in both])
    return table


def read_csv_pieces(
    path: Path, wanted: Mapping[str, Wanted], tell: Tell | None = None
) -> Iterator[Columns]:
    """As :func:`read_csv`, a buffer's rows at a time, none of which is kept.

    A column of no kind that holds a text in a piece is left out of that piece.
    """
    header = read_header(path)
    plan = [wanted.get(name.lower(), Wanted(Kind.AUTO)) for name in header.names]
    name, line = shown(path), 2

    def fresh(at: int) -> Table:
        nonlocal line
        line = at
        return new_table(plan, header.delimiter, False, at)

    for table in _fed(path, fresh, header.start, line, tell):
        _checked(table, path, header.names)
        if table.rows():
            yield _columns(table, plan, table.turned(), header.names, name, line, texts=False)


def read_edge_list(path: Path, ends: Wanted) -> Columns:
    """Two ids and perhaps a weight per line, between blanks, tabs or commas; no header.

    Lines that begin with # or % are skipped.
    """
    width, delimiter, skipped = _sniff_edge_list(path)
    plan = [ends, ends, Wanted(Kind.NUMBER)][:width]
    names = ["source", "target", "weight"][:width]
    table = _read(path, plan, delimiter, skipped, comments=True, first_line=1)
    _checked(table, path, names)
    return _columns(table, plan, table.turned(), names, shown(path), first_line=1)


def _read(
    path: Path,
    plan: Sequence[Wanted],
    delimiter: str,
    start: int,
    comments: bool = False,
    first_line: int = 2,
) -> Table:
    table = new_table(plan, delimiter, comments, first_line)
    for _ in _fed(path, lambda line: table, start, first_line):
        pass
    return table


def _fed(
    path: Path,
    table_at: Callable[[int], Table],
    start: int,
    first_line: int,
    tell: Tell | None = None,
) -> Iterator[Table]:
    """Feeds a buffer after the other to ``table_at(line of its first row)``, which is given out."""
    line = first_line
    with opened(path) as file:
        file.seek(start)
        room = bytearray(min(BUFFER, path.stat().st_size + 1))
        view, held = memoryview(room), 0
        while True:
            got = file.readinto(view[held:])  # type: ignore[attr-defined]
            last = not got
            if tell is not None:
                tell(file.tell() / path.stat().st_size)
            table = table_at(line)
            taken = table.feed(view[: held + got], last)
            yield table
            if last or table.mistake() is not None:
                return
            line += int(np.count_nonzero(np.frombuffer(view[:taken], dtype=np.uint8) == NEWLINE))
            held += got - taken
            if held == len(room):
                raise UserError(
                    f"{shown(path)}: the row at line {line} or after is longer than "
                    f"{BUFFER >> 20} MB, or a quote in it is not closed; repair the file"
                )
            view[:held] = bytes(view[taken : taken + held])


def _checked(table: Table, path: Path, names: Sequence[str]) -> Table:
    if (found := table.mistake()) is not None:
        raise explain(found, shown(path), names)
    return table


def _columns(
    table: Table,
    plan: Sequence[Wanted],
    turned: Sequence[bool],
    names: Sequence[str],
    name: str,
    first_line: int,
    texts: bool = True,
) -> Columns:
    jumps = table.jumps()

    def place(row: int) -> str:
        before = int(np.searchsorted(jumps[:, 0], row, side="right")) - 1
        from_row, from_line = jumps[before].tolist() if before >= 0 else (0, first_line)
        return f"line {from_line + row - from_row}"

    columns = []
    for number, (item, title) in enumerate(zip(plan, names, strict=True)):
        if item.kind is Kind.SKIP or turned[number]:
            continue
        values = table.column(number)
        if item.kind in (Kind.NUMBER, Kind.AUTO):
            columns.append(Column(title, numbers=values))
        else:
            assert item.names is not None
            known = item.names.texts() if texts and item.kind is Kind.TEXT else ()
            columns.append(Column(title, codes=values, texts=known))
    return Columns(name, table.rows(), columns, place)


def explain(found: Found, file: str, names: Sequence[str]) -> UserError:
    """The mistake of a table as a sentence that names file, line and column."""
    where = f"{file}, line {found.line}"
    if found.column >= 0:
        known = found.column < len(names)
        where += f", column {names[found.column]!r}" if known else f", cell {found.column + 1}"
    text = quoted(found.text)
    match found.what:
        case Mistake.CELLS:
            why = f"there are {found.detail} cells, but {len(names)} columns; repair the line"
        case Mistake.NOT_A_NUMBER:
            why = f"{text} is not a number; write a number such as 0.5"
        case Mistake.REPEATED:
            why = f"the id {text} is there a second time; give every node its own id"
        case Mistake.UNKNOWN:
            why = f"the id {text} is not among the nodes; add the node, or remove the edge"
        case Mistake.EMPTY_ID:
            why = "the id is missing; fill it in"
        case Mistake.NOT_UTF8:
            why = f"{text} is not UTF-8; save the file as UTF-8"
        case Mistake.NUL_BYTE:
            why = "there is a NUL byte, so this is not a text file; export it anew"
        case Mistake.OPEN_QUOTE:
            why = "a quote is opened and never closed; close it, or the file was cut short"
        case Mistake.AFTER_QUOTE:
            why = f"text follows the closing quote of {text}; write a quote inside as two quotes"
        case _:
            why = "there are more different texts than can be numbered (2 billion)"
    return UserError(f"{where}: {why}")


def quoted(text: bytes | str, most: int = 40) -> str:
    """A piece of a file in a sentence: short, on one line, unprintable characters escaped."""
    plain = text.decode(errors="backslashreplace") if isinstance(text, bytes) else text
    return ascii(plain[:most] + "…") if len(plain) > most else repr(plain)


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
