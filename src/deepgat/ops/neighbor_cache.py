"""A cache of the neighbour lists of edge tensors.

Building lists sorts the edges, and on a GPU it waits for the device. So ``conv(x, edge_index)``
keeps the lists of an ``edge_index`` and reuses them while it is the same tensor with the same
contents:

- The tensor is held weakly: its lists are freed with it. At most :data:`MOST` tensors have lists;
  those that were used longest ago go first.
- torch's version counter, which all views of one storage share, sees changes in place. The address,
  the shape and the strides see other memory (``tensor.data = other``, ``set_``). The lists hold on
  to the storage, so nothing else can take its address.
- The version counter misses writes through ``tensor.data``, ``tensor.numpy()`` or another library
  that shares the memory. On the CPU every call therefore compares the edges with a copy of those
  that the lists were built from. On a GPU that would cost a synchronisation: after such a write
  pass ``edge_index.clone()``, or clear the cache (:func:`use_neighbor_cache`).
- Tensors made in inference mode, which have no version counter, and subclasses are not kept. PyG's
  ``EdgeIndex`` is known by the tensor inside it.

The cache belongs to the process, not to a module: copying, pickling or moving a module leaves it
alone. Every operation on it is one of a dictionary, so threads and forks need no lock. Two threads
that meet a new tensor at once build its lists twice.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from deepgat.errors import UserError
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.packed_lists import pack
from deepgat.ops.unchanged import Watched, can_watch

MOST = 64
"""Tensors that have lists at a time."""
_enabled = True


class EdgeLists:
    """The lists of the edges ``pairs`` [2, m], and what else follows from the edges alone."""

    def __init__(self, pairs: Tensor, neighbors: Neighbors) -> None:
        self.pairs = pairs
        self.neighbors = neighbors

    def places(self) -> tuple[Tensor, Tensor]:
        """Where the values of the edges go: :meth:`Neighbors.places`."""
        return self.neighbors.places(self.pairs)

    def added(self) -> tuple[Tensor, Tensor]:
        """([n] bool: nodes without a self-loop of their own, [E] bool: those loops)."""
        source, target = self.pairs.long()
        own = torch.zeros_like(self.neighbors.degree)
        own = own.index_add(0, target, (source == target).long()) > 0
        near = self.neighbors
        return ~own, (near.source == near.target) & ~own.index_select(0, near.target)

    def mask_loops(self, neighbors: Neighbors) -> tuple[Neighbors, Tensor]:
        """(the lists with weight 0 for added self-loops, [n] bool nodes without incoming edges)."""
        loopless, added = self.added()
        alone = neighbors.others == 0
        added = added & ~alone.index_select(0, neighbors.target)  # so that softmax is defined
        return neighbors.masked(added), alone & loopless

    def without_loops(self) -> tuple[Neighbors, Tensor]:
        """:meth:`mask_loops` of edges without values."""
        return self.mask_loops(self.neighbors)

    def packed(self) -> Tensor:
        """All lists in one tensor: :mod:`deepgat.ops.packed_lists`."""
        return pack(self.neighbors, self.neighbors.num_nodes + self.pairs.size(1)).lists


class Seen:
    """An edge tensor as it was: watched, and on the CPU compared with a copy."""

    def __init__(self, pairs: Tensor, when_freed: Callable[[Any], object]) -> None:
        self.watched = Watched(pairs, when_freed)
        with torch.inference_mode(False):
            self.pairs = pairs.detach()  # holds on to the storage, not to the tensor
            self.copy = None if pairs.is_cuda else self.pairs.clone()

    def is_of(self, pairs: Tensor) -> bool:
        if not self.watched.is_still(pairs):
            return False
        if self.copy is None:
            return True
        if self.copy.device.type != "cpu":
            return torch.equal(self.pairs, self.copy)
        # torch.equal takes three times as long: a tenth of a layer's time
        return np.array_equal(self.pairs.numpy(), self.copy.numpy())


class _Entry(EdgeLists):
    """The lists of a watched tensor; derived values are computed once and kept."""

    def __init__(self, pairs: Tensor, num_nodes: int) -> None:
        key = _key(pairs, num_nodes)
        self.seen = Seen(pairs, lambda reference: _discard(key, reference))
        self.found: dict[str, Any] = {}
        self.streams: set[int] = set()
        self.is_recorded = False
        with torch.inference_mode(False):  # the lists may be saved for a backward pass later
            super().__init__(self.seen.pairs, Neighbors.from_edge_index(pairs, num_nodes))
        self._wait()

    def places(self) -> tuple[Tensor, Tensor]:
        return self._once("places", super().places)

    def added(self) -> tuple[Tensor, Tensor]:
        return self._once("added", super().added)

    def without_loops(self) -> tuple[Neighbors, Tensor]:
        return self._once("without_loops", super().without_loops)

    def packed(self) -> Tensor:
        return self._once("packed", super().packed)

    def _once(self, name: str, find: Callable[[], Any]) -> Any:
        if name in self.found:
            return self.found[name]
        if self.pairs.is_cuda and torch.cuda.is_current_stream_capturing():
            return find()  # in the memory of the recorded graph
        with torch.inference_mode(False):
            self.found[name] = find()
        self._wait()
        return self.found[name]

    def _wait(self) -> None:
        """Other CUDA streams use the results without waiting for the one that computes them."""
        if self.pairs.is_cuda:
            stream = torch.cuda.current_stream(self.pairs.device)
            stream.synchronize()
            self.streams = {stream.cuda_stream}

    def guard(self, pairs: Tensor) -> None:
        """Keep the memory of the lists while a CUDA stream, or a recorded graph, reads them."""
        if torch.cuda.is_current_stream_capturing():
            if not self.is_recorded:
                self.is_recorded = True
                weakref.finalize(pairs, _let_go, self).atexit = False
            return
        if torch._C._cuda_getCurrentRawStream(pairs.device.index) not in self.streams:
            stream = torch.cuda.current_stream(pairs.device)
            self.streams.add(stream.cuda_stream)
            for tensor in tree_leaves([vars(self.neighbors), *self.found.values()]):
                if isinstance(tensor, Tensor):
                    tensor.record_stream(stream)


_entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
"""By the identity of the tensor and the number of nodes, the latest used last."""
_joined: dict[tuple[int, int, int], tuple[Seen, Tensor]] = {}
"""By the identity of the tensor and the numbers of sources and targets."""


@contextmanager
def use_neighbor_cache(enabled: bool) -> Iterator[None]:
    """Whether calls keep the neighbour lists of an edge tensor for the next call; by default, yes.

    ``use_neighbor_cache(False)`` frees all lists that were kept, so this clears the cache:

    >>> with use_neighbor_cache(False):
    ...     pass
    """
    global _enabled
    before, _enabled = _enabled, enabled
    if not enabled:
        _entries.clear()
        _joined.clear()
    try:
        yield
    finally:
        _enabled = before


def edge_lists(pairs: Tensor, num_nodes: int) -> EdgeLists:
    """The lists of ``pairs`` [2, m]: those that were kept if nothing has changed, else new ones."""
    if not _enabled or not can_watch(pairs):
        return EdgeLists(pairs, Neighbors.from_edge_index(pairs, num_nodes))
    key = _key(pairs, num_nodes)
    entry = _entries.get(key)
    if entry is None or not entry.seen.is_of(pairs):
        if pairs.is_cuda and torch.cuda.is_current_stream_capturing():
            raise UserError(
                "edge_index has no neighbour lists yet, and a CUDA graph cannot record how they "
                "are built: call the layer with this edge_index once before recording"
            )
        entry = _entries[key] = _Entry(pairs, num_nodes)
        while len(_entries) > MOST:
            with suppress(KeyError):  # another thread was faster
                _entries.popitem(last=False)
    else:
        with suppress(KeyError):
            _entries.move_to_end(key)
    if pairs.is_cuda:
        entry.guard(pairs)
    return entry


def joined_edges(
    edge_index: Tensor, num_sources: int, num_targets: int, join: Callable[[], Tensor]
) -> Tensor:
    """What ``join`` makes of edges between two sets; kept while ``edge_index`` lives unchanged.

    Since it is the same tensor every time, its neighbour lists are kept, too.
    """
    if not _enabled or torch.compiler.is_compiling() or not can_watch(edge_index):
        return join()
    key = id(edge_index), num_sources, num_targets
    seen, joined = _joined.get(key, (None, edge_index))
    if seen is None or not seen.is_of(edge_index):
        joined = join()
        _joined[key] = Seen(edge_index, lambda _: _joined.pop(key, None)), joined
    return joined


def _discard(key: tuple[int, int], reference: Any) -> None:
    """Forget lists whose tensor is freed, unless others have taken their place."""
    entry = _entries.get(key)
    if entry is not None and entry.seen.watched.reference is reference:
        _entries.pop(key, None)


def _let_go(entry: _Entry) -> None:
    """What CUDA graphs read is kept until the tensor is freed, whatever the cache does."""


def _key(pairs: Tensor, num_nodes: int) -> tuple[int, int]:
    return id(pairs), num_nodes
