"""Neighbour lists: the nodes that each node attends to."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops.list_checks import check_edge_index, check_edge_values
from deepgat.ops.lists import pointers, split_lists

LISTS = (
    *("ptr", "source", "target", "source_ptr", "by_source", "target_by_source"),
    *("pieces", "hubs", "source_pieces", "source_hubs"),
)


@dataclass(frozen=True, eq=False)
class Neighbors:
    """The lists N_v of a graph with n nodes, one after the other (compressed sparse rows).

    N_v is a set that always contains v: self-loops of the input are removed, repeated edges
    merged, and one self-loop per node added. The pairs (v, u ∈ N_v) are the *edges*, E of them,
    sorted by v and then by u; every per-edge tensor of the library is in this order.

    Attributes:
        ptr: [n+1] int64; N_v is ``source[ptr[v]:ptr[v+1]]``.
        source: [E] int32, the neighbour u of each edge.
        target: [E] int32, the node v of each edge.
        source_ptr: [n+1] int64, and
        by_source: [E] int64: the edges ordered by source u instead; ``by_source[source_ptr[u]:
            source_ptr[u+1]]`` are the edges out of u. With this order every backward pass sums
            over contiguous lists, so it is deterministic on every device.
        target_by_source: [E] int32, ``target[by_source]``.
        pieces, hubs: the lists by target, split by :func:`split_lists`.
        source_pieces, source_hubs: the same for the lists by source.
        symmetric: whether u ∈ N_v implies v ∈ N_u.
        log_weight: [E, 1] or None: logarithms of the edge weights, added to every score. An edge
            of weight 0 (−inf here) is ignored.
        features: [E, k] or None: edge features, for layers with ``edge_dim``.
    """

    ptr: Tensor
    source: Tensor
    target: Tensor
    source_ptr: Tensor
    by_source: Tensor
    target_by_source: Tensor
    pieces: Tensor
    hubs: Tensor
    source_pieces: Tensor
    source_hubs: Tensor
    symmetric: bool
    log_weight: Tensor | None = None
    features: Tensor | None = None
    checked: tuple[Tensor, ...] = field(default=(), repr=False)
    """The lists whose numbers are known to be in range; copies with other values keep them."""
    packed: Any = field(default=None, repr=False)
    """The same lists in one tensor, in traced code: :class:`deepgat.ops.packed_lists.Packed`."""

    def __post_init__(self) -> None:
        lists = tuple(getattr(self, name) for name in LISTS)
        known = len(self.checked) == len(lists) and all(map(operator.is_, lists, self.checked))
        if not known and not torch.compiler.is_compiling():
            _check_lists(self)
            object.__setattr__(self, "checked", lists)

    @staticmethod
    def from_edge_index(edge_index: Tensor, num_nodes: int) -> Neighbors:
        """Build the lists from PyG's ``edge_index`` [2, *]: row 0 sources u, row 1 targets v."""
        check_edge_index(edge_index, num_nodes)
        source, target = edge_index.long()
        proper = source != target
        loops = torch.arange(num_nodes, device=edge_index.device)
        source = torch.cat([source[proper], loops])
        target = torch.cat([target[proper], loops])
        key = torch.unique(target * num_nodes + source)  # sorted by target, then by source
        target, source = key // max(num_nodes, 1), key % max(num_nodes, 1)
        return Neighbors.from_sorted(source, target, num_nodes, derived=True)

    @staticmethod
    def from_sorted(
        source: Tensor, target: Tensor, num_nodes: int, symmetric: bool | None = None, **values: Any
    ) -> Neighbors:
        """From distinct edges [E] sorted by target and then by source, with all self-loops."""
        by_source = torch.argsort(source, stable=True)
        ptr, source_ptr = pointers(target, num_nodes), pointers(source, num_nodes)
        source, target = source.int(), target.int()
        turned = target[by_source]
        if symmetric is None:
            symmetric = torch.equal(ptr, source_ptr) and torch.equal(source, turned)
        return Neighbors.from_lists(
            ptr=ptr,
            source=source,
            target=target,
            source_ptr=source_ptr,
            by_source=by_source,
            target_by_source=turned,
            symmetric=symmetric,
            **values,
        )

    @staticmethod
    def from_lists(
        *, ptr: Tensor, source_ptr: Tensor, symmetric: bool, derived: bool = False, **others: Any
    ) -> Neighbors:
        """From the other attributes of this class; splits long lists for parallel work.

        Lists ``derived`` from checked ones are not checked again.
        """
        pieces, hubs = split_lists(ptr)
        source_pieces, source_hubs = (pieces, hubs) if symmetric else split_lists(source_ptr)
        lists = others | {
            "ptr": ptr,
            "source_ptr": source_ptr,
            "pieces": pieces,
            "hubs": hubs,
            "source_pieces": source_pieces,
            "source_hubs": source_hubs,
        }
        checked = tuple(lists[name] for name in LISTS) if derived else ()
        return Neighbors(**lists, symmetric=symmetric, checked=checked)

    @staticmethod
    def side_by_side(lists: Sequence[Neighbors]) -> Neighbors:
        """The disjoint union of several graphs, nodes numbered consecutively; no sorting."""
        nodes = [0, *accumulate(item.num_nodes for item in lists)]
        edges = [0, *accumulate(item.num_edges for item in lists)]

        def joined(name: str, shifts: Sequence[int]) -> Tensor:
            pairs = zip(lists, shifts, strict=False)
            return torch.cat([getattr(item, name) + shift for item, shift in pairs])

        def pointers(name: str) -> Tensor:
            pairs = zip(lists, edges, strict=False)
            starts = [getattr(item, name)[:-1] + shift for item, shift in pairs]
            return torch.cat([*starts, lists[0].ptr.new_tensor(edges[-1:])])

        def values(name: str) -> Tensor | None:
            """Lists without values have weight 1 (log 1 = 0) or features 0."""
            items = [getattr(item, name) for item in lists]
            given = next((item for item in items if item is not None), None)
            if given is None:
                return None
            counts = [item.num_edges for item in lists]
            return torch.cat(
                [
                    given.new_zeros(count, given.size(1)) if item is None else item
                    for item, count in zip(items, counts, strict=True)
                ]
            )

        return Neighbors.from_lists(
            ptr=pointers("ptr"),
            source=joined("source", nodes),
            target=joined("target", nodes),
            source_ptr=pointers("source_ptr"),
            by_source=joined("by_source", edges),
            target_by_source=joined("target_by_source", nodes),
            symmetric=all(item.symmetric for item in lists),
            derived=True,
            log_weight=values("log_weight"),
            features=values("features"),
        )

    def with_values(
        self, edge_index: Tensor, weight: Tensor | None, features: Tensor | None
    ) -> Neighbors:
        """The lists with weights [m] ≥ 0 and features [m, k] of the edges of ``edge_index``.

        The weights of repeated edges are added, their features averaged. A self-loop missing from
        ``edge_index`` gets weight 1 and features 0. A self-loop also gets weight 1 if all edges
        into its node have weight 0.
        """
        return self.with_given_values(edge_index, weight, features).with_fallback_loops()

    def with_given_values(
        self, edge_index: Tensor, weight: Tensor | None, features: Tensor | None
    ) -> Neighbors:
        """As :meth:`with_values`, but a node whose edges all have weight 0 stays like that."""
        check_edge_values(weight, features, edge_index.size(1), "in the order of edge_index")
        return self.with_placed_values(self.places(edge_index), weight, features)

    def with_placed_values(
        self, places: tuple[Tensor, Tensor], weight: Tensor | None, features: Tensor | None
    ) -> Neighbors:
        """As :meth:`with_given_values`, for checked values whose :meth:`places` are known."""
        log_weight = None
        if weight is not None:
            listed = _in_order(places, weight.unsqueeze(-1), mean=False, loops=1.0)
            log_weight = listed.log()
        if features is not None:
            features = _in_order(places, features, mean=True, loops=0.0)
        return replace(self, log_weight=log_weight, features=features)

    def places(self, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """([m] the place in the lists of each edge of ``edge_index`` [2, m], [E, 1] their number).

        A self-loop that is not in ``edge_index`` has the number 0.
        """
        n = self.num_nodes
        source, target = edge_index.long()
        key = self.target.long() * n + self.source.long()
        place = torch.searchsorted(key, target * n + source)
        count = torch.zeros_like(key).index_add(0, place, torch.ones_like(place))
        return place, count.unsqueeze(1)

    def with_fallback_loops(self) -> Self:
        """The lists with weight 1 for the self-loops of nodes whose edges all have weight 0.

        The softmax of every node is then defined.
        """
        if self.log_weight is None:
            return self
        weighted = (self.log_weight > -math.inf).to(self.log_weight.dtype)
        count = weighted.new_zeros(self.num_nodes, 1).index_add(0, self.target, weighted)
        empty = (count == 0).index_select(0, self.target)
        loop = (self.source == self.target).unsqueeze(1)
        return replace(self, log_weight=self.log_weight.masked_fill(empty & loop, 0.0))

    @property
    def num_nodes(self) -> int:
        return self.ptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.source.numel()

    @property
    def device(self) -> torch.device:
        return self.ptr.device

    @property
    def edge_index(self) -> Tensor:
        """[2, E] in PyG's convention, with self-loops, in the order of per-edge tensors."""
        return torch.stack([self.source, self.target]).long()

    @property
    def degree(self) -> Tensor:
        """[n] int64: |N_v|, including v itself."""
        return self.ptr.diff()

    @property
    def others(self) -> Tensor:
        """[n] int64: the number of neighbours u ≠ v, without edges of weight 0."""
        if self.log_weight is None:
            return self.degree - 1
        counted = (self.log_weight.view(-1) > -math.inf) & (self.source != self.target)
        return _places(counted)[self.ptr].diff()

    @property
    def square(self) -> Neighbors:
        """The lists with one for every source node, halo included; here these lists themselves."""
        return self

    def with_halo(self, x: Tensor) -> Tensor:
        """One row for every source node; here x itself, [n, …]."""
        return x

    @cached_property
    def alone(self) -> Neighbors:
        """N_v = {v}. Cached: selecting edges synchronises with the GPU, so no CUDA graph may."""
        alone = self.select(self.source == self.target, symmetric=True)
        features = alone.features  # with a single neighbour, their values have no effect
        features = None if features is None else torch.zeros_like(features)
        return replace(alone, log_weight=None, features=features)

    def masked(self, drop: Tensor) -> Neighbors:
        """The lists with weight 0 for the edges in ``drop`` [E], which must spare one per list.

        Models compute the same as on the shorter lists of :meth:`select`. Here no size depends on
        ``drop``, so a CUDA graph can record it.
        """
        weight = self.log_weight
        if weight is None:
            weight = torch.zeros(self.num_edges, 1, device=self.device)
        masked = replace(self, log_weight=weight.masked_fill(drop.unsqueeze(1), -math.inf))
        return masked if self.log_weight is None else masked.with_fallback_loops()

    def select(self, keep: Tensor, symmetric: bool) -> Neighbors:
        """The lists with only the edges in ``keep`` [E], which must include every self-loop.

        Both orders of the edges stay sorted, so a running count gives the new positions in O(E).
        """
        by_source = keep[self.by_source]
        place, source_place = _places(keep), _places(by_source)
        return Neighbors.from_lists(
            ptr=place[self.ptr],
            source=self.source[keep],
            target=self.target[keep],
            source_ptr=source_place[self.source_ptr],
            by_source=place[self.by_source[by_source]],
            target_by_source=self.target_by_source[by_source],
            symmetric=symmetric,
            derived=True,
            log_weight=None if self.log_weight is None else self.log_weight[keep],
            features=None if self.features is None else self.features[keep],
        ).with_fallback_loops()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same lists on another device."""
        tensors: dict[str, Any] = {
            name: item.to(device, non_blocking=non_blocking)
            for name, item in vars(self).items()
            if isinstance(item, Tensor)
        }
        if self.symmetric:  # share one copy
            tensors |= {"source_pieces": tensors["pieces"], "source_hubs": tensors["hubs"]}
        checked = tuple(tensors[name] for name in LISTS)
        return replace(self, **tensors, checked=checked, packed=None)


def _in_order(places: tuple[Tensor, Tensor], values: Tensor, mean: bool, loops: float) -> Tensor:
    """Values per edge of an ``edge_index`` in the order of the lists: [m, k] → [E, k].

    ``places`` are those of :meth:`Neighbors.places`. Values of repeated edges are added, or
    averaged with ``mean``. Self-loops missing from the ``edge_index`` get the value ``loops``.
    """
    place, count = places
    total = values.new_zeros(count.size(0), values.size(1)).index_add(0, place, values)
    if mean:
        total = total / count.clamp(min=1)
    return torch.where(count == 0, torch.full_like(total, loops), total)


def _places(keep: Tensor) -> Tensor:
    """[E + 1]: the number of kept edges before each edge."""
    count = torch.cumsum(keep, 0)
    return torch.cat([count.new_zeros(1), count])


def _check_lists(lists: Neighbors) -> None:
    """Refuse lists on the CPU that name nodes, edges or places which do not exist.

    Kernels take these numbers as they are. On a GPU, looking at them would stop the stream.
    """
    if lists.ptr.device.type != "cpu" or type(lists.ptr) is not Tensor:
        return
    last = max(lists.source_ptr.numel() - 1, lists.num_nodes) - 1
    limits: dict[str, tuple[int, int]] = {
        "source": (0, last), "target": (0, lists.num_nodes - 1), "target_by_source": (0, last),
        "by_source": (0, lists.by_source.numel() - 1),
    }  # fmt: skip
    for name, (low, high) in limits.items():
        _check_range(name, getattr(lists, name), low, high)
    for name, ptr, entries in (
        ("ptr", lists.ptr, lists.source),
        ("source_ptr", lists.source_ptr, lists.target_by_source),
    ):
        rises = bool((ptr.diff() >= 0).all()) and int(ptr[0]) == 0
        if not rises or int(ptr[-1]) != entries.numel():
            raise UserError(
                f"{name} does not rise from 0 to the number of edges, {entries.numel()}: build "
                "the lists by Neighbors.from_edge_index"
            )
    own = (lists.source == lists.target).nonzero().squeeze(1)
    nodes = torch.arange(lists.num_nodes)
    there = own.shape == nodes.shape and torch.equal(lists.source[own].long(), nodes)
    if not there or bool(((own < lists.ptr[:-1]) | (own >= lists.ptr[1:])).any()):
        raise UserError(
            "source and target lack the self-loop of some node, or repeat it: build the lists by "
            "Neighbors.from_edge_index"
        )
    edges = lists.by_source.numel()
    for prefix in ("", "source_"):
        pieces, hubs = getattr(lists, f"{prefix}pieces"), getattr(lists, f"{prefix}hubs")
        slots = int(hubs[-1, 2]) if len(hubs) else 0
        _check_range(f"{prefix}pieces", pieces[:, 0], 0, last)
        _check_range(f"{prefix}pieces", pieces[:, 1:3], 0, edges)
        _check_range(f"{prefix}pieces", pieces[:, 3], -1, slots - 1)
        _check_range(f"{prefix}hubs", hubs[:, 0], 0, last)
        _check_range(f"{prefix}hubs", hubs[:, 1:], 0, slots)


def _check_range(name: str, x: Tensor, least: int, most: int) -> None:
    if not x.numel():
        return
    low, high = (int(end) for end in x.aminmax())
    if low < least or high > most:
        raise UserError(
            f"{name} of the neighbour lists runs from {low} to {high}: expected {least} to {most}; "
            "build the lists by Neighbors.from_edge_index"
        )
