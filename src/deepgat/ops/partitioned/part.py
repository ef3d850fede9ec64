"""A graph divided among processes, as the operators see it.

Every process holds some nodes, its own, and for each layer borrows the rows of their neighbours
elsewhere, the *halo*. Code per node stays as it is; what looks at several nodes asks here: the
rows of neighbours (:meth:`Part.borrow`), sums over all nodes (:func:`node_mean`,
:func:`node_mean_share`), and the numbers of nodes in the whole graph, by which dropout masks are
drawn. How processes talk is not decided here (:mod:`deepgat.distributed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


class Loan(ABC):
    """Rows of the halo that are on their way; what needs none of them can be computed meanwhile."""

    own: list[Tensor]
    """The tensors [own, …] that were asked for, to be used in place of those that were given: the
    gradients of the borrowed rows come home into them."""

    @abstractmethod
    def joined(self, rows: Tensor | None = None) -> list[Tensor]:
        """Wait; every tensor's ``rows`` [k] (all, if None) with the halo below: [k + halo, …]."""


class Part(ABC):
    """What a process knows of the graph of which it holds a part."""

    own: int
    """Nodes of this part: rows 0 … own − 1 of every tensor here."""
    ids: Tensor
    """[own + halo] int64: the numbers in the whole graph of the own nodes, then of the halo."""
    num_nodes: int
    """Nodes of the whole graph."""

    borrows: bool
    """Whether some part of the graph has a halo: else nobody ever sends rows."""
    overlaps: bool
    """Whether borrowed rows travel while something else is computed."""

    @abstractmethod
    def borrow(self, tensors: Sequence[Tensor]) -> Loan:
        """Ask for the halo's rows of every tensor [own, …], one message for all; do not wait.

        The backward pass sends the halo's gradients home, where they are added in one order. It
        runs in reverse, so what was computed between asking and joining is meanwhile there too.
        """

    def with_halo(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Every tensor [own, …] with the halo's rows below: [own + halo, …]."""
        return self.borrow(tensors).joined() if self.borrows else list(tensors)

    @abstractmethod
    def total(self, x: Tensor) -> Tensor:
        """The sum of every process's x, the same bits in each; its gradients are summed too."""

    @abstractmethod
    def gathered(self, x: Tensor) -> Tensor | None:
        """Every process's x [own, …], by the nodes' numbers, in the first; None elsewhere."""

    @abstractmethod
    def to(self, device: object) -> Part:
        """The same part on another device."""


_current: Part | None = None  # a plain global: a backward pass may run in threads of its own


def current_part() -> Part | None:
    """The part that tensors of nodes belong to now; None where a graph is whole."""
    return _current


@contextmanager
def use_part(part: Part | None) -> Iterator[None]:
    """Inside, a tensor with a row per node holds the rows of this part."""
    global _current
    before, _current = _current, part
    try:
        yield
    finally:
        _current = before


def row_ids() -> Tensor | None:
    """[own] int64: what dropout masks call the rows at hand; None where a graph is whole."""
    return None if _current is None else _current.ids[: _current.own]


def node_mean(x: Tensor) -> Tensor:
    """The mean over all nodes of the graph: [n, …] → […]."""
    return x.mean(0) if _current is None else _current.total(x.sum(0)) / _current.num_nodes


def node_mean_share(x: Tensor, dim: int) -> Tensor:
    """This part's share of the mean along ``dim``: the shares of all parts add up to the mean."""
    if _current is None:
        return x.mean(dim)
    count = _current.total(x.new_tensor([x.size(dim)]))
    return x.sum(dim) / count[0].clamp(min=1)
