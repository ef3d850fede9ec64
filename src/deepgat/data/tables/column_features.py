"""Turns the columns of a node table into features x [n, d]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from deepgat.data.feature_matrix import csr_from_scipy
from deepgat.data.tables.columns import Column, Table
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.data.tables.plan import ColumnPlan, FeaturePlan
from deepgat.data.tables.structure_features import STRUCTURES, undirected_matrix
from deepgat.data.tables.text import number_of, quoted
from deepgat.errors import UserError

MOST_CATEGORIES = 1000
MOST_WORDS = 10_000
SPARSE_BELOW = 0.1
"""Features are stored sparse if the share of nonzeros is below this."""
LARGEST = float(np.finfo(np.float32).max)
NEARLY_ALL = 0.9
"""A column of texts of which so many are numbers is perhaps meant to hold numbers."""


@dataclass(frozen=True, eq=False)
class FeatureBlock:
    """Some columns of x, and the plan that made them."""

    plan: ColumnPlan
    values: Any
    """[n, len(names)], a NumPy array or a sparse matrix."""

    def filled(self) -> int:
        """The number of nonzeros."""
        sparse = sp.issparse(self.values)
        return int(self.values.nnz if sparse else np.count_nonzero(self.values))


def column_blocks(table: Table, options: ReadOptions, notes: list[str]) -> Iterator[FeatureBlock]:
    """Each column as features, one after the other; notes for the user are added to ``notes``.

    A plan is learnt from each column. With ``options.plan``, the plan of a trained model, the
    table must have all planned columns, and other columns are ignored.
    """
    special = {item.lower() for item in (options.label, options.part)}
    names = [name for name in table.columns() if name.lower() not in special]
    if options.plan is not None:
        plans = _planned(table, names, options.plan, notes)
    else:
        words = {name.lower() for name in listed(options.text)}
        for name in sorted(words - {name.lower() for name in names}):
            raise UserError(
                f"{table.name} has no column {name!r} to read as text: see its first line"
            )
        plans = dict.fromkeys(names)
    for name, plan in plans.items():
        column = table.find(name)
        assert column is not None
        if plan is None:
            plan = _learnt(table, column, words, options)
        values, more = APPLY[plan.kind](table, column, plan, options)
        notes += more
        yield FeatureBlock(plan, values)


def structure_blocks(
    edge_index: np.ndarray, nodes: int, options: ReadOptions
) -> list[FeatureBlock]:
    """The structural features in the options or in the plan."""
    matrix = undirected_matrix(edge_index, nodes) if listed(options.structure) else None
    found: dict[str, np.ndarray] = {}
    for name in listed(options.structure):
        found |= STRUCTURES[name](matrix)
    if options.plan is None:
        plans = [
            ColumnPlan.of_numbers(title, "structure", values, options.scale)
            for title, values in found.items()
        ]
    else:  # a small graph has fewer eigenvectors; the missing ones are 0
        plans = [plan for plan in options.plan.columns if plan.kind == "structure"]
    nothing = np.zeros(nodes)
    return [
        FeatureBlock(
            plan, (plan.scaled(found[plan.name]) if plan.name in found else nothing)[:, None]
        )
        for plan in plans
    ]


def joined(blocks: Sequence[FeatureBlock], nodes: int) -> Tensor:
    """x [n, d] float32, dense or CSR."""
    width = sum(len(block.plan.names) for block in blocks)
    if sum(block.filled() for block in blocks) < SPARSE_BELOW * nodes * width:
        return csr_from_scipy(sp.hstack([sp.csr_matrix(block.values) for block in blocks]))
    x = np.empty((nodes, width), dtype=np.float32)
    begin = 0
    for block in blocks:
        part = block.values.toarray() if sp.issparse(block.values) else block.values
        x[:, begin : begin + part.shape[1]] = part
        begin += part.shape[1]
    return torch.from_numpy(x)


def _planned(
    table: Table, names: Sequence[str], plan: FeaturePlan, notes: list[str]
) -> dict[str, ColumnPlan | None]:
    """The plans of columns, by name and in the plan's order."""
    wanted = {item.name: item for item in plan.columns if item.kind != "structure"}
    here = {name.lower() for name in names}
    missing = [name for name in wanted if name.lower() not in here]
    if missing:
        raise UserError(
            f"{table.name} has no column {_some(missing)}, which the model was trained with: add "
            f"{'it' if len(missing) == 1 else 'them'}"
        )
    known = {name.lower() for name in wanted}
    more = [name for name in names if name.lower() not in known]
    if more:
        notes.append(f"{table.name}: ignored {_some(more)}, which the model was not trained with")
    return dict(wanted)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")


def _learnt(table: Table, column: Column, words: set[str], options: ReadOptions) -> ColumnPlan:
    if column.name.lower() in words:
        return _learn_words(table, column)
    if column.numbers is None:
        return _learn_categories(table, column)
    numbers = _checked_numbers(table, column)
    gaps = np.isnan(numbers)
    if gaps.all() and len(gaps):
        raise UserError(
            f"{table.name}, column {column.name!r}: every number is missing; leave the column out "
            f"with drop={column.name}"
        )
    fill = options.missing == "mean"
    return ColumnPlan.of_numbers(column.name, "number", numbers, options.scale, fill)


def _checked_numbers(table: Table, column: Column) -> np.ndarray:
    numbers = column.numbers
    if numbers is None:
        raise UserError(
            f"{table.name}, column {column.name!r}: it holds texts, but the model was trained "
            "with numbers; write numbers"
        )
    wrong = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(wrong):
        raise UserError(
            f"{table.at(int(wrong[0]), column.name)}: {numbers[wrong[0]]:g} is too large; expected "
            f"a number up to 3e38, or leave the column out with drop={column.name}"
        )
    return numbers


def _numbers(
    table: Table, column: Column, plan: ColumnPlan, options: ReadOptions
) -> tuple[np.ndarray, list[str]]:
    numbers = _checked_numbers(table, column)
    gaps = np.isnan(numbers)
    if gaps.any() and options.missing == "refuse":
        others = f", missing=zero or drop={column.name}" if options.plan is None else ""
        raise UserError(
            f"{table.at(int(gaps.argmax()), column.name)}: the number is missing; fill it in, or "
            f"read with missing=mean{others or ', which uses the mean of the training graph'}"
        )
    if options.missing == "mean":
        numbers = np.where(gaps, plan.mean, numbers)
    scaled = plan.scaled(numbers)
    return np.where(np.isnan(scaled), 0.0, scaled)[:, None], []


def _learn_categories(table: Table, column: Column) -> ColumnPlan:
    """One feature per distinct text, in alphabetical order."""
    count = len(column.texts)
    if count > max(2, min(MOST_CATEGORIES, table.rows // 2)):
        raise UserError(
            f"{table.name}, column {column.name!r}: {count:,} different texts are too many for "
            f"categories{_odd_cell(table, column)}; read it as words with text={column.name}, or "
            f"leave it out with drop={column.name}"
        )
    return ColumnPlan(column.name, "category", tuple(sorted(column.texts)))


def _categories(
    table: Table, column: Column, plan: ColumnPlan, options: ReadOptions
) -> tuple[Any, list[str]]:
    """One-hot categories; all 0 if the cell is empty or its text unknown."""
    column = column.as_texts()
    place = {text: number for number, text in enumerate(plan.terms)}
    rank = np.array([*(place.get(text, -1) for text in column.texts), -1], dtype=np.int64)
    found = rank[column.codes]
    rows = np.flatnonzero(found >= 0)
    ones = np.ones(len(rows), dtype=np.float32)
    values = sp.csr_matrix((ones, (rows, found[rows])), shape=(len(found), len(plan.terms)))
    empty = int((column.codes < 0).sum())
    strange = len(found) - len(rows) - empty
    where = f"{table.name}, column {column.name!r}"
    notes = [f"{where}: {empty:,} empty cells have no category"] if empty else []
    if options.plan is None and (odd := _odd_cell(table, column)):
        notes.append(f"{where}: read as categories{odd}")
    if strange:
        texts = _some([text for text in column.texts if text not in place])
        notes.append(
            f"{where}: {strange:,} cells hold texts that the model was not trained with "
            f"({texts}), and have no category"
        )
    return values, notes


def _odd_cell(table: Table, column: Column) -> str:
    """What keeps a column of texts from being one of numbers, if nearly all cells are; else ""."""
    kinds = np.array([_kind_of_text(text) for text in column.texts])
    held = column.codes[column.codes >= 0]
    counts = np.bincount(held, minlength=len(kinds))
    if not kinds.any() or counts[kinds < 2].sum() < NEARLY_ALL * len(held):
        return ""
    worst = int(kinds.max())
    row = int(np.flatnonzero((column.codes >= 0) & (kinds[column.codes] == worst))[0])
    cell = quoted(column.texts[column.codes[row]])
    advice = "write decimals with a point" if worst == 1 else "correct or empty it"
    return f", though nearly all its cells are numbers: {table.place(row)} has {cell}, {advice}"


def _kind_of_text(text: str) -> int:
    """0: a number; 1: one with a decimal comma; 2: neither."""
    as_point = text.replace(",", ".")
    return 0 if number_of(text) is not None else 1 if number_of(as_point) is not None else 2


def _learn_words(table: Table, column: Column) -> ColumnPlan:
    """The 10,000 most frequent words of two letters or more."""
    from sklearn.feature_extraction.text import CountVectorizer  # importing it takes a second

    counter = CountVectorizer(max_features=MOST_WORDS)
    try:
        counter.fit(column.as_texts().texts)
    except ValueError:  # raised if there are no words
        raise UserError(
            f"{table.name}, column {column.name!r}: there are no words of two letters or more to "
            f"read as text; leave it out with drop={column.name}"
        ) from None
    return ColumnPlan(column.name, "words", tuple(counter.get_feature_names_out().tolist()))


def _words(
    table: Table, column: Column, plan: ColumnPlan, options: ReadOptions
) -> tuple[Any, list[str]]:
    """How often each word of the plan occurs in a text."""
    from sklearn.feature_extraction.text import CountVectorizer

    column = column.as_texts()
    counter = CountVectorizer(vocabulary=plan.terms, dtype=np.float32)
    counts = counter.transform([*column.texts, ""])  # the last is an empty cell's
    return counts.tocsr()[column.codes], []


APPLY: Mapping[str, Callable[[Table, Column, ColumnPlan, ReadOptions], tuple[Any, list[str]]]] = {
    "number": _numbers,
    "category": _categories,
    "words": _words,
}
"""For each kind of column, a function that returns values [n, ·] and notes for the user."""
