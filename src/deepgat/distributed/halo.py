"""A live part of a graph: whom to send which rows, and the exchange itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepgat.distributed.team import Team, Total
from deepgat.ops import Part


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

    def with_halo(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for dtype in sorted({x.dtype for x in tensors}, key=str):
            places = [i for i, x in enumerate(tensors) if x.dtype == dtype]
            borrowed = _Borrow.apply(self, *(tensors[i] for i in places))
            found |= dict(zip(places, borrowed, strict=True))
        return [found[i] for i in range(len(tensors))]

    def total(self, x: Tensor) -> Tensor:
        return Total.apply(x, self.team)

    def gathered(self, x: Tensor) -> Tensor | None:
        return self.team.gathered(self.ids[: self.own], x, self.num_nodes)

    def to(self, device: object) -> Part:
        return self  # a part lives where its process computes

    def swapped(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """The neighbours' rows [halo, w] for each tensor of rows to send [Σ send, w]."""
        return _by_one_message(self.team, rows, self.send, self.receive)

    def returned(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the halo's rows sent home, and there added up: [halo, w] → [border, w]."""
        home = _by_one_message(self.team, rows, self.receive, self.send)
        return [
            torch.segment_reduce(x.index_select(0, self.order), "sum", offsets=self.ptr, initial=0)
            for x in home
        ]


def _by_one_message(
    team: Team, rows: Sequence[Tensor], send: Sequence[int], receive: Sequence[int]
) -> list[Tensor]:
    packed = rows[0] if len(rows) == 1 else torch.cat(list(rows), 1)
    found = team.swap(packed, send, receive)
    return list(found.split([x.size(1) for x in rows], 1))


class _Borrow(torch.autograd.Function):
    """Tensors [own, …] of one dtype with the halo's rows below them."""

    @staticmethod
    def forward(ctx: Any, part: LivePart, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.part = part
        inner = [_rows_first(x) for x in tensors]
        halo = part.swapped([_flat(x.index_select(0, part.rows)) for x in inner])
        found = []
        for original, x, below in zip(tensors, inner, halo, strict=True):
            whole = torch.cat([x, below.reshape(below.size(0), *x.shape[1:])])
            found.append(whole if x is original else whole.transpose(1, 2))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        part: LivePart = ctx.part
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        inner = [_rows_first(grads[i]) for i in wanted]
        home = part.returned([_flat(x[part.own :]) for x in inner])
        found: list[Tensor | None] = [None] * len(grads)
        for i, x, extra in zip(wanted, inner, home, strict=True):
            extra = extra.view(part.border.numel(), *x.shape[1:])
            total = x[: part.own].index_add(0, part.border, extra)
            found[i] = total if x is grads[i] else total.transpose(1, 2)
        return None, *found


def _rows_first(x: Tensor) -> Tensor:
    """x, or x with heads innermost where it lies so in memory (the CPU kernels' layout)."""
    turned = x.dim() == 3 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous()
    return x.transpose(1, 2) if turned else x


def _flat(x: Tensor) -> Tensor:
    """[k, …] → [k, w], also for k = 0 and where there is no more than k."""
    return x.reshape(x.size(0), math.prod(x.shape[1:]))
