"""The interface of the operators to a graph that is partitioned among processes.

Every process owns some nodes. In each layer it borrows the rows of their neighbours in other
parts, the *halo*. Code that works node by node does not change. Code that combines nodes uses this
module: for rows of neighbours (:meth:`Part.with_halo`), for means over all nodes
(:func:`node_mean`, :func:`node_mean_share`), and for node numbers in the whole graph, which seed
the dropout masks. :mod:`deepgat.distributed` implements the communication.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.ops.neighbors import LISTS, Neighbors


class Part(ABC):
    """One process's view of a partitioned graph."""

    own: int
    """Number of nodes in this part: rows 0 … own − 1 of every tensor here."""
    ids: Tensor
    """[own + halo] int64: numbers in the whole graph, own nodes first."""
    num_nodes: int
    """Number of nodes in the whole graph."""

    borrows: bool = False
    """Whether processes exchange rows at all."""

    def with_halo(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Every tensor [own, …] with the halo rows appended: [own + halo, …].

        The backward pass returns the halo's gradients to their owners, who add them in a fixed
        order.
        """
        return list(tensors)

    @abstractmethod
    def total(self, x: Tensor) -> Tensor:
        """Σ x over the processes, bitwise equal in all of them; gradients are summed too."""

    @abstractmethod
    def gathered(self, x: Tensor) -> Tensor | None:
        """x [own, …] of all processes in the order of node numbers; None except in rank 0."""

    @abstractmethod
    def to(self, device: object) -> Part:
        """The same part on another device."""


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

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PartNeighbors:
        return PartNeighbors.of(self.inner.to(device, non_blocking), self.part.to(device))


def padded(x: Tensor, rows: int) -> Tensor:
    """x with rows of 0 appended: [k, …] → [rows, …]."""
    if x.size(0) == rows:
        return x
    return torch.cat([x, x.new_zeros(rows - x.size(0), *x.shape[1:])])


_current: Part | None = None  # a plain global: backward passes may run in other threads


def current_part() -> Part | None:
    """The part that node tensors belong to; None for a whole graph."""
    return _current


@contextmanager
def use_part(part: Part | None) -> Iterator[None]:
    """Inside the context, tensors with one row per node hold the rows of this part."""
    global _current
    before, _current = _current, part
    try:
        yield
    finally:
        _current = before


def row_ids() -> Tensor | None:
    """[own] int64: the row numbers that dropout masks hash; None for a whole graph."""
    return None if _current is None else _current.ids[: _current.own]


def node_mean(x: Tensor) -> Tensor:
    """The mean over all nodes of the graph: [n, …] → […]."""
    return x.mean(0) if _current is None else _current.total(x.sum(0)) / _current.num_nodes


def node_mean_share(x: Tensor, dim: int) -> Tensor:
    """This part's contribution to the mean along ``dim``; contributions add up to the mean."""
    if _current is None:
        return x.mean(dim)
    count = _current.total(x.new_tensor([x.size(dim)]))
    return x.sum(dim) / count[0].clamp(min=1)
