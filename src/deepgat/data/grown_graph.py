"""A kept graph with a few new nodes, and the part of it around some nodes.

The new nodes have the numbers n, n + 1, …, after those of the kept graph. Their edges are added to
the lists of both graphs without copying the old lists, so that the cost of a prediction grows with
the part of the graph that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from deepgat.data.feature_matrix import csr_tensor
from deepgat.data.kept_graph import KeptGraph, Lists, stretches
from deepgat.errors import UserError
from deepgat.ops import Neighbors

MOST_NODES = 2**31 - 1


@dataclass(frozen=True, eq=False)
class NewNodes:
    """k nodes to add to a graph of n nodes, and e edges between them and to the graph."""

    x: Tensor
    """[k, d] float32, dense or CSR."""
    edge_index: Tensor = field(default_factory=lambda: torch.empty(2, 0, dtype=torch.long))
    """[2, e] int64, sources and targets; new nodes are n … n + k − 1."""
    edge_weight: Tensor | None = None
    """[e] ≥ 0."""
    edge_attr: Tensor | None = None
    """[e, ·]."""
    ids: tuple[str, ...] = ()
    """Names of the k nodes, where they have any."""
    notes: tuple[str, ...] = ()
    """What was changed while reading, one sentence each."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The nodes around some others, the targets, with their lists: m nodes."""

    nodes: np.ndarray
    """[m] int64, ascending: numbers in the graph."""
    distance: np.ndarray
    """[m] int16: hops from the nearest target, against the direction of edges."""
    neighbors: Neighbors
    """The lists of the m nodes in the numbers 0 … m − 1."""
    targets: np.ndarray
    """[k] int64: the places of the targets among the m nodes."""


@dataclass(frozen=True, eq=False)
class GrownGraph:
    """A kept graph, and the new nodes after it; none by default."""

    base: KeptGraph
    new: NewNodes | None = None

    @property
    def num_nodes(self) -> int:
        return self.base.num_nodes + (0 if self.new is None else self.new.x.shape[0])

    @cached_property
    def _added(self) -> tuple[np.ndarray, np.ndarray, Lists]:
        """(nodes with new entries, ascending; where their lists begin; the entries).

        The lists of new nodes are complete. Those of old nodes hold new nodes only, which follow
        the entries of the kept graph, since they have larger numbers.
        """
        n = self.base.num_nodes
        if self.new is None:
            nobody = np.empty(0, np.int64)
            return nobody, nobody, Lists(nobody, nobody.astype(np.int32))
        index = self.new.edge_index
        self._check(self.new)
        ends = torch.unique(torch.cat([index.flatten(), torch.arange(n, self.num_nodes)]))
        local = torch.searchsorted(ends, index.contiguous())
        lists = Neighbors.from_edge_index(local, len(ends))
        lists = lists.with_given_values(local, self.new.edge_weight, self.new.edge_attr)
        target, source = ends[lists.target.long()], ends[lists.source.long()]
        kept = (target >= n) | (source != target)
        rows, count = np.unique(target[kept].numpy(), return_counts=True)
        values = (
            None if item is None else item[kept].float().numpy()
            for item in (lists.log_weight, lists.features)
        )
        return rows, np.cumsum(count) - count, Lists(
            count, source[kept].int().numpy(), *values
        )  # fmt: skip

    def _check(self, new: NewNodes) -> None:
        index, n = new.edge_index, self.base.num_nodes
        if self.num_nodes > MOST_NODES:
            raise UserError(f"{self.num_nodes:,} nodes are too many: expected {MOST_NODES:,}")
        if index.dim() != 2 or index.size(0) != 2 or index.dtype != torch.long:
            raise UserError(
                f"edge_index is {index.dtype} {list(index.shape)}: expected torch.int64 [2, edges]"
            )
        if not index.numel():
            return
        low, high = (int(end) for end in index.aminmax())
        if low < 0 or high >= self.num_nodes:
            raise UserError(
                f"edge_index names the nodes {low} to {high}: expected 0 to {n - 1} for the "
                f"graph's and {n} to {self.num_nodes - 1} for new ones"
            )
        if bool((index < n).all(0).any()):
            old = index[:, (index < n).all(0)][:, 0].tolist()
            names = " and ".join(repr(self.base.name(node)) for node in old)
            raise UserError(
                f"a new edge joins {names}, which are both in the graph already: give edges of "
                "new nodes only"
            )

    def lists(self, nodes: np.ndarray, values: bool = True) -> Lists:
        """The lists of some nodes, ascending; ``values`` as in :meth:`KeptGraph.lists`."""
        n = self.base.num_nodes
        old = nodes[: np.searchsorted(nodes, n)]
        first = self.base.lists(old, values)
        rows, begins, added = self._added
        place = np.minimum(np.searchsorted(rows, nodes), max(len(rows) - 1, 0))
        more = np.zeros(len(nodes), dtype=np.int64)
        if len(rows):
            more = np.where(rows[place] == nodes, added.length[place], 0)
        if not more.any():
            return first
        before = np.zeros(len(nodes), dtype=np.int64)
        before[: len(old)] = first.length
        count = before + more
        begin = np.cumsum(count) - count
        old_places = stretches(begin, before)
        new_places = stretches(begin + before, more)
        taken = stretches(np.where(more > 0, begins[place], 0), more)

        def joined(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
            if one is None or other is None:
                return None
            found = np.empty((int(count.sum()), *one.shape[1:]), dtype=one.dtype)
            found[old_places], found[new_places] = one, other[taken]
            return found

        source = joined(first.source, added.source)
        assert source is not None
        return Lists(
            count,
            source,
            joined(first.log_weight, added.log_weight),
            joined(first.features, added.features),
        )

    def around(self, targets: np.ndarray, hops: int, cut: bool = False) -> Surroundings:
        """The nodes at most ``hops`` hops from the targets, with their lists.

        The lists of nodes at that very distance hold the node alone; with ``cut``, their
        neighbours among the nodes found. The targets are numbers of nodes, in any order.
        """
        seen = np.zeros(
            self.num_nodes, dtype=np.int16
        )  # hops + 1; pages never touched cost nothing
        ring = np.unique(targets)
        seen[ring] = 1
        rings = [ring]
        for hop in range(1, hops + 1):
            near = self.lists(ring, values=False).source
            near = near[seen[near] == 0]
            if not len(near):
                break
            seen[near] = hop + 1
            if len(near) * 32 < len(seen):
                ring = np.unique(near).astype(np.int64)
            else:
                ring = np.flatnonzero(seen == hop + 1)
            rings.append(ring)
        nodes = np.sort(np.concatenate(rings))
        distance = seen[nodes] - 1
        place = np.empty(self.num_nodes, dtype=np.int32)
        place[nodes] = np.arange(len(nodes), dtype=np.int32)
        inner = np.flatnonzero(distance < hops) if not cut else np.arange(len(nodes))
        lists = self.lists(nodes[inner])
        if cut:
            lists = _among(lists, seen[lists.source] > 0)
        neighbors = _local(len(nodes), inner, lists._replace(source=place[lists.source]))
        return Surroundings(nodes, distance, neighbors, place[targets].astype(np.int64))

    def features(self, nodes: np.ndarray, wanted: np.ndarray) -> Tensor:
        """x [m, d] of some nodes, ascending, as the graph stores it; rows not ``wanted`` are 0."""
        n = self.base.num_nodes
        old = np.flatnonzero(wanted & (nodes < n))
        new = np.flatnonzero(wanted & (nodes >= n))
        first = self.base.features(nodes[old])
        rows = torch.from_numpy(nodes[new] - n)
        d = self.base.num_features
        if not self.base.sparse:
            x = torch.zeros(len(nodes), d)
            x[torch.from_numpy(old)] = first
            if self.new is not None and len(new):
                x[torch.from_numpy(new)] = self.new.x.to_dense()[rows]
            return x
        parts = [_rows(first)]
        if self.new is not None and len(new):
            parts.append(_rows(self.new.x)[rows.numpy()])
        whole = sp.vstack(parts, format="csr")
        count = np.zeros(len(nodes), dtype=np.int64)
        count[np.concatenate([old, new])] = np.diff(whole.indptr)  # old come before new
        ptr = np.concatenate([[0], np.cumsum(count)])
        return csr_tensor(
            torch.from_numpy(ptr),
            torch.from_numpy(whole.indices.astype(np.int64)),
            torch.from_numpy(whole.data),
            d,
        )

    def training_labels(self, nodes: np.ndarray, num_classes: int) -> Tensor:
        """Y [m, C] float64: one-hot labels of training nodes; new nodes have none."""
        old = nodes[: np.searchsorted(nodes, self.base.num_nodes)]
        known = self.base.training_labels(old, num_classes)
        return torch.cat([known, known.new_zeros(len(nodes) - len(old), num_classes)])


def _rows(x: Tensor) -> sp.csr_matrix:
    if x.layout == torch.strided:
        return sp.csr_matrix(x.numpy())
    x = x.to_sparse_csr()
    parts = (x.values(), x.col_indices(), x.crow_indices())
    return sp.csr_matrix(tuple(part.numpy() for part in parts), shape=tuple(x.shape))


def _among(lists: Lists, inside: np.ndarray) -> Lists:
    """The lists with only the entries ``inside``."""
    row = np.repeat(np.arange(len(lists.length)), lists.length)
    values = (None if item is None else item[inside] for item in (lists.log_weight, lists.features))
    count = np.bincount(row[inside], minlength=len(lists.length))
    return Lists(count, lists.source[inside], *values)


def _local(size: int, inner: np.ndarray, lists: Lists) -> Neighbors:
    """Lists of ``size`` nodes: those of the nodes ``inner``, and {v} for every other node v."""
    count = np.ones(size, dtype=np.int64)
    count[inner] = lists.length
    ptr = np.concatenate([[0], np.cumsum(count)])
    alone = np.ones(size, dtype=bool)
    alone[inner] = False
    loops = np.flatnonzero(alone)
    filled = stretches(ptr[inner], lists.length)

    def spread(values: np.ndarray | None, rest: np.ndarray | float) -> np.ndarray | None:
        if values is None or not len(loops):
            return values
        found = np.empty((int(ptr[-1]), *values.shape[1:]), dtype=values.dtype)
        found[filled], found[ptr[loops]] = values, rest
        return found

    source = spread(lists.source, loops)
    assert source is not None
    target = np.repeat(np.arange(size, dtype=np.int32), count)
    # a counting sort by source
    turned = sp.csr_matrix((np.arange(len(source)), source, ptr), shape=(size, size)).tocsc()
    values = spread(lists.log_weight, 0.0), spread(lists.features, 0.0)
    log_weight, features = (None if item is None else torch.from_numpy(item) for item in values)
    return Neighbors.from_lists(
        ptr=torch.from_numpy(ptr),
        source=torch.from_numpy(source),
        target=torch.from_numpy(target),
        source_ptr=torch.from_numpy(turned.indptr.astype(np.int64)),
        by_source=torch.from_numpy(turned.data),
        target_by_source=torch.from_numpy(turned.indices.astype(np.int32)),
        symmetric=False,
        derived=True,
        log_weight=log_weight,
        features=features,
    ).audible()
