"""The neighbour lists of one part of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.ops.neighbors import LISTS, Neighbors
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
        lists["checked"] = tuple(lists[name] for name in LISTS)  # as those of ``square`` were
        return PartNeighbors(**lists, inner=square, part=part)

    @property
    def square(self) -> Neighbors:
        return self.inner

    @property
    def edge_index(self) -> Tensor:
        """[2, E] in node numbers of the whole graph."""
        return self.part.ids[super().edge_index]

    def with_halo(self, x: Tensor) -> Tensor:
        """[own, …] → [own + halo, …]."""
        return self.part.with_halo([x])[0]

    def select(self, keep: Tensor, symmetric: bool) -> Neighbors:
        rest = keep.new_ones(self.inner.num_edges - self.num_edges)
        return PartNeighbors.of(self.inner.select(torch.cat([keep, rest]), False), self.part)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Neighbors:
        return PartNeighbors.of(self.inner.to(device, non_blocking), self.part.to(device))


def padded(x: Tensor, rows: int) -> Tensor:
    """x with rows of 0 appended: [k, …] → [rows, …]."""
    if x.size(0) == rows:
        return x
    return torch.cat([x, x.new_zeros(rows - x.size(0), *x.shape[1:])])
