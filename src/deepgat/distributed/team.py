"""The processes that train one model together, built on torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from deepgat.errors import UserError

_SMALL = 4096
"""Sums of up to this many numbers use all_gather."""
_TIMEOUT = timedelta(minutes=10)


class LostTeamError(RuntimeError):
    """Another process of the team cannot be reached."""


@dataclass(frozen=True, eq=False)
class Swap:
    """An exchange of rows in progress; keeps both buffers alive until it is complete."""

    sent: Tensor
    found: Tensor
    work: Any

    def wait(self) -> Tensor:
        """The received rows."""
        if self.work is not None:
            _talk(self.work.wait)
        return self.found


class Team:
    """A group of processes that sum in the order of their ranks.

    A sum is bitwise equal in every process, so decisions based on it (early stopping, the best
    epoch) agree.

    Attributes:
        rank, size: number of this process, from 0, and number of processes.
        device: device of this process.
        sent: bytes of halo rows that this process has sent.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.sent = 0

    @staticmethod
    def launched() -> bool:
        """Whether torchrun or :func:`~deepgat.distributed.launch.launch` started this process."""
        return dist.is_available() and dist.is_torchelastic_launched()

    @staticmethod
    def join(device: str = "auto") -> Team:
        """Connect to the other processes that torchrun started; NCCL on GPUs, gloo on CPUs."""
        local = int(os.environ.get("LOCAL_RANK", "0"))
        beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        gpus = torch.cuda.device_count()
        if device.startswith("cuda") and gpus < beside:
            raise UserError(
                f"there are {gpus} GPUs for {beside} processes: a process needs one of its own, "
                "so start fewer processes or set device=cpu"
            )
        on_gpu = device.startswith("cuda") or (device == "auto" and gpus >= beside)
        where = torch.device("cuda", local) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(where)
        if not dist.is_initialized():
            store, rank, size = next(dist.rendezvous("env://"))
            # a new prefix for every restart: addresses of the last attempt are stale
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            shelf = dist.PrefixStore(f"deepgat/{attempt}", store)
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=shelf,
                rank=rank,
                world_size=size,
                timeout=_TIMEOUT,
            )
        return Team(dist.get_rank(), dist.get_world_size(), where)

    def leave(self) -> None:
        """Leave the team; no other process may be waiting for this one."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def sum(self, x: Tensor) -> Tensor:
        """Σ over the processes, in the order of their ranks."""
        if self.size == 1:
            return x
        flat = x.contiguous().view(-1)
        if flat.numel() <= _SMALL:
            return _in_order(self.everyone(flat)).view(x.shape)
        # every process sums one slice, so traffic does not grow with the number of processes
        stretch = -(-flat.numel() // self.size)
        padded = torch.cat([flat, flat.new_zeros(stretch * self.size - flat.numel())])
        theirs = torch.empty_like(padded)
        _talk(dist.all_to_all_single, theirs, padded)
        total = self.everyone(_in_order(theirs.view(self.size, stretch)))
        return total.view(-1)[: flat.numel()].view(x.shape)

    def everyone(self, x: Tensor) -> Tensor:
        """x of every process: [k] → [size, k]."""
        found = x.new_empty(self.size, x.numel())
        _talk(dist.all_gather, list(found.unbind()), x.contiguous())
        return found

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes."""
        if self.size == 1:
            return
        grads = [p.grad for p in parameters if p.grad is not None]
        for dtype in sorted({grad.dtype for grad in grads}, key=str):
            same = [grad for grad in grads if grad.dtype == dtype]
            flat = self.sum(torch.cat([grad.reshape(-1) for grad in same]))
            pieces = flat.split([grad.numel() for grad in same])
            for grad, piece in zip(same, pieces, strict=True):
                grad.copy_(piece.view_as(grad))

    def highest(self, number: float) -> float:
        """The maximum over the processes."""
        if self.size == 1:
            return number
        return float(self.everyone(torch.tensor([number], device=self.device).double()).max())

    def swap(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send ``send[r]`` rows to, and receive ``receive[r]`` from, each r: [Σ receive, …]."""
        return self.start_swap(rows, send, receive).wait()

    def start_swap(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Swap:
        """As :meth:`swap`, without waiting. All processes must start swaps in the same order."""
        rows = rows.contiguous()
        found = rows.new_empty(sum(receive), *rows.shape[1:])
        if self.size == 1:
            return Swap(rows, found, None)
        self.sent += rows.numel() * rows.element_size()
        counts = list(receive), list(send)
        return Swap(rows, found, _talk(dist.all_to_all_single, found, rows, *counts, async_op=True))

    def swap_counts(self, send: Sequence[int]) -> list[int]:
        """Exchange counts: send ``send[r]`` to process r, return what each process sent here."""
        if self.size == 1:
            return list(send)
        asked = torch.tensor(send, device=self.device)
        found = torch.empty_like(asked)
        _talk(dist.all_to_all_single, found, asked)
        return found.tolist()

    def from_first(self, x: Tensor) -> Tensor:
        """Broadcast x from the first process; shapes must agree."""
        if self.size == 1:
            return x
        moved = x.to(self.device).contiguous()
        _talk(dist.broadcast, moved, 0)
        return moved.to(x.device)

    def gathered(self, ids: Tensor, rows: Tensor, count: int) -> Tensor | None:
        """The rows of all processes at the places ``ids``, [count, …]; None except in rank 0."""
        places, values = self.to_first(ids), self.to_first(rows)
        if self.rank:
            return None
        found = rows.new_empty(count, *rows.shape[1:])
        found[torch.cat(places)] = torch.cat(values)
        return found

    def to_first(self, x: Tensor) -> list[Tensor]:
        """x [k_r, …] of every process in the order of ranks; [] except in the first process."""
        if self.size == 1:
            return [x]
        counts = self.everyone(torch.tensor([x.size(0)], device=self.device)).view(-1).tolist()
        send = [x.size(0) if rank == 0 else 0 for rank in range(self.size)]
        receive = counts if self.rank == 0 else [0] * self.size
        found = x.new_empty(sum(receive), *x.shape[1:]).to(self.device)
        _talk(dist.all_to_all_single, found, x.to(self.device).contiguous(), receive, send)
        return list(found.split(receive)) if self.rank == 0 else []

    def wait(self) -> None:
        """A barrier: return once every process has called it."""
        self.highest(0.0)

    def __repr__(self) -> str:
        return f"Team(rank={self.rank}, size={self.size}, device={self.device})"


class Total(torch.autograd.Function):
    """Σ over the processes; the backward pass sums the gradients likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team) -> Tensor:
        ctx.team = team
        return team.sum(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.team.sum(grad), None


def _talk(operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return operation(*arguments, **named)
    except RuntimeError as error:
        raise LostTeamError(f"another process of the team cannot be reached: {error}") from error


def _in_order(rows: Tensor) -> Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
