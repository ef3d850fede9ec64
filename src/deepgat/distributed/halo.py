"""Parts of a graph among the processes of a team, and the exchange of their halo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from deepgat.distributed.team import Swap, Team, Total, dealt
from deepgat.ops import Loan, Part


@dataclass(frozen=True, eq=False)
class WholeGraphs(Part):
    """This process's graphs of a step: a part without a halo, so it borrows nothing.

    Nodes are numbered consecutively over all graphs of the step in all processes. Dropout masks
    are therefore those of a single process with all graphs.
    """

    team: Team
    own: int
    ids: Tensor
    num_nodes: int

    @staticmethod
    def among(team: Team, sizes: Sequence[int]) -> WholeGraphs:
        """This process's share (:func:`dealt`) of graphs with these numbers of nodes."""
        starts = [0, *accumulate(sizes)]
        numbers = [torch.arange(starts[i], starts[i + 1]) for i in dealt(range(len(sizes)), team)]
        ids = torch.cat([torch.empty(0, dtype=torch.long), *numbers]).to(team.device)
        return WholeGraphs(team, ids.numel(), ids, starts[-1])

    def total(self, x: Tensor) -> Tensor:
        return Total.apply(x, self.team)

    def gathered(self, x: Tensor) -> Tensor | None:
        places = self.team.gather_to_first(self.ids[: self.own])
        values = self.team.gather_to_first(x)
        if self.team.rank:
            return None
        found = x.new_empty(self.num_nodes, *x.shape[1:])
        found[torch.cat(places)] = torch.cat(values)
        return found

    def to(self, device: object) -> Part:
        return self  # a part is always on the device of its process


@dataclass(frozen=True, eq=False)
class HaloPart(WholeGraphs):
    """One part of a partitioned graph, which borrows the rows of its halo.

    Attributes:
        send: number of rows for each process; ``rows`` [Σ send] are their indices, by rank.
        receive: number of rows from each process; together they are the halo, by rank.
        border: the distinct rows that are sent.
        order, ptr: ``rows[order]`` is sorted, and ``ptr`` [border + 1] is where each row of
            ``border`` begins in it: the order in which returned gradients are added.
    """

    send: list[int]
    receive: list[int]
    rows: Tensor
    border: Tensor
    order: Tensor
    ptr: Tensor
    overlaps = True

    @staticmethod
    def meet(team: Team, own: int, ids: Tensor, receive: Sequence[int], num_nodes: int) -> HaloPart:
        """Exchange with the other processes which rows each one needs.

        Args:
            team: the processes; all of them must call this.
            own, ids, num_nodes: as in :class:`Part`; own nodes sorted by number.
            receive: number of halo nodes that each process owns; the halo is sorted by owner.
        """
        ids = ids.to(team.device)
        ones = [1] * team.size
        send = team.all_to_all(torch.tensor(receive, device=team.device), ones, ones).tolist()
        wanted = team.all_to_all(ids[own:], receive, send)
        rows = torch.searchsorted(ids[:own].contiguous(), wanted)
        border, counts = torch.unique(rows, return_counts=True)
        ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        order = torch.argsort(rows, stable=True)
        return HaloPart(team, own, ids, num_nodes, send, list(receive), rows, border, order, ptr)

    @property
    def borrows(self) -> bool:  # type: ignore[override]
        return self.team.size > 1

    def borrow(self, tensors: Sequence[Tensor]) -> Loan:
        return HaloLoan(self, tensors)

    def added(self, came: Tensor) -> Tensor:
        """Sum the returned gradients per sent row, in a fixed order: → [border, …]."""
        rows = _flat(came).index_select(0, self.order)
        total = torch.segment_reduce(rows, "sum", offsets=self.ptr, initial=0)
        return total.view(self.border.numel(), *came.shape[1:])


class HaloLoan(Loan):
    """An exchange of rows in progress, with one message per dtype."""

    def __init__(self, part: HaloPart, tensors: Sequence[Tensor]) -> None:
        self.own = list(tensors)
        self.messages: list[tuple[list[int], _Journey, Tensor]] = []
        for dtype in sorted({x.dtype for x in tensors}, key=str):
            places = [i for i, x in enumerate(tensors) if x.dtype == dtype]
            journey = _Journey(part)
            room, *own = _Start.apply(journey, *(tensors[i] for i in places))
            self.messages.append((places, journey, room))
            for i, x in zip(places, own, strict=True):
                self.own[i] = x

    def joined(self, rows: Tensor | None = None) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for places, journey, room in self.messages:
            tables = _Finish.apply(journey, rows, room)
            found |= dict(zip(places, tables, strict=True))
        self.messages.clear()
        return [found[i] for i in range(len(self.own))]


class _Journey:
    """The state shared by :class:`_Start` and :class:`_Finish` for one message.

    In the forward pass, ``_Start`` sends rows and ``_Finish`` waits for them. In the backward
    pass, ``_Finish`` sends their gradients back and ``_Start`` waits. Autograd runs in reverse
    order, so the same computation overlaps with the transfer in both passes. Gradients reach
    ``_Start`` through this object, not through autograd, since it adds them to some rows only.

    Attributes:
        wanted: indices of the tensors that need a gradient.
        given: the tensors, until ``_Finish`` takes them.
        swap: the exchange in progress.
        rows: the own rows requested from ``_Finish``; None: all.
        grads: the gradients of those rows, for each tensor in ``wanted``.
    """

    def __init__(self, part: HaloPart) -> None:
        self.part = part
        self.wanted: list[int] = []
        self.given: list[Tensor] = []
        self.swap: Swap | None = None
        self.rows: Tensor | None = None
        self.grads: list[Tensor] = []

    def set_out(self, rows: list[Tensor], send: list[int], receive: list[int]) -> Tensor:
        """Start to send the rows [k, w] as one message; return the receive buffer [k', Σ w]."""
        packed = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
        self.swap = self.part.team.start_all_to_all(packed, send, receive)
        return self.swap.found

    def arrived(self, shapes: list[torch.Size]) -> list[Tensor]:
        """Wait; split the received rows into tensors with these row shapes."""
        assert self.swap is not None
        found, self.swap = self.swap.wait(), None
        pieces = found.split([math.prod(shape) for shape in shapes], 1)
        return [x.reshape(x.size(0), *s) for x, s in zip(pieces, shapes, strict=True)]


class _Start(torch.autograd.Function):
    """Start the exchange; return the receive buffer and the tensors [own, …] themselves."""

    @staticmethod
    def forward(ctx: Any, journey: _Journey, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        part, ctx.journey = journey.part, journey
        ctx.turned = [_rows_first(x) is not x for x in tensors]
        journey.wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        journey.given = list(tensors)
        rows = [_flat(_rows_first(x).index_select(0, part.rows)) for x in tensors]
        room = journey.set_out(rows, part.send, part.receive)
        found = [x.view_as(x) for x in tensors]
        ctx.mark_non_differentiable(*(x for i, x in enumerate(found) if i not in journey.wanted))
        return room, *found

    @staticmethod
    def backward(ctx: Any, _: None, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        journey: _Journey = ctx.journey
        part, theirs = journey.part, journey.grads
        home = journey.arrived([x.shape[1:] for x in theirs])
        found: list[Tensor | None] = [None] * len(grads)
        for i, x, came in zip(journey.wanted, theirs, home, strict=True):
            mine, turned = grads[i], ctx.turned[i]
            if mine is not None and turned:
                mine = mine.transpose(1, 2)
            if journey.rows is None:
                total = x.clone() if mine is None else mine + x
            else:
                mine = x.new_zeros(part.own, *x.shape[1:]) if mine is None else mine
                total = mine.index_add(0, journey.rows, x)
            total.index_add_(0, part.border, part.added(came))
            found[i] = total.transpose(1, 2) if turned else total
        journey.grads = []
        return None, *found


class _Finish(torch.autograd.Function):
    """Finish the exchange; return some rows of every tensor with the halo appended."""

    @staticmethod
    def forward(
        ctx: Any, journey: _Journey, rows: Tensor | None, room: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.journey, journey.rows = journey, rows
        given = [_rows_first(x) for x in journey.given]
        ctx.turned = [x is not y for x, y in zip(given, journey.given, strict=True)]
        journey.given = []
        halo = journey.arrived([x.shape[1:] for x in given])
        found = []
        for x, below, turned in zip(given, halo, ctx.turned, strict=True):
            table = torch.cat([x if rows is None else x.index_select(0, rows), below])
            found.append(table.transpose(1, 2) if turned else table)
        ctx.mark_non_differentiable(*(x for i, x in enumerate(found) if i not in journey.wanted))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        journey: _Journey = ctx.journey
        part = journey.part
        tables = [grads[i].transpose(1, 2) if ctx.turned[i] else grads[i] for i in journey.wanted]
        count = part.own if journey.rows is None else journey.rows.numel()
        journey.grads = [x[:count] for x in tables]
        journey.set_out([_flat(x[count:]) for x in tables], part.receive, part.send)
        return None, None, None


def _rows_first(x: Tensor) -> Tensor:
    """x, transposed if its memory layout has heads innermost (the CPU kernels' layout)."""
    turned = x.dim() == 3 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous()
    return x.transpose(1, 2) if turned else x


def _flat(x: Tensor) -> Tensor:
    """[k, …] → [k, w]; also for k = 0 and for one-dimensional x."""
    return x.reshape(x.size(0), math.prod(x.shape[1:]))
