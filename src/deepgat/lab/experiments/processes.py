"""Worker processes, each of which executes one run after another."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from deepgat.errors import UserError
from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.experiments.store import Store
from deepgat.lab.experiments.work import Attempt, Perform, attempt

START_METHOD = "spawn"
"""Forked processes cannot use CUDA."""


class Processes:
    """Worker processes of this machine, started when they are needed."""

    def __init__(self, store: Store, device: str, threads: int, perform: Perform) -> None:
        self.arguments = (store.folder, device, threads, perform)
        self.idle: list[tuple[BaseProcess, Connection]] = []
        self.busy: dict[Connection, tuple[BaseProcess, RunSpec]] = {}

    def submit(self, spec: RunSpec) -> None:
        """Give a run to an idle process, or to a new one."""
        while True:
            process, connection = self.idle.pop() if self.idle else self._start()
            with suppress(BrokenPipeError, ConnectionResetError):  # it was killed while idle
                connection.send(spec)
                self.busy[connection] = (process, spec)
                return

    def finished(self, timeout: float) -> Iterator[tuple[RunSpec, Attempt]]:
        """The runs that have ended, after a wait of at most ``timeout`` seconds."""
        for connection in wait(list(self.busy), timeout):
            assert isinstance(connection, Connection)
            process, spec = self.busy.pop(connection)
            try:
                ended = connection.recv()
            except (EOFError, ConnectionResetError):
                process.join()
                code = process.exitcode or 0
                if code >= 0:  # not the run's fault, and the next process would end alike
                    raise RuntimeError(
                        f"a worker process ended at its start with exit code {code}"
                    ) from None
                name = signal.Signals(-code).name
                ended = Attempt(f"signal {name} ended its process: out of memory, or killed", False)
            if isinstance(ended, UserError):
                process.kill()
                raise ended
            if ended.clean:
                self.idle.append((process, connection))
            else:
                process.kill()
            yield spec, ended

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        for process, _ in (*self.idle, *self.busy.values()):
            process.kill()
            process.join()

    def _start(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context(START_METHOD)
        ours, theirs = context.Pipe()
        process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(theirs, *self.arguments), daemon=True
        )
        # Ctrl-C reaches every process of a terminal; only the parent should handle it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the connection ends with the process
        return process, ours


def _serve(
    connection: Connection, folder: Path, device: str, threads: int, perform: Perform
) -> None:
    """The main function of a worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    store = Store(folder, create=False)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            spec = connection.recv()
            try:
                ended = attempt(store, spec, device, perform)
                if ended.clean and torch.cuda.is_initialized():
                    gc.collect()
                    torch.cuda.empty_cache()  # for other workers on the GPU
                connection.send(ended)
            except (UserError, OSError) as error:  # the store cannot be used
                connection.send(UserError(str(error)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
