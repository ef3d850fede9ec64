"""The neighbour lists of one part of a divided graph, and those of its inner and border nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from deepgat.ops import draws
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.parts import Part


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
    def sides(self) -> tuple[Side | None, Side]:
        """Inner targets, whose neighbours are all own nodes, and border targets, the others.

        Where nothing is computed while rows travel, all are border targets.
        """
        lists = replace(self.inner, log_weight=None, features=None)
        if not self.part.overlaps:
            return None, Side(lists, self.part.ids)
        own, halo = self.part.own, lists.num_nodes - self.part.own
        source, target = self.source.long(), self.target.long()
        on_border = source.new_zeros(own, dtype=torch.bool)
        on_border[target[source >= own]] = True
        loop, late = source == target, on_border[target]
        named = on_border.clone()
        named[source[late & (source < own)]] = True
        inner = _side(lists, self.part, ~late, ~late | loop, source.new_ones(own).bool(), 0)
        border = _side(lists, self.part, late, late | (loop & named[target]), named, halo)
        return inner, replace(
            border,
            own=named.nonzero().squeeze(1),
            targets=on_border.nonzero().squeeze(1),
            places=on_border[named].nonzero().squeeze(1),
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
    """Some targets of a part, with lists that have a row for every node that these targets name.

    The other rows are lists of a node alone, as kernels for whole graphs want them; what is found
    there is thrown away.

    Attributes:
        lists: over some own nodes, and then the halo or none of it.
        ids: [rows] the numbers of its rows in the whole graph.
        edges: [e] which edges of the part the lists hold, the halo's own lists left out; None: all.
        filling: [E, 1] which edges of the lists are there for throw-away rows alone, and of own
            nodes; None: none.
        own: [k] the own nodes that have a row; None: all, in their order.
        targets: [t] the own nodes whose lists these are; None: all.
        places: [t] their rows here; None: the first ones.
    """

    lists: Neighbors
    ids: Tensor
    edges: Tensor | None = None
    filling: Tensor | None = None
    own: Tensor | None = None
    targets: Tensor | None = None
    places: Tensor | None = None

    def of_nodes(self, x: Tensor) -> Tensor:
        """A row for each of the side, of targets' tensors [own, …]; the halo's are 0."""
        return padded(x if self.own is None else x.index_select(0, self.own), self.lists.num_nodes)

    def of_edges(self, x: Tensor) -> Tensor:
        """Of a per-edge tensor of the part [E, …] the edges here, 0 where they only fill."""
        x = padded(x if self.edges is None else x.index_select(0, self.edges), self.lists.num_edges)
        return x if self.filling is None else x.masked_fill(self.filling, 0.0)

    def seed(self, seed: Tensor | None) -> Tensor | None:
        """For dropout masks, by the nodes' numbers in the whole graph."""
        return None if seed is None else draws.numbered(seed, self.ids)

    def joined(self, found: Tensor, before: Tensor | None, own: int) -> Tensor:
        """What was found here [rows, …], put among what was found before for others: [own, …]."""
        if before is None:
            return found[:own]
        assert self.targets is not None
        assert self.places is not None
        return before.index_copy(0, self.targets, found.index_select(0, self.places))


def _side(
    square: Neighbors, part: Part, real: Tensor, keep: Tensor, rows: Tensor, halo: int
) -> Side:
    """The lists with only the edges of ``keep`` [E] and the own nodes of ``rows`` [own] in them.

    ``real`` [E] are those for which it is done; ``halo`` is 0 where its nodes have no row. Numbers
    of nodes and edges stay in their order, so that running counts do.
    """
    below = square.num_nodes - part.own
    kept = square.select(torch.cat([keep, keep.new_full((below,), bool(halo))]), False)
    rows = torch.cat([rows, rows.new_full((below,), bool(halo))])
    number = torch.cumsum(rows, 0, dtype=torch.int32) - 1

    def pointers(ptr: Tensor) -> Tensor:  # lists left out are empty
        return torch.cat([ptr[:-1][rows], ptr[-1:]])

    return Side(
        Neighbors.from_lists(
            ptr=pointers(kept.ptr),
            source=number[kept.source.long()],
            target=number[kept.target.long()],
            source_ptr=pointers(kept.source_ptr),
            by_source=kept.by_source,
            target_by_source=number[kept.target_by_source.long()],
            symmetric=False,
        ),
        part.ids[rows],
        edges=keep.nonzero().squeeze(1),
        filling=padded(~real[keep].unsqueeze(1), kept.num_edges),
    )


def padded(x: Tensor, rows: int) -> Tensor:
    """x with zeros below: [k, …] → [rows, …]; itself where there is nothing to add."""
    if x.size(0) == rows:
        return x
    return torch.cat([x, x.new_zeros(rows - x.size(0), *x.shape[1:])])
