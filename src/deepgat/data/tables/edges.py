"""Turns a table of edges into an ``edge_index``: merges repeated edges, adds reverse edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deepgat.data.tables.columns import Rows, Source, Tell, require_column
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.data.tables.text import quoted
from deepgat.data.tables.vocabulary import Vocabulary
from deepgat.errors import UserError

LARGEST = float(np.finfo(np.float32).max)
BYTES_PER_NAME = 32
"""Arrow builds a hash table of all ids for every block, so that more ids ask for larger blocks."""


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
    duplicates: int
    """Number of edges that repeat an earlier pair."""
    self_loops: int
    one_way: int
    """Number of pairs u ≠ v that are in the file in one direction only."""
    weightless: int = 0
    """Number of edges of weight 0, which are ignored."""
    columns: tuple[str, ...] = ()
    """Names of all columns of the table, in lower case."""


class Given(NamedTuple):
    """Some edges of a table without those of weight 0."""

    source: np.ndarray
    target: np.ndarray
    """Node numbers [e]."""
    weight: np.ndarray | None = None
    """[e] double."""
    features: np.ndarray | None = None
    """[e, k] float32."""
    names: tuple[str, ...] = ()
    """Of the features."""
    weightless: int = 0


def given_edges(
    table: Source,
    names: Vocabulary,
    options: ReadOptions,
    known: bool = True,
    tell: Tell | None = None,
) -> Iterator[Given]:
    """The edges of a table, checked, some rows at a time; an empty piece comes first.

    Unless ids are ``known``, new ones are added to ``names``.
    """
    for option in ("source", "target"):
        require_column(table, getattr(options, option), option)
    if options.source.lower() == options.target.lower():
        raise UserError("source and target name the same column: name two different ones")
    ends = {options.source.lower(), options.target.lower()}
    skip = {name.lower() for name in listed(options.drop)} - ends
    others = [name for name in table.header if name.lower() not in ends | skip]
    weighted = [name for name in others if name.lower() == options.weight.lower()]
    titles = tuple(name for name in others if name not in weighted)
    nobody, nothing = np.empty(0, np.int32), np.empty((0, len(titles)), np.float32)
    no_weight = np.empty(0) if weighted else None
    yield Given(nobody, nobody, no_weight, nothing if titles else None, titles)
    size = BYTES_PER_NAME * names.hashed()
    for rows in table.rows(ends, skip, tell, size):
        source, target = _node_numbers(rows, names, options, known)
        weight = _weights(rows, weighted[0]) if weighted else None
        parts = [_finite_numbers(rows, name) for name in titles]
        features = np.stack(parts, axis=1).astype(np.float32) if parts else None
        weightless = 0
        if weight is not None and not weight.all():
            kept = weight != 0
            weightless = int((~kept).sum())
            source, target, weight = source[kept], target[kept], weight[kept]
            features = None if features is None else features[kept]
        yield Given(source, target, weight, features, titles, weightless)


def _node_numbers(
    rows: Rows, names: Vocabulary, options: ReadOptions, known: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The node numbers [rows] of both ends. New ids are numbered row by row."""
    import pyarrow as pa

    ends = [rows.check_ids(name) for name in (options.source, options.target)]
    both = pa.chunked_array([chunk for ids in ends for chunk in ids.chunks], pa.string())
    if not known:
        order = np.arange(2 * rows.length).reshape(2, rows.length).T.ravel()
        source, target = names.add(both.take(pa.array(order))).reshape(rows.length, 2).T
        return source, target
    source, target = names.find(both).reshape(2, rows.length)
    unknown = np.flatnonzero((source < 0) | (target < 0))
    if len(unknown):
        row = int(unknown[0])
        end = 0 if source[row] < 0 else 1
        raise UserError(
            f"{rows.at(row, (options.source, options.target)[end])}: the id "
            f"{quoted(ends[end][row].as_py())} is not among the nodes; add the node, or remove the "
            "edge"
        )
    return source, target


def merged(
    pieces: Iterable[Given], nodes: int, undirected: bool, columns: Sequence[str] = ()
) -> Edges:
    """Merge repeated pairs: weights are added, features averaged.

    ``undirected`` adds missing reverse pairs with the same weight and features.
    """
    sources, targets, weights, parts, names, weightless = zip(*pieces, strict=True)
    source, target = np.concatenate(sources), np.concatenate(targets)
    weight = None if weights[0] is None else np.concatenate(weights)
    features = None if parts[0] is None else np.concatenate(parts)
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
        names[0],
        duplicates,
        loops,
        one_way,
        sum(weightless),
        tuple(name.lower() for name in columns),
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


def _weights(rows: Rows, name: str) -> np.ndarray:
    weights = _finite_numbers(rows, name)
    wrong = np.flatnonzero(weights < 0)
    if len(wrong):
        value = weights[wrong[0]]
        raise UserError(
            f"{rows.at(int(wrong[0]), name)}: the weight {value:g} is negative; weights must be 0 "
            f"or more, or leave them out with drop={name}"
        )
    return weights


def _finite_numbers(rows: Rows, name: str) -> np.ndarray:
    """A column [rows] as doubles; texts, gaps and infinite numbers are errors."""
    numbers = rows.numbers(name, f", or leave the column out with drop={name}")
    wrong = np.flatnonzero(~(np.abs(numbers) <= LARGEST))
    if len(wrong):
        value = numbers[wrong[0]]
        what = "the number is missing" if np.isnan(value) else f"{value:g} is too large"
        raise UserError(
            f"{rows.at(int(wrong[0]), name)}: {what}; expected a number up to 3e38, or leave the "
            f"column out with drop={name}"
        )
    return numbers
