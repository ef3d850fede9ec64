"""Neighbour lists in one tensor, for compiled code.

A compiled graph copies, checks and hands on every tensor that it takes, and that costs as much as
a kernel. So all lists of :class:`~deepgat.ops.Neighbors` go into one tensor whose size follows from
those of ``edge_index``. Only the lengths of the lists depend on the edges.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from deepgat.errors import UserError
from deepgat.ops.lists import LONGEST
from deepgat.ops.neighbors import LISTS, Neighbors

ALIGNED = 16
"""Lists begin at multiples of so many int64, 128 bytes, as tensors of their own would."""
_WIDTHS = {"pieces": 4, "hubs": 3, "source_pieces": 4, "source_hubs": 3}
"""Columns of the lists that are matrices."""
_NODES = ("source", "target", "target_by_source")
"""Lists of int32; the others hold int64."""

_originals: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Packed tensor → the lists that were packed into it."""


class Lengths(NamedTuple):
    """How long the packed lists are, and so where they begin."""

    most: int
    """The largest number of edges for which there is room: m + n for an ``edge_index`` [2, m]."""
    symmetric: int
    """1 or 0: the attribute of :class:`~deepgat.ops.Neighbors`."""
    edges: int
    pieces: int
    hubs: int
    source_pieces: int
    source_hubs: int

    def of(self, name: str, num_nodes: int) -> int:
        """The length of this list."""
        if name.endswith("ptr"):
            return num_nodes + 1
        found: int = getattr(self, name) if name in _WIDTHS else self.edges
        return found


class Packed(NamedTuple):
    """All lists in one tensor [:func:`room`] int64."""

    lists: Tensor
    lengths: Lengths


def room(num_nodes: int, most: int) -> int:
    """The size of the tensor that holds the lists of n nodes with at most so many edges."""
    return _places(num_nodes, most)[1]


def lengths_of(neighbors: Neighbors, most: int) -> Lengths:
    """The lengths of these lists among those of graphs with at most ``most`` edges."""
    parts = (getattr(neighbors, name).size(0) for name in _WIDTHS)
    return Lengths(most, int(neighbors.symmetric), neighbors.num_edges, *parts)


def as_sizes(lists: Tensor, lengths: Lengths) -> Tensor:
    """An empty tensor [0, …] whose other sizes are the lengths but for ``most``.

    It has strides of 1, since the product of its sizes may be larger than an int64.
    """
    sizes = (0, *lengths[1:])
    return lists.new_empty_strided(sizes, (1,) * len(sizes))


def pack(neighbors: Neighbors, most: int) -> Packed:
    """The lists of a graph with at most ``most`` edges."""
    n, lengths = neighbors.num_nodes, lengths_of(neighbors, most)
    lists = neighbors.ptr.new_zeros(room(n, most))
    for name, view in views(lists, lengths, n).items():
        view.copy_(getattr(neighbors, name))
    _originals[lists] = neighbors
    return Packed(lists, lengths)


def original(lists: Tensor) -> Neighbors | None:
    """The lists that were packed into this tensor; None if it is a copy.

    Kernels that run now may read them instead. A CUDA graph must read the tensor it is given: when
    it is replayed, the original lists may be gone.
    """
    if lists.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    return _originals.get(lists)


def views(
    lists: Tensor, lengths: Lengths, num_nodes: int, names: Sequence[str] = LISTS
) -> dict[str, Tensor]:
    """The packed lists of these names."""
    places, end = _places(num_nodes, lengths.most)
    if not torch.compiler.is_compiling():
        _check(lists, lengths, num_nodes, end)
    of_nodes, found = lists.view(torch.int32), {}
    for name in names:
        place, length, width = places[name], lengths.of(name, num_nodes), _WIDTHS.get(name)
        if name in _NODES:
            found[name] = of_nodes.as_strided((length,), (1,), 2 * place)
        elif width is None:
            found[name] = lists.as_strided((length,), (1,), place)
        else:
            found[name] = lists.as_strided((length, width), (width, 1), place)
    return found


def traced_neighbors(packed: Packed, num_nodes: int) -> Neighbors:
    """The lists as views inside a traced graph, which drops those that nothing reads."""
    named: dict[str, Any] = dict(views(*packed, num_nodes))
    named["symmetric"] = packed.lengths.symmetric
    return Neighbors(**named, packed=packed)


def _check(lists: Tensor, lengths: Lengths, num_nodes: int, end: int) -> None:
    """Refuse lengths that reach beyond the end of a list."""
    if lists.dtype != torch.int64 or lists.dim() != 1 or not lists.is_contiguous():
        raise UserError("lists is not a vector of int64: take it from deepgat::neighbor_lists")
    most = lengths.most
    hubs = most // LONGEST
    pieces = num_nodes + hubs
    limits = (most, 1, most, pieces, hubs, pieces, hubs)
    if lists.numel() != end or min(lengths) < 0 or any(map(operator.gt, lengths, limits)):
        raise UserError(
            f"lists has {lists.numel()} numbers, which are not lists of {num_nodes} nodes with "
            f"these lengths, {lengths}: take both from deepgat::neighbor_lists"
        )


def _places(num_nodes: int, most: int) -> tuple[dict[str, int], int]:
    """Where each list begins, in int64, and where the last one ends."""
    places, place, pieces = {}, 0, most // LONGEST
    for name in LISTS:
        places[name] = place
        if name.endswith("ptr"):
            size = num_nodes + 1
        elif name in _WIDTHS:
            size = _WIDTHS[name] * (pieces if "hubs" in name else num_nodes + pieces)
        else:
            size = (most + 1) // 2 if name in _NODES else most
        place += (size + ALIGNED - 1) // ALIGNED * ALIGNED
    return places, place
