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

from torch import Tensor


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
