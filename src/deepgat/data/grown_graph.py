"""A kept graph with a few new nodes.

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

    def lists(self, nodes: np.ndarray) -> Lists:
        """The lists of some nodes, ascending."""
        n = self.base.num_nodes
        old = nodes[: np.searchsorted(nodes, n)]
        first = self.base.lists(old)
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

    def all_lists(self) -> Lists:
        """The lists of all nodes: those of the kept graph, with the new entries put in."""
        base, n = self.base.all_lists(), self.base.num_nodes
        rows, _, added = self._added
        length = np.concatenate([base.length, np.zeros(self.num_nodes - n, dtype=np.int64)])
        end = np.cumsum(length)  # of each list; those of new nodes begin where the old ones end
        at = np.repeat(end[rows], added.length)
        length[rows] += added.length

        def joined(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
            if one is None or other is None:  # there are no new entries, or no such values
                return None if one is None else np.array(one)
            return np.insert(one, at, other, axis=0)

        return Lists(
            length,
            np.insert(base.source, at, added.source),
            joined(base.log_weight, added.log_weight),
            joined(base.features, added.features),
        )

    def features(self, nodes: np.ndarray, wanted: int | None = None) -> Tensor:
        """x [m, d] of some nodes, as the graph stores it; rows after the first ``wanted`` are 0."""
        n, d = self.base.num_nodes, self.base.num_features
        read = nodes[:wanted]
        old, new = np.flatnonzero(read < n), np.flatnonzero(read >= n)
        if not self.base.sparse:
            x = np.zeros((len(nodes), d), dtype=np.float32)
            x[old] = self.base.arrays["x"][read[old]]
            if self.new is not None and len(new):
                x[new] = self.new.x.to_dense().numpy()[read[new] - n]
            return torch.from_numpy(x)
        parts = [_rows(self.base.features(read[old]))]
        if self.new is not None and len(new):
            parts.append(_rows(self.new.x)[read[new] - n])
        whole = sp.vstack(parts, format="csr")[np.argsort(np.concatenate([old, new]))]
        rest = np.full(len(nodes) - len(read), whole.nnz)
        return csr_tensor(
            torch.from_numpy(np.concatenate([whole.indptr, rest]).astype(np.int64)),
            torch.from_numpy(whole.indices.astype(np.int64)),
            torch.from_numpy(whole.data),
            d,
        )

    def all_features(self) -> Tensor:
        """x [n, d] of all nodes."""
        if self.base.sparse:
            return self.features(np.arange(self.num_nodes))
        x = np.empty((self.num_nodes, self.base.num_features), dtype=np.float32)
        x[: self.base.num_nodes] = self.base.arrays["x"]
        if self.new is not None:
            x[self.base.num_nodes :] = self.new.x.to_dense().numpy()
        return torch.from_numpy(x)

    def training_labels(self, nodes: np.ndarray, num_classes: int) -> Tensor:
        """Y [m, C] float64: one-hot labels of training nodes; new nodes have none."""
        old = np.flatnonzero(nodes < self.base.num_nodes)
        known = self.base.training_labels(nodes[old], num_classes)
        found = known.new_zeros(len(nodes), num_classes)
        found[torch.from_numpy(old)] = known
        return found


def _rows(x: Tensor) -> sp.csr_matrix:
    if x.layout == torch.strided:
        return sp.csr_matrix(x.numpy())
    x = x.to_sparse_csr()
    parts = (x.values(), x.col_indices(), x.crow_indices())
    return sp.csr_matrix(tuple(part.numpy() for part in parts), shape=tuple(x.shape))
