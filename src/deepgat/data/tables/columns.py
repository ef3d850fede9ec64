"""Tables: blocks of rows as Arrow arrays, and columns as NumPy arrays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from deepgat.data.tables.text import number_of, quoted
from deepgat.errors import UserError

Tell: TypeAlias = Callable[[float], None]
"""Receives the share of a job that is done."""


class Rows(NamedTuple):
    """Some rows of a table."""

    file: str
    length: int
    columns: dict[str, Any]
    """By name: an Arrow array of doubles, or of texts without blanks around them."""
    place: Callable[[int], str]
    """Where a row is: "line 7"."""

    def numbers(self, name: str, otherwise: str = "") -> np.ndarray:
        """A column [rows] as doubles; a cell that is no number is an error."""
        values = self.columns[name]
        if is_text(values):
            values, wrong = numbers_in(values)
            if wrong >= 0:
                text = quoted(self.columns[name][wrong].as_py())
                raise UserError(
                    f"{self.at(wrong, name)}: {text} is not a number; write a number such as 0.5"
                    f"{otherwise}"
                )
        return np.asarray(values.to_numpy())

    def check_ids(self, name: str) -> Any:
        """A column of ids; an empty one is an error."""
        wanted = name.strip().lower()
        ids = next(self.columns[key] for key in self.columns if key.lower() == wanted)
        if (row := ids.index("").as_py()) >= 0:
            raise UserError(f"{self.at(row, name)}: the id is missing; fill it in")
        return ids

    def at(self, row: int, column: str) -> str:
        """The beginning of an error: "nodes.csv, line 7, column 'age'"."""
        return f"{self.file}, {self.place(row)}, column {column!r}"


class Source(Protocol):
    """A table that is read one block of rows after the other."""

    name: str
    header: list[str]

    def rows(
        self,
        texts: Collection[str],
        skip: Collection[str] = (),
        tell: Tell | None = None,
        size: int = 0,
    ) -> Iterator[Rows]:
        """Its rows, without the columns ``skip`` (names in lower case).

        Columns ``texts`` are texts. Each other column is numbers if all its cells in the block
        are. ``size`` asks for blocks of at least this many bytes.
        """


@dataclass(frozen=True, eq=False)
class Column:
    """One column: ``numbers`` [rows] with NaN for "missing", or ``codes`` [rows] into ``texts``."""

    name: str
    numbers: np.ndarray | None = None
    codes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    """int32, −1 for an empty cell."""
    texts: Sequence[str] = ()

    def as_texts(self) -> Column:
        """The same column as texts, since labels may be numbers."""
        if self.numbers is None:
            return self
        values, codes = np.unique(self.numbers, return_inverse=True)
        missing = np.isnan(values)
        codes = np.where(missing[codes], -1, codes).astype(np.int32)
        return Column(self.name, codes=codes, texts=[number_text(v) for v in values[~missing]])


class Table:
    """All rows of a table, in memory or, with ``path``, in an Arrow file.

    Texts are kept as numbers of distinct texts. A column of the file is in memory only while it is
    used.
    """

    def __init__(self, name: str, path: Path | None = None) -> None:
        self.name, self.path, self.rows = name, path, 0
        self._batches: list[Any] = []
        self._writer: Any = None
        self._starts: list[int] = []
        self._places: list[Callable[[int], str]] = []
        self._titles: dict[str, str] | None = None
        self._whole: Any = None

    def add(self, rows: Rows) -> None:
        """Append rows; each time with the same columns of the same types."""
        import pyarrow as pa

        columns = {name: _stored(values) for name, values in rows.columns.items()}
        whole = pa.table(columns).combine_chunks().to_batches()
        if self.path is None:
            self._batches += whole
        else:
            if self._writer is None and whole:
                self._writer = pa.ipc.new_stream(str(self.path), whole[0].schema)
            for batch in whole:
                self._writer.write_batch(batch)
        self._titles = self._whole = None
        self._starts.append(self.rows)
        self._places.append(rows.place)
        self.rows += rows.length

    def columns(self) -> list[str]:
        return list(self._data().column_names) if self.rows else []

    def find(self, name: str) -> Column | None:
        """The column with this name, ignoring case."""
        import pyarrow as pa

        if self._titles is None:
            self._titles = {title.lower(): title for title in self.columns()}
        title = self._titles.get(name.lower(), self._titles.get(name.strip().lower()))
        if title is None:
            return None
        values = self._data().column(title)
        if not pa.types.is_dictionary(values.type):
            return Column(title, numbers=values.to_numpy())
        encoded = values.unify_dictionaries().combine_chunks()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return Column(title, codes=codes, texts=encoded.dictionary.to_pylist())

    def _data(self) -> Any:
        import pyarrow as pa

        if self._writer is not None:
            self._writer.close()
        if self.path is not None:
            return pa.ipc.open_stream(pa.memory_map(str(self.path))).read_all()
        if self._whole is None:
            # a table of ids alone has no columns here, and so no batches
            self._whole = pa.Table.from_batches(self._batches) if self._batches else pa.table({})
        return self._whole

    def place(self, row: int) -> str:
        """Where a row is: "line 7"."""
        number = bisect_right(self._starts, row) - 1
        return self._places[number](row - self._starts[number])

    def at(self, row: int, column: str) -> str:
        """The beginning of an error: "nodes.csv, line 7, column 'age'"."""
        return f"{self.name}, {self.place(row)}, column {column!r}"


def _stored(values: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(values):
        return values
    gaps = pc.equal(values, "")
    return pc.if_else(gaps, pa.scalar(None, pa.string()), values).dictionary_encode()


def is_text(values: Any) -> bool:
    """Whether an Arrow array holds texts rather than doubles."""
    import pyarrow as pa

    return bool(values.type == pa.string())


def numbers_in(texts: Any) -> tuple[Any, int]:
    """The numbers that an Arrow array of texts spells, and the first row that holds none, or −1."""
    import pyarrow as pa

    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    encoded = texts.dictionary_encode()
    codes = encoded.indices.to_numpy()
    known = np.empty(len(encoded.dictionary))
    for code, text in enumerate(encoded.dictionary.to_pylist()):
        number = number_of(text)
        if number is None:
            return texts, int((codes == code).argmax())
        known[code] = number
    return pa.array(known[codes]), -1


def number_text(value: float) -> str:
    """A number as people write it: 3, not 3.0."""
    whole = float(value).is_integer() and abs(value) < 1e15
    return str(int(value)) if whole else repr(float(value))


def check_names(table: str, names: Sequence[str]) -> None:
    """Refuse columns without a name and repeated names."""
    seen = set()
    for number, name in enumerate(names, start=1):
        if not name:
            raise UserError(f"{table}, line 1: column {number} has no name; give it one")
        if name.lower() in seen:
            raise UserError(f"{table}, line 1: the column {name!r} appears twice; rename one")
        seen.add(name.lower())


def require_column(source: Source, column: str, option: str) -> None:
    """Refuse a table that lacks a column."""
    if column.strip().lower() in (name.lower() for name in source.header):
        return
    found = ", ".join(source.header[:8]) + (", …" if len(source.header) > 8 else "")
    raise UserError(
        f"{source.name} has no column {column!r} among {found}: rename one, or name the column "
        f"with {option}=…"
    )
