"""The neighbour lists of one part of a graph, split into own neighbours and halo neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from deepgat.ops import dropout_masks
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.partitioned.part import Part


@dataclass(frozen=True, eq=False, kw_only=True)
class PartNeighbors(Neighbors):
    """The lists of the own nodes of one part; their neighbours may lie in the halo.

    ``square`` appends a list for every halo node, which holds that node alone. Kernels for whole
    graphs therefore compute correct results on it in the rows of the own nodes. A per-edge tensor
    of the part is a prefix of one of ``square``. The lists by source are those of ``square``.
    """

    inner: Neighbors
    part: Part

    @staticmethod
    def of(square: Neighbors, part: Part) -> PartNeighbors:
        """From the lists ``square`` of own nodes and halo, as described above."""
        ptr = square.ptr[: part.own + 1]
        edges = square.num_edges - (square.num_nodes - part.own)
        lists = vars(square) | {"ptr": ptr}
        for name in ("source", "target", "log_weight", "features"):
            if lists[name] is not None:
                lists[name] = lists[name][:edges]
        return PartNeighbors(**lists, inner=square, part=part)

    @property
    def square(self) -> Neighbors:
        return self.inner

    @property
    def edge_index(self) -> Tensor:
        """[2, E] in node numbers of the whole graph."""
        return self.part.ids[super().edge_index]

    @cached_property
    def everywhere(self) -> Side:
        """All neighbours: the lists ``square``."""
        return Side(self.inner, self.part.ids)

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """Every list split in two: neighbours among the own nodes, and neighbours in the halo.

        The first has a list for every own node, the second for those with a halo neighbour.
        """
        lists = replace(self.inner, log_weight=None, features=None)
        own = self.part.own
        across = self.source >= own
        on_border = across.new_zeros(own)
        on_border[self.target[across].long()] = True
        ours, theirs = across.new_ones(own), across.new_zeros(lists.num_nodes - own)
        return (
            _side(lists, self.part, ~across, torch.cat([ours, theirs]), False),
            _side(lists, self.part, across, torch.cat([on_border, ~theirs]), True),
        )

    def with_halo(self, x: Tensor) -> Tensor:
        """[own, …] → [own + halo, …]."""
        return self.part.with_halo([x])[0]

    def select(self, keep: Tensor, symmetric: bool) -> Neighbors:
        rest = keep.new_ones(self.inner.num_edges - self.num_edges)
        return PartNeighbors.of(self.inner.select(torch.cat([keep, rest]), False), self.part)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Neighbors:
        return PartNeighbors.of(self.inner.to(device, non_blocking), self.part.to(device))


@dataclass(frozen=True, eq=False)
class Side:
    """A subset of a part's edges, as lists with one row per node involved.

    Kernels for whole graphs expect a list for every row. So each halo node has a list of its own,
    which holds that node alone and comes last; its result is discarded.

    Attributes:
        lists: of own nodes, then of the halo if it is involved.
        ids: [rows] node numbers in the whole graph.
        chosen: [E] bool, the part's edges that come first in the lists; None: all.
        own: [k] the own nodes that have a list; None: all.
    """

    lists: Neighbors
    ids: Tensor
    chosen: Tensor | None = None
    own: Tensor | None = None

    def of_nodes(self, x: Tensor) -> Tensor:
        """Rows of x [own, …] for the nodes here; 0 for the halo, since only targets read x."""
        return padded(x if self.own is None else x.index_select(0, self.own), self.lists.num_nodes)

    def of_edges(self, x: Tensor) -> Tensor:
        """Rows of the per-edge x [E, …] for the edges here; 0 for the lists of the halo."""
        return padded(x if self.chosen is None else x[self.chosen], self.lists.num_edges)

    @property
    def targets(self) -> Tensor:
        """[k] the own nodes that have a list, if not all have one."""
        assert self.own is not None
        return self.own

    def seed(self, seed: Tensor | None) -> Tensor | None:
        """A dropout seed that hashes node numbers of the whole graph."""
        return None if seed is None else dropout_masks.numbered(seed, self.ids)


def _side(square: Neighbors, part: Part, chosen: Tensor, rows: Tensor, some: bool) -> Side:
    """The lists restricted to the edges ``chosen`` [E] and the nodes ``rows`` [own + halo].

    ``some``: not all own nodes are among them. The order is kept, so running counts give the new
    numbers.
    """
    kept = square.select(torch.cat([chosen, rows[part.own :]]), False)
    number = torch.cumsum(rows, 0, dtype=torch.int32) - 1

    def pointers(ptr: Tensor) -> Tensor:  # the omitted lists are empty
        return torch.cat([ptr[:-1][rows], ptr[-1:]])

    ptr, source_ptr = pointers(kept.ptr), pointers(kept.source_ptr)
    source = number[kept.source.long()]
    target_by_source = number[kept.target_by_source.long()]
    both_ways = torch.equal(ptr, source_ptr) and torch.equal(source, target_by_source)
    if both_ways:  # store it once
        source_ptr, target_by_source = ptr, source
    own = rows[: part.own]
    return Side(
        Neighbors.from_lists(
            ptr=ptr,
            source=source,
            target=number[kept.target.long()],
            source_ptr=source_ptr,
            by_source=kept.by_source,
            target_by_source=target_by_source,
            symmetric=both_ways,
        ),
        part.ids[rows],
        chosen=chosen,
        own=own.nonzero().squeeze(1) if some else None,
    )


def padded(x: Tensor, rows: int, filling: float = 0.0) -> Tensor:
    """x with rows of ``filling`` appended: [k, …] → [rows, …]."""
    if x.size(0) == rows:
        return x
    return torch.cat([x, x.new_full((rows - x.size(0), *x.shape[1:]), filling)])
