"""The neighbour lists of one part of a divided graph, and their halves: own nodes, and the halo."""

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
    """The lists of the own nodes of one part of a graph; they name nodes of the halo too.

    ``square`` adds a list for every node of the halo, of itself alone, below the others: what
    kernels for whole graphs compute on it is right in the rows of the own nodes, and a per-edge
    tensor of the part is the beginning of one of ``square``. The lists by source are ``square``'s.
    """

    inner: Neighbors
    part: Part

    @staticmethod
    def of(square: Neighbors, part: Part) -> PartNeighbors:
        """From lists over the own nodes and the halo, the halo's holding themselves alone."""
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
        """[2, E] in the numbers of the whole graph."""
        return self.part.ids[super().edge_index]

    @cached_property
    def everywhere(self) -> Side:
        """All neighbours: the lists ``square``."""
        return Side(self.inner, self.part.ids)

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """Every list in two: the neighbours that are own nodes, and those that are in the halo.

        The first has a list for every own node; the second for those with a neighbour in the halo.
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
    """Some of the edges of a part, as lists with a row for every node that they name.

    Nodes of the halo have a list of themselves alone, below all others: kernels for whole graphs
    want a list for every row, and what is found there is thrown away.

    Attributes:
        lists: over own nodes, and then the halo or none of it.
        ids: [rows] their numbers in the whole graph.
        chosen: [E] bool, which edges of the part they hold, first; None: all.
        own: [k] the own nodes that have a list, first; None: all, in their order.
    """

    lists: Neighbors
    ids: Tensor
    chosen: Tensor | None = None
    own: Tensor | None = None

    def of_nodes(self, x: Tensor) -> Tensor:
        """Of a tensor that only targets need [own, …] a row for each here; the halo's are 0."""
        return padded(x if self.own is None else x.index_select(0, self.own), self.lists.num_nodes)

    def of_edges(self, x: Tensor) -> Tensor:
        """Of a per-edge tensor of the part [E, …] the edges here; 0 for those of the halo."""
        return padded(x if self.chosen is None else x[self.chosen], self.lists.num_edges)

    @property
    def targets(self) -> Tensor:
        """[k] the own nodes that have a list, where these are some."""
        assert self.own is not None
        return self.own

    def seed(self, seed: Tensor | None) -> Tensor | None:
        """For dropout masks, by the nodes' numbers in the whole graph."""
        return None if seed is None else dropout_masks.numbered(seed, self.ids)


def _side(square: Neighbors, part: Part, chosen: Tensor, rows: Tensor, some: bool) -> Side:
    """The lists with only the edges ``chosen`` [E] and the nodes ``rows`` [own + halo] in them.

    ``some``: not all own nodes. All numbers stay in their order, so that running counts give the
    new ones.
    """
    kept = square.select(torch.cat([chosen, rows[part.own :]]), False)
    number = torch.cumsum(rows, 0, dtype=torch.int32) - 1

    def pointers(ptr: Tensor) -> Tensor:  # the lists left out are empty
        return torch.cat([ptr[:-1][rows], ptr[-1:]])

    ptr, source_ptr = pointers(kept.ptr), pointers(kept.source_ptr)
    source = number[kept.source.long()]
    target_by_source = number[kept.target_by_source.long()]
    both_ways = torch.equal(ptr, source_ptr) and torch.equal(source, target_by_source)
    if both_ways:  # held once
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
    """x with zeros, or another number, below: [k, …] → [rows, …]."""
    if x.size(0) == rows:
        return x
    return torch.cat([x, x.new_full((rows - x.size(0), *x.shape[1:]), filling)])
