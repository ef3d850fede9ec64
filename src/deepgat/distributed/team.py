"""The processes that train one model together, built on torch.distributed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from deepgat.errors import UserError

T = TypeVar("T")
_SMALL = 4096
"""Sums of up to this many numbers use all_gather."""
_TIMEOUT = timedelta(minutes=10)


class LostTeamError(RuntimeError):
    """Another process of the team cannot be reached."""


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
            return _in_order(self.all_gather(flat)).view(x.shape)
        # every process sums one slice, so traffic does not grow with the number of processes
        stretch = -(-flat.numel() // self.size)
        padded = torch.cat([flat, flat.new_zeros(stretch * self.size - flat.numel())])
        theirs = torch.empty_like(padded)
        _talk(dist.all_to_all_single, theirs, padded)
        total = self.all_gather(_in_order(theirs.view(self.size, stretch)))
        return total.view(-1)[: flat.numel()].view(x.shape)

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

    def all_gather(self, x: Tensor) -> Tensor:
        """x of every process: [k] → [size, k]."""
        if self.size == 1:
            return x.view(1, -1)
        found = x.new_empty(self.size, x.numel())
        _talk(dist.all_gather, list(found.unbind()), x.contiguous())
        return found

    def all_max(self, number: float) -> float:
        """The maximum over the processes."""
        return float(self.all_gather(torch.tensor([number], device=self.device).double()).max())

    def barrier(self) -> None:
        """Return once every process has called this."""
        self.all_max(0.0)

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send ``send[r]`` rows to, and receive ``receive[r]`` from, each r: [Σ receive, …]."""
        rows = rows.contiguous()
        if self.size == 1:
            return rows
        found = rows.new_empty(sum(receive), *rows.shape[1:])
        self.sent += rows.numel() * rows.element_size()
        _talk(dist.all_to_all_single, found, rows, list(receive), list(send))
        return found

    def broadcast(self, x: Tensor) -> Tensor:
        """x of the first process; shapes must agree."""
        if self.size == 1:
            return x
        moved = x.to(self.device).contiguous()
        _talk(dist.broadcast, moved, 0)
        return moved.to(x.device)

    def gather_to_first(self, x: Tensor) -> list[Tensor]:
        """x [k_r, …] of every process in the order of ranks; [] except in the first process."""
        count, others = x.size(0), [0] * (self.size - 1)
        counts = self.all_gather(torch.tensor([count], device=self.device)).view(-1).tolist()
        receive = [0] * self.size if self.rank else counts
        found = self.all_to_all(x.to(self.device), [count, *others], receive)
        return [] if self.rank else list(found.split(receive))

    def __repr__(self) -> str:
        return f"Team(rank={self.rank}, size={self.size}, device={self.device})"


def dealt(items: Sequence[T], team: Team) -> list[T]:
    """This process's share when items are dealt to the processes in turn."""
    return list(items[team.rank :: team.size])


@contextmanager
def stop_asked(team: Team | None) -> Iterator[Callable[[], bool]]:
    """A function that all processes call together: was any of them interrupted (Ctrl-C)?

    An interrupt is recorded instead of raised, since a process that stops alone leaves the others
    waiting. Without a team, or outside the main thread, interrupts raise as usual.
    """
    if team is None:
        yield lambda: False
        return
    asked = threading.Event()
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:
        before = signal.signal(signal.SIGINT, lambda number, frame: asked.set())
    try:
        yield lambda: team.all_max(float(asked.is_set())) > 0
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, before)


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
