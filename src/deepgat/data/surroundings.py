"""The part of a graph around some nodes, found hop by hop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deepgat.data.grown_graph import GrownGraph
from deepgat.data.kept_graph import Lists
from deepgat.ops import ForwardLists


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The nodes around some others, the targets, with their lists: m nodes."""

    nodes: np.ndarray
    """[m] int64: numbers in the graph, the nearest first; in the same hop, ascending."""
    ends: tuple[int, ...]
    """The number of nodes at most 0, 1, … hops from a target, against the direction of edges."""
    neighbors: ForwardLists
    """The lists of the m nodes in the numbers 0 … m − 1."""
    targets: np.ndarray
    """[k] int64: the places of the targets among the m nodes."""

    @property
    def hops(self) -> int:
        """How far the nodes reach."""
        return len(self.ends) - 1

    @property
    def distance(self) -> np.ndarray:
        """[m]: hops from the nearest target."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))


def around(
    graph: GrownGraph, targets: np.ndarray, hops: int, *, cut: bool = False, most: int | None = None
) -> Surroundings:
    """The nodes at most ``hops`` hops from the targets, with their lists.

    The lists of nodes at that very distance hold the node alone; with ``cut``, their neighbours
    among the nodes found. Every list is read once.

    Args:
        graph: a graph with new nodes.
        targets: [k] numbers of nodes, in any order.
        hops: 0 or more.
        cut: see above.
        most: fewer hops are gone if there would be more nodes than this.
    """
    place = np.zeros(graph.num_nodes, dtype=np.int32)  # and 1; pages never touched cost nothing
    ring = np.unique(targets).astype(np.int64)
    rings: list[np.ndarray] = []
    ends: list[int] = []
    read = [graph.lists(ring[:0])]
    while True:
        begin = ends[-1] if ends else 0
        place[ring] = np.arange(begin + 1, begin + len(ring) + 1)
        rings.append(ring)
        ends.append(begin + len(ring))
        if (len(ends) > hops and not cut) or (most is not None and ends[-1] > most):
            break
        lists = graph.lists(ring)
        if len(ends) > hops:
            read.append(_among(lists, place[lists.source] > 0))
            break
        ring = _not_seen(place, lists.source)
        if most is not None and ends[-1] + len(ring) > most:
            break
        read.append(lists)
        if not len(ring):
            ends += [ends[-1]] * (hops + 1 - len(ends))
            break
    nodes = np.concatenate(rings)
    return Surroundings(
        nodes, tuple(ends), _local(len(nodes), place, read), place[targets].astype(np.int64) - 1
    )


def everything(graph: GrownGraph, targets: np.ndarray) -> Surroundings:
    """All nodes, in the order of their numbers; how far they are from the targets is not known."""
    lists = graph.all_lists()
    nodes = np.arange(graph.num_nodes)
    return Surroundings(nodes, (), _neighbors(lists), targets)


def _not_seen(place: np.ndarray, near: np.ndarray) -> np.ndarray:
    """The nodes among ``near`` without a place, ascending, each once: int64."""
    near = near[place[near] == 0]
    if len(near) * 32 < len(place):
        return np.unique(near).astype(np.int64)
    place[near] = -1
    return np.flatnonzero(place == -1)


def _among(lists: Lists, inside: np.ndarray) -> Lists:
    """The lists with only the entries ``inside``."""
    row = np.repeat(np.arange(len(lists.length)), lists.length)
    values = (None if item is None else item[inside] for item in (lists.log_weight, lists.features))
    count = np.bincount(row[inside], minlength=len(lists.length))
    return Lists(count, lists.source[inside], *values)


def _local(size: int, place: np.ndarray, read: list[Lists]) -> ForwardLists:
    """Lists of ``size`` nodes by their places: those read come first, then {v} for the others."""
    known = sum(len(lists.length) for lists in read)
    loops = np.arange(known, size, dtype=np.int32)

    def joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
        given = [part for part in parts if part is not None]
        if not given:
            return None
        rest = np.zeros((len(loops), *given[0].shape[1:]), dtype=given[0].dtype)
        return np.concatenate([*given, rest])

    source = np.concatenate([place[lists.source] - 1 for lists in read] + [loops])
    length = np.concatenate([lists.length for lists in read] + [np.ones(len(loops), np.int64)])
    values = (joined([getattr(lists, name) for lists in read]) for name in Lists._fields[2:])
    return _neighbors(Lists(length, source, *values))


def _neighbors(lists: Lists) -> ForwardLists:
    ptr = np.concatenate([[0], np.cumsum(lists.length)])
    parts = (ptr, lists.source, lists.log_weight, lists.features)
    tensors = [None if part is None else torch.from_numpy(part) for part in parts]
    return ForwardLists.of(*tensors)  # type: ignore[arg-type]
