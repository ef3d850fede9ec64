"""Columns of a table of nodes on disk, and the features made of them: one column in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from deepgat.data.feature_matrix import canonical_rows
from deepgat.data.tables.column_features import SPARSE_BELOW, column_block
from deepgat.data.tables.columns import Column, Columns
from deepgat.data.tables.delimited import Kind, Tell, Wanted, read_csv_pieces, read_header
from deepgat.data.tables.names import Names
from deepgat.data.tables.opening import shown
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.data.tables.plan import ColumnPlan, FeaturePlan


class ColumnFile:
    """k columns of one type, appended some rows at a time; a column is read as a whole."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.path, self.dtype = path, np.dtype(dtype)
        self.sizes: list[int] = []
        path.touch()

    def append(self, columns: Sequence[np.ndarray]) -> None:
        self.sizes.append(len(columns[0]))
        with self.path.open("ab") as file:
            for column in columns:
                column.astype(self.dtype).tofile(file)

    def column(self, number: int, of: int) -> np.ndarray:
        """Column ``number`` of ``of``."""
        pieces, at = [], 0
        with self.path.open("rb") as file:
            for size in self.sizes:
                file.seek((at * of + number * size) * self.dtype.itemsize)
                pieces.append(np.fromfile(file, self.dtype, size))
                at += size
        return np.concatenate(pieces)


class NodeTable:
    """The nodes of a CSV file: ids, labels and parts in memory, all other columns on disk.

    Attributes:
        names: the ids.
        special: the columns of labels and of the split, as in memory.
        header: all columns' names.
    """

    def __init__(self, path: Path, options: ReadOptions, scratch: Path, tell: Tell) -> None:
        self.names: Names = Names()
        self.header = read_header(path).names
        dropped = {name.lower() for name in listed(options.drop)}
        known = {name.lower() for name in (options.id, options.label, options.part)}
        texts = {name: Names() for name in known - {options.id.lower()}}
        wanted = {name: Wanted(Kind.TEXT, items) for name, items in texts.items()}
        wanted |= {name: Wanted(Kind.SKIP) for name in dropped}
        wanted[options.id.lower()] = Wanted(Kind.NEW_ID, self.names)
        self.others = [n for n in self.header if n.lower() not in known | dropped]
        self.numbers = ColumnFile(scratch / "numbers", np.float64)
        codes: dict[str, list[np.ndarray]] = {}
        turned: set[str] = set()
        begins: list[int] = []
        places: list[Callable[[int], str]] = []
        rows = 0
        for piece in read_csv_pieces(path, wanted, tell):
            begins.append(rows)
            places.append(piece.place)
            rows += piece.rows
            found = {item.name: item for item in piece.columns}
            for name in texts.keys() - dropped:
                column = piece.find(name)
                if column is not None and column.codes is not None:
                    codes.setdefault(column.name, []).append(column.codes)
            turned |= {name for name in self.others if name not in found}
            if self.others:
                gaps = np.full(piece.rows, np.nan)
                self.numbers.append(
                    [_numbers(found[name]) if name in found else gaps for name in self.others]
                )
        self.special = [
            Column(name, codes=np.concatenate(parts), texts=texts[name.lower()].texts())
            for name, parts in codes.items()
        ]
        self.table = Columns(
            shown(path), rows, (), lambda row: places[at](row - begins[at])
            if (at := bisect_right(begins, row) - 1) >= 0
            else f"row {row + 1}",
        )  # fmt: skip
        self.turned = [name for name in self.others if name in turned]
        self.texts = {name: Names() for name in self.turned}
        self.codes = ColumnFile(scratch / "codes", np.int32)
        if self.turned:  # a second look at the file, for the columns that turned out to be text
            again = {name.lower(): Wanted(Kind.SKIP) for name in self.header}
            again |= {name.lower(): Wanted(Kind.TEXT, self.texts[name]) for name in self.turned}
            for piece in read_csv_pieces(path, again, tell):
                self.codes.append([item.codes for item in piece.columns if item.codes is not None])

    def column(self, name: str) -> Column:
        """One of the other columns, read from the disk."""
        if name in self.texts:
            codes = self.codes.column(self.turned.index(name), len(self.turned))
            return Column(name, codes=codes, texts=self.texts[name].texts())
        numbers = self.numbers.column(self.others.index(name), len(self.others))
        return Column(name, numbers=numbers)


def _numbers(column: Column) -> np.ndarray:
    assert column.numbers is not None
    return column.numbers


class FeatureFile:
    """x [n, d] on disk, with the values that ``column_features.joined`` gives in memory."""

    def __init__(self, nodes: NodeTable, options: ReadOptions, path: Path, tell: Tell) -> None:
        self.n = nodes.table.rows
        self.path = path
        self.categories: list[int] = []
        """Per column of the table: how many categories, 0 for a number."""
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
