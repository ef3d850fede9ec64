"""Edges on disk in buckets of consecutive targets, each small enough for memory.

Edges arrive in any order, a piece at a time. Each goes to the bucket of its target and, reversed,
to the bucket of its source. Then every bucket is sorted and merged by itself, under the rules of
:func:`~deepgat.data.tables.edges.merged`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepgat.data.tables.edges import Edges, Given, Pairs, once, with_reverse


@dataclass(frozen=True, eq=False)
class EdgeLists:
    """The edges into the nodes ``begin`` to ``end``: m of them, by target and then by source."""

    begin: int
    end: int
    ptr: np.ndarray
    """[end − begin + 1]: where each node's begin."""
    source: np.ndarray
    """[m] int32."""
    weight: np.ndarray | None
    features: np.ndarray | None
    """[m] and [m, k] float32."""
    mutual: np.ndarray
    """[m] bool: whether the edge runs the other way too."""

    @property
    def target(self) -> np.ndarray:
        return np.repeat(np.arange(self.begin, self.end), np.diff(self.ptr))


class EdgeBuckets:
    """The edges of a graph of n nodes, ``stretch`` targets to a file."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        stretch: int,
        undirected: bool,
        pieces: Iterable[Given],
    ) -> None:
        self.folder, self.nodes, self.stretch, self.undirected = folder, nodes, stretch, undirected
        self.given = self.self_loops = self.weightless = self.one_way = self.kept = 0
        self.degree = np.zeros(nodes, dtype=np.int64)
        """[n]: edges into every node, once they are merged."""
        self.near_degree = np.zeros(nodes, dtype=np.int64)
        """[n]: neighbours in either direction, without the node itself."""
        folder.mkdir()
        for piece in pieces:
            self.weighted, self.feature_names = piece.weight is not None, piece.names
            self._add(piece)

    def _add(self, edges: Given) -> None:
        """Put a piece of the edges into its buckets."""
        self.given += len(edges.source)
        self.self_loops += int((edges.source == edges.target).sum())
        self.weightless += edges.weightless
        for reverse in (False, True):
            ends = (edges.source, edges.target)[:: -1 if reverse else 1]
            records = np.empty(len(edges.source), dtype=self._record())
            records["source"], records["target"] = ends
            records["reverse"] = reverse
            if edges.weight is not None:
                records["weight"] = edges.weight
            if edges.features is not None:
                records["features"] = edges.features
            bucket = records["target"] // self.stretch
            order = np.argsort(bucket, kind="stable")
            records, bucket = records[order], bucket[order]
            cuts = np.flatnonzero(np.diff(bucket)) + 1
            for piece in np.split(records, cuts) if len(records) else []:
                number = int(piece["target"][0]) // self.stretch
                with self._given(number).open("ab") as file:
                    piece.tofile(file)

    def merge(self) -> Iterator[float]:
        """Sort and merge one bucket after the other; yields the share that is done."""
        starts = range(0, self.nodes, self.stretch)
        for number, begin in enumerate(starts):
            end = min(begin + self.stretch, self.nodes)
            self._merge(number, begin, end)
            yield (number + 1) / len(starts)

    def _merge(self, number: int, begin: int, end: int) -> None:
        path = self._given(number)
        records = (
            np.fromfile(path, self._record()) if path.exists() else np.empty(0, self._record())
        )
        ways = []
        for reverse in (0, 1):
            some = records[records["reverse"] == reverse]
            key = (some["target"].astype(np.int64) - begin) * self.nodes + some["source"]
            weight = some["weight"] if self.weighted else None
            ways.append(once(Pairs(key, weight, some["features"] if self.feature_names else None)))
        del records
        direct, reverse_way = ways
        both, one_way = with_reverse(direct, reverse_way)
        self.one_way += one_way
        self.kept += len(direct.key)
        chosen = both if self.undirected else direct
        target, source = np.divmod(chosen.key, max(self.nodes, 1))
        self.degree[begin:end] = np.bincount(target, minlength=end - begin)
        kept: dict[str, Any] = {"source": source.astype(np.int32)}
        if chosen.weight is not None:
            kept["weight"] = chosen.weight.astype(np.float32)
        if chosen.features is not None:
            kept["features"] = chosen.features.astype(np.float32)
        if not self.undirected:
            kept["mutual"] = np.isin(direct.key, reverse_way.key, assume_unique=True)
        target, source = np.divmod(both.key, max(self.nodes, 1))
        proper = target + begin != source
        self.near_degree[begin:end] = np.bincount(target[proper], minlength=end - begin)
        np.savez(self.folder / f"{number}.npz", near=source[proper].astype(np.int32), **kept)
        path.unlink(missing_ok=True)  # a stretch without edges has none

    def lists(self) -> Iterator[EdgeLists]:
        """All edges, a stretch of targets at a time."""
        for number, begin in enumerate(range(0, self.nodes, self.stretch)):
            end = min(begin + self.stretch, self.nodes)
            with np.load(self.folder / f"{number}.npz") as kept:
                source = kept["source"]
                yield EdgeLists(
                    begin,
                    end,
                    np.concatenate([np.zeros(1, np.int64), np.cumsum(self.degree[begin:end])]),
                    source,
                    kept.get("weight"),
                    kept.get("features"),
                    kept["mutual"] if "mutual" in kept else np.ones(len(source), dtype=bool),
                )

    def near(self) -> Iterator[np.ndarray]:
        """The neighbours in either direction [m] int32 of each stretch of nodes."""
        for number in range(-(-self.nodes // self.stretch)):
            with np.load(self.folder / f"{number}.npz") as kept:
                yield kept["near"]

    def summary(self, columns: Sequence[str] = ()) -> Edges:
        """Counts and names of the edges, without the edges themselves."""
        return Edges(
            np.empty((2, 0), dtype=np.int64),
            np.empty(0, dtype=np.float32) if self.weighted else None,
            np.empty((0, len(self.feature_names)), np.float32) if self.feature_names else None,
            self.feature_names,
            self.given - self.kept,
            self.self_loops,
            self.one_way,
            self.weightless,
            tuple(name.lower() for name in columns),
        )

    def _record(self) -> np.dtype:
        fields: list[Any] = [("target", np.int32), ("source", np.int32), ("reverse", np.uint8)]
        if self.weighted:
            fields.append(("weight", np.float64))
        if self.feature_names:
            fields.append(("features", np.float32, (len(self.feature_names),)))
        return np.dtype(fields)

    def _given(self, number: int) -> Path:
        return self.folder / f"{number}.given"
