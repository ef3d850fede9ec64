"""Turns a table of edges into an ``edge_index``: merges repeated edges, adds reverse edges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from deepgat.data.tables.columns import Column, Columns
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.errors import UserError

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a graph: m distinct ordered pairs, sorted by target and then by source."""

    index: np.ndarray
    """[2, m] int64: sources in row 0, targets in row 1."""
    weight: np.ndarray | None
    """[m] float32."""
    features: np.ndarray | None
    """[m, k] float32."""
    feature_names: tuple[str, ...]
    given: int
    """Number of edges in the file."""
    duplicates: int
    """Number of edges that repeat an earlier pair."""
    self_loops: int
    one_way: int
    """Number of pairs u ≠ v that are in the file in one direction only."""
    weightless: int = 0
    """Number of edges of weight 0, which are ignored."""
    columns: tuple[str, ...] = ()
    """Names of all columns of the table, in lower case."""


def edges_of(
    table: Columns, source: np.ndarray, target: np.ndarray, nodes: int, options: ReadOptions
) -> Edges:
    """The edges from node numbers [e] of both ends and the other columns of the table."""
    given = given_edges(table, source, target, options)
    made = merged(
        given.source, given.target, nodes, given.weight, given.features, given.names,
        options.undirected,
    )  # fmt: skip
    columns = tuple(item.name.lower() for item in table.columns)
    return replace(made, weightless=given.weightless, columns=columns)


class Given(NamedTuple):
    """The edges of a table without those of weight 0."""

    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None = None
    """[e] double."""
    features: np.ndarray | None = None
    """[e, k] float32."""
    names: tuple[str, ...] = ()
    """Of the features."""
    weightless: int = 0


def given_edges(
    table: Columns, source: np.ndarray, target: np.ndarray, options: ReadOptions
) -> Given:
    """The edges of a table, or of one block of it, checked."""
    special = {name.lower() for name in (options.source, options.target, options.weight)}
    special |= {name.lower() for name in listed(options.drop)}
    weight = table.find(options.weight)
    if weight is not None and options.weight.lower() not in map(str.lower, listed(options.drop)):
        weights = _weights(table, weight)
    else:
        weights = None
    kept: Any
    if weights is not None and not weights.all():
        kept = weights != 0
        nothing, source, target = int((~kept).sum()), source[kept], target[kept]
        weights = weights[kept]
    else:
        kept, nothing = slice(None), 0
    others = [item for item in table.columns if item.name.lower() not in special]
    parts = [finite_numbers(table, item)[kept] for item in others]
    features = np.stack(parts, axis=1).astype(np.float32) if parts else None
    names = tuple(item.name for item in others)
    return Given(source, target, weights, features, names, nothing)


def merged(
    source: np.ndarray,
    target: np.ndarray,
    nodes: int,
    weight: np.ndarray | None,
    features: np.ndarray | None,
    names: tuple[str, ...],
    undirected: bool,
) -> Edges:
    """Merge repeated pairs: weights are added, features averaged.

    ``undirected`` adds missing reverse pairs with the same weight and features.
    """
    given, loops = len(source), int((source == target).sum())
    size = max(nodes, 1)
    direct = once(Pairs(target.astype(np.int64) * nodes + source, weight, features))
    reverse = direct._replace(key=direct.key % size * size + direct.key // size)
    both, one_way = with_reverse(direct, reverse)
    duplicates = given - len(direct.key)
    key, weight, features = both if undirected else direct
    index = np.empty((2, len(key)), dtype=np.int64)
    np.divmod(key, size, out=(index[1], index[0]))
    return Edges(
        index,
        None if weight is None else weight.astype(np.float32),
        None if features is None else features.astype(np.float32),
        names,
        given,
        duplicates,
        loops,
        one_way,
    )


class Pairs(NamedTuple):
    """Ordered pairs of nodes, encoded as target · n + source, with weights and features."""

    key: np.ndarray
    weight: np.ndarray | None = None
    """[k] double."""
    features: np.ndarray | None = None
    """[k, f]."""


def once(pairs: Pairs) -> Pairs:
    """Sort pairs and merge repeated ones: weights are added, features averaged."""
    key, weight, features = pairs
    if weight is None and features is None:
        key = np.sort(key)
        return Pairs(key[_firsts(key)])
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = _firsts(key)
    starts = np.flatnonzero(first)
    counts = np.diff(np.append(starts, len(key)))
    if weight is not None and len(starts):
        weight = np.add.reduceat(weight[order], starts)
    if features is not None and len(starts):
        summed = np.add.reduceat(features[order].astype(np.float64), starts, axis=0)
        features = summed / counts[:, None]
    return Pairs(key[first], weight, features)


def with_reverse(direct: Pairs, reverse: Pairs) -> tuple[Pairs, int]:
    """Add to ``direct`` the pairs of ``reverse`` that it lacks; also return their number.

    Neither has repeated pairs, and ``direct`` is sorted.
    """
    key, weight, features = direct
    if weight is None and features is None:
        both = np.concatenate([key, reverse.key])
        both.sort()
        both = both[_firsts(both)]
        return Pairs(both), len(both) - len(key)
    missing = _not_among(reverse.key, key)
    if not len(missing):
        return direct, 0
    key = np.concatenate([key, reverse.key[missing]])
    order = np.argsort(key, kind="stable")
    if weight is not None:
        assert reverse.weight is not None
        weight = np.append(weight, reverse.weight[missing])[order]
    if features is not None:
        assert reverse.features is not None
        features = np.concatenate([features, reverse.features[missing]])[order]
    return Pairs(key[order], weight, features), len(missing)


def _firsts(key: np.ndarray) -> np.ndarray:
    """[e] bool: the first of each run of equal keys."""
    first = np.ones(len(key), dtype=bool)
    first[1:] = key[1:] != key[:-1]
    return first


def _not_among(wanted: np.ndarray, key: np.ndarray) -> np.ndarray:
    """The indices of the entries of ``wanted`` that are not in the sorted ``key``."""
    if not len(key):
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(wanted)  # searching in order is kind to the cache
    place = np.searchsorted(key, wanted[order])
    there = key[np.minimum(place, len(key) - 1)] == wanted[order]
    return np.sort(order[~there])


def _weights(table: Columns, column: Column) -> np.ndarray:
    weights = finite_numbers(table, column)
    wrong = np.flatnonzero(weights < 0)
    if len(wrong):
        value = weights[wrong[0]]
        raise UserError(
            f"{table.at(int(wrong[0]), column.name)}: the weight {value:g} is negative; weights "
            f"must be 0 or more, or leave them out with drop={column.name}"
        )
    return weights


def finite_numbers(table: Columns, column: Column) -> np.ndarray:
    """The numbers of a column [rows] double; texts, gaps and infinite numbers are errors."""
    if column.numbers is None:
        assert column.codes is not None
        row = 0
        text = column.texts[column.codes[row]] if len(column.codes) and column.codes[0] >= 0 else ""
        raise UserError(
            f"{table.name}, column {column.name!r}: edge features must be numbers, but it holds "
            f"texts such as {(text or next(iter(column.texts), ''))[:40]!r}; leave the column out "
            f"with drop={column.name}"
        )
    numbers = column.numbers
    wrong = np.flatnonzero(~(np.abs(numbers) <= LARGEST))
    if len(wrong):
        value = numbers[wrong[0]]
        what = "the number is missing" if np.isnan(value) else f"{value:g} is too large"
        raise UserError(
            f"{table.at(int(wrong[0]), column.name)}: {what}; expected a number up to 3e38, or "
            f"leave the column out with drop={column.name}"
        )
    return numbers
