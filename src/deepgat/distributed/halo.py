"""Parts of a graph among the processes of a team, and the exchange of their halo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from deepgat.distributed.team import Team, Total, dealt
from deepgat.ops import Part


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

    def with_halo(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One message per dtype carries the rows of all distinct tensors."""
        if not self.borrows:
            return list(tensors)
        distinct = {id(x): x for x in tensors}
        found: dict[int, Tensor] = {}
        for dtype in sorted({x.dtype for x in tensors}, key=str):
            same = {key: x for key, x in distinct.items() if x.dtype == dtype}
            found |= dict(zip(same, _WithHalo.apply(self, *same.values()), strict=True))
        return [found[id(x)] for x in tensors]

    def exchanged(self, rows: list[Tensor], send: list[int], receive: list[int]) -> list[Tensor]:
        """Send rows [k, …] of several tensors in one message; return those that came."""
        packed = torch.cat([_flat(x) for x in rows], 1)
        came = self.team.all_to_all(packed, send, receive)
        shapes = [x.shape[1:] for x in rows]
        pieces = came.split([math.prod(shape) for shape in shapes], 1)
        return [x.reshape(x.size(0), *s) for x, s in zip(pieces, shapes, strict=True)]

    def added(self, came: Tensor) -> Tensor:
        """Sum the returned gradients per sent row, in a fixed order: → [border, …]."""
        rows = _flat(came).index_select(0, self.order)
        total = torch.segment_reduce(rows, "sum", offsets=self.ptr, initial=0)
        return total.view(self.border.numel(), *came.shape[1:])


class _WithHalo(torch.autograd.Function):
    """Append the halo rows to every tensor; send their gradients back to the owners."""

    @staticmethod
    def forward(ctx: Any, part: HaloPart, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.part = part
        own = [_rows_first(x) for x in tensors]
        ctx.turned = [x is not y for x, y in zip(own, tensors, strict=True)]
        border = [x.index_select(0, part.rows) for x in own]
        halo = part.exchanged(border, part.send, part.receive)
        tables = [torch.cat(pair) for pair in zip(own, halo, strict=True)]
        return tuple(_turned(x, turned) for x, turned in zip(tables, ctx.turned, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        part: HaloPart = ctx.part
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        tables = [_turned(grads[i], ctx.turned[i]) for i in wanted]
        returned = [x[part.own :] for x in tables]
        came = part.exchanged(returned, part.receive, part.send)
        found: list[Tensor | None] = [None] * len(grads)
        for i, x, rows in zip(wanted, tables, came, strict=True):
            total = x[: part.own].clone().index_add_(0, part.border, part.added(rows))
            found[i] = _turned(total, ctx.turned[i])
        return None, *found


def _turned(x: Tensor, turned: bool) -> Tensor:
    return x.transpose(1, 2) if turned else x


def _rows_first(x: Tensor) -> Tensor:
    """x, transposed if its memory layout has heads innermost (the CPU kernels' layout)."""
    turned = x.dim() == 3 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous()
    return x.transpose(1, 2) if turned else x


def _flat(x: Tensor) -> Tensor:
    """[k, …] → [k, w]; also for k = 0 and for one-dimensional x."""
    return x.reshape(x.size(0), math.prod(x.shape[1:]))
