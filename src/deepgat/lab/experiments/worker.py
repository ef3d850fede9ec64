"""A worker process, which executes one run after another."""

from __future__ import annotations

import gc
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from deepgat.errors import Diverged, UserError
from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.experiments.store import Store
from deepgat.lab.experiments.store_entry import Record
from deepgat.lab.experiments.work import Perform
from deepgat.training.device import lacks_memory, out_of_memory
from deepgat.training.loop import Epoch
from deepgat.training.run import hardware, versions

SECONDS_BETWEEN_STEPS = 0.25


class Ready(NamedTuple):
    """The worker is waiting for a run."""


class Step(NamedTuple):
    """The run has reached this epoch."""

    epoch: Epoch


class Done(NamedTuple):
    """The run is in the store."""

    record: Record
    made_here: bool
    """False if another process finished it first."""


class Busy(NamedTuple):
    """Another process is executing the run."""


class Broken(NamedTuple):
    """The run failed."""

    error: str


class NoRoom(NamedTuple):
    """The GPU had too little memory for the run, but may have enough when other runs end."""

    error: str
    details: str


Answer = Done | Busy | Broken | NoRoom
Message = Ready | Step | Answer


def attempt(
    store: Store, spec: RunSpec, device: str, perform: Perform, send: Send | None = None
) -> Answer:
    """Execute and store a run that no process has finished or is executing; store its failure.

    Out-of-memory is not stored as a failure: the caller knows what else ran on the GPU.
    """
    mine = store.claim(spec.signature)
    if mine is None:
        return Busy()
    with mine:
        found = store.finished(mine)
        if found is not None:
            return Done(found, made_here=False)
        try:
            made = perform(spec, device, send)
            return Done(store.add(mine, made.record, made.arrays), made_here=True)
        except (KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception as error:
            if lacks_memory(error):
                return NoRoom(out_of_memory(error), traceback.format_exc())
            text = str(error) if isinstance(error, UserError) else _in_a_line(error)
            store.fail(
                mine,
                spec,
                text,
                traceback.format_exc(),
                versions=versions(),
                hardware=hardware(device),
                diverged=isinstance(error, Diverged),
            )
            return Broken(text)


class Send:
    """Reports epochs to the parent, at intervals; raises, which ends the run, if it is gone."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.last = 0.0

    def __call__(self, epoch: Epoch) -> None:
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_STEPS:
            self.last = now
            self.connection.send(Step(epoch))


def worker_main(
    connection: Connection, folder: Path, device: str, threads: int, perform: Perform
) -> None:
    """The main function of a worker process; returns on None or when the parent is gone."""
    torch.set_num_threads(threads)
    store = Store(folder, create=False)
    try:
        connection.send(Ready())
        while (spec := connection.recv()) is not None:
            answer = attempt(store, spec, device, perform, Send(connection))
            _free_memory()
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone, so nobody waits for the results


def _free_memory() -> None:
    """Free the memory that the run used, for other workers on the GPU."""
    gc.collect()
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # after a device error
            torch.cuda.empty_cache()


def _in_a_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__
