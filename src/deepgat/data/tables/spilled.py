"""The columns of a table of nodes and their features on disk; one column at a time in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from deepgat.data.feature_matrix import canonical_rows
from deepgat.data.tables.column_features import SPARSE_BELOW, column_block
from deepgat.data.tables.columns import Column, Columns
from deepgat.data.tables.delimited import Kind, Tell, Wanted, read_csv_pieces, read_header
from deepgat.data.tables.opening import shown
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.data.tables.plan import ColumnPlan, FeaturePlan
from deepgat.data.tables.vocabulary import Vocabulary


class ColumnFile:
    """Columns of one type in an Arrow file: written some rows at a time, read one at a time."""

    def __init__(self, path: Path, names: Sequence[str], dtype: Any) -> None:
        import pyarrow as pa

        self.path = path
        self.schema = pa.schema([(name, pa.from_numpy_dtype(dtype)) for name in names])

    def write(self, pieces: Iterable[Sequence[np.ndarray]]) -> None:
        import pyarrow as pa

        with pa.OSFile(str(self.path), "wb") as file, pa.ipc.new_file(file, self.schema) as writer:
            for columns in pieces:
                arrays = [pa.array(column) for column in columns]
                writer.write_batch(pa.record_batch(arrays, schema=self.schema))

    def column(self, name: str) -> np.ndarray:
        import pyarrow as pa

        with pa.memory_map(str(self.path)) as file:
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            return np.concatenate([batch.column(name).to_numpy() for batch in batches])


class NodeTable:
    """The nodes of a CSV file: ids, labels and parts in memory, all other columns on disk.

    Attributes:
        names: the ids.
        special: the columns of labels and of the split.
        header: the names of all columns.
    """

    def __init__(self, path: Path, options: ReadOptions, scratch: Path, tell: Tell) -> None:
        self.names = Vocabulary()
        self.header = read_header(path).names
        dropped = {name.lower() for name in listed(options.drop)}
        known = {name.lower() for name in (options.id, options.label, options.part)}
        self.texts = {name: Vocabulary() for name in known - {options.id.lower()}}
        wanted = {name: Wanted(Kind.TEXT, items) for name, items in self.texts.items()}
        wanted |= {name: Wanted(Kind.SKIP) for name in dropped}
        wanted[options.id.lower()] = Wanted(Kind.NEW_ID, self.names)
        self.others = [n for n in self.header if n.lower() not in known | dropped]
        self.codes: dict[str, list[np.ndarray]] = {}
        self.begins: list[int] = []
        self.pieces: list[Columns] = []
        self.turned: set[str] = set()
        self.numbers = ColumnFile(scratch / "numbers", self.others, np.float64)
        self.numbers.write(self._first_look(read_csv_pieces(path, wanted, tell)))
        self.special = [
            Column(name, codes=np.concatenate(parts), texts=self.texts[name.lower()].texts())
            for name, parts in self.codes.items()
        ]
        self.table = Columns(shown(path), len(self.names), (), self._place)
        turned = [name for name in self.others if name in self.turned]
        self.categories = ColumnFile(scratch / "codes", turned, np.int32)
        if turned:  # a second look at the file, for the columns that hold texts
            again = {name.lower(): Wanted(Kind.SKIP) for name in self.header}
            for name in turned:
                self.texts[name] = Vocabulary()
                again[name.lower()] = Wanted(Kind.TEXT, self.texts[name])
            pieces = read_csv_pieces(path, again, tell)
            self.categories.write([_values(item) for item in piece.columns] for piece in pieces)

    def _first_look(self, pieces: Iterable[Columns]) -> Iterator[list[np.ndarray]]:
        """Keeps the codes of labels and parts; yields the numbers of all other columns."""
        rows = 0
        for piece in pieces:
            self.begins.append(rows)
            self.pieces.append(replace(piece, columns=()))
            rows += piece.rows
            found = {item.name: _values(item) for item in piece.columns}
            for name in found:
                if name.lower() in self.texts:
                    self.codes.setdefault(name, []).append(found[name])
            self.turned |= {name for name in self.others if name not in found}
            gaps = np.full(piece.rows, np.nan)
            yield [found.get(name, gaps) for name in self.others]

    def _place(self, row: int) -> str:
        at = bisect_right(self.begins, row) - 1
        return self.pieces[at].place(row - self.begins[at])

    def column(self, name: str) -> Column:
        """One of the other columns, read from the disk."""
        if name in self.turned:
            codes = self.categories.column(name)
            return Column(name, codes=codes, texts=self.texts[name].texts())
        return Column(name, numbers=self.numbers.column(name))


def _values(column: Column) -> np.ndarray:
    values = column.codes if column.numbers is None else column.numbers
    assert values is not None
    return values


class FeatureFile:
    """x [n, d] on disk, with the values of ``column_features.joined``."""

    def __init__(self, nodes: NodeTable, options: ReadOptions, path: Path, tell: Tell) -> None:
        self.n = nodes.table.rows
        self.path = path
        self.categories: list[int] = []
        """Per column of the table: the number of its categories; 0 for a column of numbers."""
        self.notes: list[str] = []
        plans: list[ColumnPlan] = []
        filled = 0
        with path.open("wb") as file:
            for number, name in enumerate(nodes.others, start=1):
                column = nodes.column(name)
                block, notes = column_block(nodes.table, column, options)
                self.notes += notes
                plans.append(block.plan)
                if column.numbers is not None:
                    filled += int(np.count_nonzero(block.values))
                    block.values[:, 0].astype(np.float32).tofile(file)
                    self.categories.append(0)
                else:
                    filled += block.values.nnz
                    rank = np.full(self.n, -1, dtype=np.int32)
                    rank[np.diff(block.values.indptr) > 0] = block.values.indices
                    rank.tofile(file)
                    self.categories.append(len(block.names))
                tell(number / len(nodes.others))
        self.plan = FeaturePlan(tuple(plans))
        self.names = tuple(name for plan in plans for name in plan.names)
        self.sparse = filled < SPARSE_BELOW * self.n * len(self.names)

    def rows(self, begin: int, end: int) -> Any:
        """x[begin:end] float32, dense or CSR."""
        blocks: list[Any] = []
        with self.path.open("rb") as file:
            for number, count in enumerate(self.categories):
                file.seek(4 * (number * self.n + begin))
                if not count:
                    blocks.append(np.fromfile(file, np.float32, end - begin)[:, None])
                    continue
                rank = np.fromfile(file, np.int32, end - begin)
                rows = np.flatnonzero(rank >= 0)
                ones = np.ones(len(rows), dtype=np.float32)
                shape = (end - begin, count)
                blocks.append(sp.csr_matrix((ones, (rows, rank[rows])), shape=shape))
        if self.sparse:
            return canonical_rows(sp.hstack([sp.csr_matrix(block) for block in blocks]))
        return np.hstack([b.toarray() if sp.issparse(b) else b for b in blocks])
