"""The heads of a layer divided among processes, as a convolution sees it.

Every process holds the whole graph and all weights, computes some heads of a layer, and then has
the outputs of all. What stands before and after the heads is computed by everyone alike. So a
gradient that comes out of the heads is a share of it (:meth:`HeadShare.entered` adds them up), one
that goes into them is whole. How processes talk is not decided here
(:mod:`deepgat.distributed.heads`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


class HeadShare(ABC):
    """This process's share of the heads."""

    rank: int
    size: int

    def divides(self, heads: int) -> bool:
        """Whether a layer of so many heads is divided; else everyone computes all of it."""
        return heads % self.size == 0

    def own(self, heads: int) -> slice:
        """Which of the heads are this process's."""
        each = heads // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    @abstractmethod
    def entered(self, x: Tensor) -> Tensor:
        """x, which all processes have; the gradients that their heads send back are added up."""

    @abstractmethod
    def gathered(self, x: Tensor) -> Tensor:
        """[k, own heads, …] of every process as [k, H, …]; a gradient goes to its own heads."""


_current: HeadShare | None = None  # a plain global: a backward pass may run in threads of its own


def current_share(heads: int) -> HeadShare | None:
    """The share of a layer of so many heads; None where this process computes all of them."""
    return _current if _current is not None and _current.divides(heads) else None


@contextmanager
def use_heads(share: HeadShare | None) -> Iterator[None]:
    """Inside, layers compute this share of their heads."""
    global _current
    before, _current = _current, share
    try:
        yield
    finally:
        _current = before
