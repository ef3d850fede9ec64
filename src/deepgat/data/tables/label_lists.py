"""Propagated labels z_1 … z_3 of a graph on disk, bit for bit equal to those in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deepgat.data.label_features import BLOCK_BYTES, runs, two_hop_rows
from deepgat.data.tables.buckets import EdgeBuckets, EdgeLists

HOPS = 3


class LabelLists:
    """Counts of the training labels in every N_v, on disk, and the label features from them.

    Args:
        edges: the graph's edges.
        label: [n], −1 where a node has no label or does not train.
        classes: C.
        path: a new file for the counts.
    """

    def __init__(self, edges: EdgeBuckets, label: np.ndarray, classes: int, path: Path) -> None:
        self.label, self.classes = label, classes
        shape = (edges.nodes, max(classes, 1))
        self.count = np.memmap(path, dtype=np.int32, mode="w+", shape=shape)
        """[n, C]: labels in N_v, the node's own among them."""
        self.size = np.empty((edges.nodes, 1))
        """[n, 1]: |N_v|."""
        for lists in edges.lists():
            for first, last in self._blocks(lists):
                ptr, near, _ = _closed(lists, first, last, edges.nodes)
                begin, end = lists.begin + first, lists.begin + last
                row, found = np.repeat(np.arange(last - first), np.diff(ptr)), label[near]
                known = found >= 0
                counts = np.bincount(
                    row[known] * classes + found[known], minlength=(last - first) * classes
                )
                self.count[begin:end] = counts.reshape(last - first, classes)
                self.size[begin:end, 0] = np.diff(ptr)

    def rows(self, lists: EdgeLists) -> np.ndarray:
        """A Y, rm_diag(Â) Y and rm_diag(Â²) Y of the lists' nodes: [k, 3, C] float32."""
        n = len(self.label)
        z = np.empty((lists.end - lists.begin, HOPS, self.classes), dtype=np.float32)
        for first, last in self._blocks(lists):
            ptr, near, mutual = _closed(lists, first, last, n)
            begin, end = lists.begin + first, lists.begin + last
            own = np.zeros((end - begin, self.classes))
            known = np.flatnonzero(self.label[begin:end] >= 0)
            own[known, self.label[begin:end][known]] = 1
            others = self.count[begin:end] - own
            z[first:last, 0] = others
            z[first:last, 1] = others / self.size[begin:end]
            z[first:last, 2] = two_hop_rows(ptr, self.count[near], self.size[near], own, mutual)
        return z

    def _blocks(self, lists: EdgeLists) -> list[tuple[int, int]]:
        """Ranges of the lists' nodes with few enough entries for one block of memory."""
        entries = np.diff(lists.ptr) + 1
        per_block = max(1, BLOCK_BYTES // (8 * 3 * max(1, self.classes)))
        return runs(np.cumsum(entries) // per_block)


def _closed(lists: EdgeLists, first: int, last: int, n: int) -> tuple[np.ndarray, ...]:
    """(ptr, u, whether v ∈ N_u) of N_v of the lists' nodes ``first`` to ``last``, v among them."""
    begin, end = int(lists.ptr[first]), int(lists.ptr[last])
    source = lists.source[begin:end].astype(np.int64)
    row = np.repeat(np.arange(last - first), np.diff(lists.ptr[first : last + 1]))
    own = np.arange(last - first)
    proper = source != row + lists.begin + first
    key = np.concatenate([row[proper] * n + source[proper], own * (n + 1) + lists.begin + first])
    mutual = np.concatenate([lists.mutual[begin:end][proper], np.ones(last - first, dtype=bool)])
    order = np.argsort(key, kind="stable")
    row, near = np.divmod(key[order], n)
    counts = np.bincount(row, minlength=last - first)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), near, mutual[order]
