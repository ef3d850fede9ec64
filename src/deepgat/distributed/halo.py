"""A live part of a graph: whom to send which rows, and the exchange itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepgat.distributed.team import Swap, Team, Total
from deepgat.ops import Loan, Part


@dataclass(frozen=True, eq=False)
class LivePart(Part):
    """One part of a graph among the processes of a team (see :class:`deepgat.ops.Part`).

    Attributes:
        send: rows for each process; ``rows`` [Σ send] are they, the first process's first.
        receive: rows from each process, which are the halo, the first process's first.
        border: rows that are sent to someone, each once.
        order, ptr: ``rows[order]`` is sorted, and ``ptr`` [border + 1] says where the stretch of
            each row of ``border`` begins: gradients that come home are added in this order.
    """

    team: Team
    own: int
    ids: Tensor
    num_nodes: int
    send: list[int]
    receive: list[int]
    rows: Tensor
    border: Tensor
    order: Tensor
    ptr: Tensor
    overlaps = True

    @staticmethod
    def meet(team: Team, own: int, ids: Tensor, receive: Sequence[int], num_nodes: int) -> LivePart:
        """Tell the other processes which of their rows are wanted here, and learn theirs.

        Args:
            team: the processes; all of them call this.
            own, ids, num_nodes: as in :class:`Part`; own nodes sorted by their numbers.
            receive: how many nodes of the halo each process owns; the halo is in that order.
        """
        ids = ids.to(team.device)
        send = team.swap_counts(receive)
        wanted = team.swap(ids[own:], receive, send)
        rows = torch.searchsorted(ids[:own].contiguous(), wanted)
        border, counts = torch.unique(rows, return_counts=True)
        ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        order = torch.argsort(rows, stable=True)
        return LivePart(team, own, ids, num_nodes, send, list(receive), rows, border, order, ptr)

    @property
    def borrows(self) -> bool:  # type: ignore[override]
        return self.team.size > 1

    def borrow(self, tensors: Sequence[Tensor]) -> Loan:
        return LiveLoan(self, tensors)

    def total(self, x: Tensor) -> Tensor:
        return Total.apply(x, self.team)

    def gathered(self, x: Tensor) -> Tensor | None:
        return self.team.gathered(self.ids[: self.own], x, self.num_nodes)

    def to(self, device: object) -> Part:
        return self  # a part lives where its process computes

    def added(self, came: Tensor) -> Tensor:
        """Gradients that came home for rows sent out, added up in one order: → [border, …]."""
        rows = _flat(came).index_select(0, self.order)
        total = torch.segment_reduce(rows, "sum", offsets=self.ptr, initial=0)
        return total.view(self.border.numel(), *came.shape[1:])


class LiveLoan(Loan):
    """Rows on their way between the processes, one message for each dtype."""

    def __init__(self, part: LivePart, tensors: Sequence[Tensor]) -> None:
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
    """Rows to the neighbours, and their gradients home; :class:`_Start` and :class:`_Finish`.

    Forward, the first sends and the second waits. Backward, the second sends and the first waits:
    autograd runs what is ready in the reverse order, so all that was computed in between forward
    is computed in between backward. Gradients reach the first in here, not by autograd, since they
    are rows to be added to what it has.

    Attributes:
        wanted: which tensors have a gradient.
        given: the tensors, until the second has them.
        swap: what is under way.
        rows: the own rows that the second was asked for; None: all.
        grads: of those rows, for each tensor that has a gradient, rows first.
    """

    def __init__(self, part: LivePart) -> None:
        self.part = part
        self.wanted: list[int] = []
        self.given: list[Tensor] = []
        self.swap: Swap | None = None
        self.rows: Tensor | None = None
        self.grads: list[Tensor] = []

    def set_out(self, rows: list[Tensor], send: list[int], receive: list[int]) -> Tensor:
        """All of it [k, w] as one message; the room [k', Σ w] for what comes."""
        packed = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
        self.swap = self.part.team.start_swap(packed, send, receive)
        return self.swap.found

    def arrived(self, shapes: list[torch.Size]) -> list[Tensor]:
        """What came, for tensors whose rows have these shapes."""
        assert self.swap is not None
        found, self.swap = self.swap.wait(), None
        pieces = found.split([math.prod(shape) for shape in shapes], 1)
        return [x.reshape(x.size(0), *s) for x, s in zip(pieces, shapes, strict=True)]


class _Start(torch.autograd.Function):
    """The room of rows that are on their way, and the tensors [own, …] themselves."""

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
    """Some rows of every tensor with the halo's below, from the room for those."""

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
    """x, or x with heads innermost where it lies so in memory (the CPU kernels' layout)."""
    turned = x.dim() == 3 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous()
    return x.transpose(1, 2) if turned else x


def _flat(x: Tensor) -> Tensor:
    """[k, …] → [k, w], also for k = 0 and where there is no more than k."""
    return x.reshape(x.size(0), math.prod(x.shape[1:]))
