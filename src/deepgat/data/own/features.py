"""Columns of a table of nodes, made into features x [n, d]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from deepgat.data.features import csr_from_scipy
from deepgat.data.own.columns import Column, Columns
from deepgat.data.own.options import ReadOptions, listed
from deepgat.data.own.structure import STRUCTURES, undirected_matrix
from deepgat.errors import UserError

MOST_CATEGORIES = 1000
MOST_WORDS = 10_000
SPARSE_BELOW = 0.1
"""Features are kept sparse where fewer of them than this are not zero."""
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class FeatureBlock:
    """Some columns of x, and where they came from."""

    column: str
    kind: str
    """ "number", "category", "words" or "structure"."""
    names: tuple[str, ...]
    values: Any
    """[n, len(names)], a NumPy array or a sparse matrix."""


def column_blocks(
    table: Columns, columns: Sequence[Column], options: ReadOptions
) -> tuple[list[FeatureBlock], list[str]]:
    """Each column as features, and what there is to say about them."""
    words = {name.lower() for name in listed(options.text)}
    for name in sorted(words - {item.name.lower() for item in columns}):
        raise UserError(f"{table.name} has no column {name!r} to read as text: see its first line")
    blocks, notes = [], []
    for item in columns:
        if item.name.lower() in words:
            blocks.append(_bag_of_words(table, item))
        elif item.numbers is not None:
            blocks.append(number_block(table, item, options))
        else:
            block, note = category_block(table, item)
            blocks.append(block)
            notes += note
    return blocks, notes


def structure_blocks(
    edge_index: np.ndarray, nodes: int, options: ReadOptions
) -> list[FeatureBlock]:
    """The structural features that were asked for."""
    blocks = []
    matrix = undirected_matrix(edge_index, nodes) if listed(options.structure) else None
    for name in listed(options.structure):
        for title, values in STRUCTURES[name](matrix).items():
            scaled = _scaled(values, options.scale)
            blocks.append(FeatureBlock(title, "structure", (title,), scaled[:, None]))
    return blocks


def joined(blocks: Sequence[FeatureBlock], nodes: int) -> tuple[Tensor, tuple[str, ...]]:
    """x [n, d] float32, dense or CSR, and the names of its columns."""
    names = tuple(name for block in blocks for name in block.names)
    filled: int = sum(
        block.values.nnz if sp.issparse(block.values) else int(np.count_nonzero(block.values))
        for block in blocks
    )
    if filled < SPARSE_BELOW * nodes * len(names):
        return csr_from_scipy(sp.hstack([sp.csr_matrix(block.values) for block in blocks])), names
    x = np.empty((nodes, len(names)), dtype=np.float32)
    begin = 0
    for block in blocks:
        part = block.values.toarray() if sp.issparse(block.values) else block.values
        x[:, begin : begin + part.shape[1]] = part
        begin += part.shape[1]
    return torch.from_numpy(x), names


def number_block(table: Columns, column: Column, options: ReadOptions) -> FeatureBlock:
    assert column.numbers is not None
    numbers = column.numbers
    wrong = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(wrong):
        raise UserError(
            f"{table.at(int(wrong[0]), column.name)}: {numbers[wrong[0]]:g} is too large; expected "
            f"a number up to 3e38, or leave the column out with drop={column.name}"
        )
    gaps = np.isnan(numbers)
    if gaps.all() and len(gaps):
        raise UserError(
            f"{table.name}, column {column.name!r}: every number is missing; leave the column out "
            f"with drop={column.name}"
        )
    if gaps.any():
        if options.missing == "refuse":
            raise UserError(
                f"{table.at(int(gaps.argmax()), column.name)}: the number is missing; fill it in, "
                f"or read with missing=mean, missing=zero or drop={column.name}"
            )
        if options.missing == "mean":
            numbers = np.where(gaps, numbers[~gaps].mean(), numbers)
    scaled = _scaled(numbers, options.scale)
    scaled = np.where(np.isnan(scaled), 0.0, scaled)
    return FeatureBlock(column.name, "number", (column.name,), scaled[:, None])


def _scaled(numbers: np.ndarray, scale: str) -> np.ndarray:
    """Mean 0 and deviation 1, or 0 … 1, gaps not counted; a constant column becomes 0.

    A column of 0 and 1 alone says yes or no, and stays.
    """
    if scale == "none" or not len(numbers) or np.isin(numbers, (0, 1)).all():
        return numbers
    largest = np.nanmax(np.abs(numbers)) or 1.0
    numbers = numbers / largest  # so that squares of large numbers do not overflow
    if scale == "unit":
        low, width = np.nanmin(numbers), np.nanmax(numbers) - np.nanmin(numbers)
    else:
        low, width = np.nanmean(numbers), np.nanstd(numbers)
    if width < 1e-12:
        return np.where(np.isnan(numbers), numbers, 0.0)
    return (numbers - low) / width


def category_block(table: Columns, column: Column) -> tuple[FeatureBlock, list[str]]:
    """One column of 0 and 1 per text, in alphabetical order; all 0 where the cell is empty."""
    assert column.codes is not None
    count = len(column.texts)
    if count > max(2, min(MOST_CATEGORIES, table.rows // 2)):
        raise UserError(
            f"{table.name}, column {column.name!r}: {count:,} different texts are too many for "
            f"categories; read it as words with text={column.name}, or leave it out with "
            f"drop={column.name}"
        )
    order = sorted(range(count), key=lambda i: column.texts[i])
    rank = np.empty(count + 1, dtype=np.int64)
    rank[order] = np.arange(count)
    rows = np.flatnonzero(column.codes >= 0)
    ones = np.ones(len(rows), dtype=np.float32)
    places = (rows, rank[column.codes[rows]])
    values = sp.csr_matrix((ones, places), shape=(len(column.codes), count))
    names = tuple(f"{column.name}={column.texts[i]}" for i in order)
    empty = len(column.codes) - len(rows)
    note = f"{table.name}, column {column.name!r}: {empty:,} empty cells are no category at all"
    return FeatureBlock(column.name, "category", names, values), [note] if empty else []


def _bag_of_words(table: Columns, column: Column) -> FeatureBlock:
    """How often each word is in a text, the 10,000 most frequent words of two letters or more."""
    from sklearn.feature_extraction.text import CountVectorizer  # importing it takes a second

    column = column.as_texts()
    assert column.codes is not None
    counter = CountVectorizer(max_features=MOST_WORDS, dtype=np.float32)
    try:
        counts = counter.fit_transform(column.texts)
    except ValueError:  # its word for "no words at all"
        raise UserError(
            f"{table.name}, column {column.name!r}: there are no words of two letters or more to "
            f"read as text; leave it out with drop={column.name}"
        ) from None
    rows = sp.vstack([counts, sp.csr_matrix((1, counts.shape[1]), dtype=np.float32)]).tocsr()
    codes = np.where(column.codes < 0, len(column.texts), column.codes)
    names = tuple(f"{column.name}:{word}" for word in counter.get_feature_names_out())
    return FeatureBlock(column.name, "words", names, rows[codes])
