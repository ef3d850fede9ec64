"""Run what is missing from a store, several at a time, and say how it goes.

The runner owns a few worker processes and hands each one run after another. Whatever happens to a
worker (an error, a crash, a kill) happens to one run. The runner shows nothing: it emits
:data:`Event` objects.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TypeAlias

import torch

from deepgat.errors import UserError
from deepgat.lab.experiments.costs import Forecast, in_order
from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.experiments.store import Store
from deepgat.lab.experiments.store_entry import Record
from deepgat.lab.experiments.work import Perform, perform
from deepgat.lab.experiments.worker import (
    Answer,
    Broken,
    Busy,
    Done,
    NoRoom,
    Ready,
    Step,
    worker_main,
)
from deepgat.training.loop import Epoch, choose_device

START_METHOD = "spawn"
"""How worker processes begin: a forked one could not use CUDA."""
CPU_WORKERS, GPU_WORKERS = 8, 4
"""The most workers that are taken unasked."""
CLUSTER_WORKERS = 1000
"""Runs handed to a cluster at once, unasked; it makes as many as it has cores for."""
SECONDS_BETWEEN_LOOKS = 1.0
"""How often to look after runs that another process is making."""


@dataclass(frozen=True)
class Planned:
    """Before anything runs: all runs, those already in the store, and how many work at once."""

    specs: list[RunSpec]
    present: dict[str, Record]
    failed: dict[str, str]
    """Failed before, and not to be tried again: signature → error."""
    workers: int


@dataclass(frozen=True)
class Started:
    spec: RunSpec


@dataclass(frozen=True)
class Stepped:
    spec: RunSpec
    epoch: Epoch


@dataclass(frozen=True)
class Finished:
    spec: RunSpec
    record: Record
    made_here: bool
    seconds_left: float | None
    """For all that is still missing, as far as can be told."""


@dataclass(frozen=True)
class Failed:
    spec: RunSpec
    error: str


@dataclass(frozen=True)
class PutOff:
    """The GPU had no memory left for the run beside the others: it will be made after them."""

    spec: RunSpec


Event: TypeAlias = Planned | Started | Stepped | Finished | Failed | PutOff


@dataclass
class Outcome:
    """What came of it all."""

    records: dict[str, Record] = field(default_factory=dict)
    """Signature → record, of every run that is in the store now."""
    made: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Signature → error."""
    diverged: dict[str, Record] = field(default_factory=dict)
    """Signature → failure, of runs that have no finite numbers, where these were set apart."""


def run_all(
    specs: Iterable[RunSpec],
    store: Store,
    *,
    workers: int | None = None,
    device: str = "auto",
    retry_failed: bool = False,
    on_event: Callable[[Event], None] | None = None,
    perform: Perform = perform,
    ray: str | None = None,
) -> Outcome:
    """Make every run that the store lacks; returns all of them.

    Runs that another process is making on the same store are waited for, and taken over should
    that process end. Ctrl-C stops the workers at once and is passed on: what finished is in the
    store, the rest is as if it had never begun.

    Args:
        specs: the runs; their order does not matter.
        store: where they are kept.
        workers: processes at once; None takes a number that suits the device. On a GPU they
            share it.
        device: as in :class:`~deepgat.training.loop.TrainSettings`.
        retry_failed: also try the runs that failed before.
        on_event: is told what happens.
        perform: makes one run; a function of a module, so that workers can import it.
        ray: the address of a Ray cluster that makes the runs, in place of processes here;
            ``workers`` are then runs at a time in all of it.
    """
    if workers is not None and workers < 1:
        raise UserError(f"workers is {workers}: expected 1 or more")
    tell = on_event or (lambda event: None)
    ordered = in_order(specs)
    outcome = Outcome()
    earlier = store.failures()
    failures = {} if retry_failed else earlier
    missing: list[RunSpec] = []
    for spec in ordered:
        record = store.get(spec.signature)
        if record is not None:
            outcome.records[spec.signature] = record
        elif spec.signature in failures:
            outcome.failed[spec.signature] = failures[spec.signature]["error"]
        else:
            missing.append(spec)
    usual = default_workers(device) if ray in (None, "local") else CLUSTER_WORKERS
    count = min(workers or usual, len(missing) or 1)
    tell(Planned(ordered, dict(outcome.records), dict(outcome.failed), count))
    given = (store, missing, earlier, count, device, perform, tell, outcome)
    if missing and ray is not None:
        from deepgat.lab.experiments.cluster import RaySession  # which knows this module

        RaySession(*given, address=ray).run()
    elif missing:
        choose_device(device)  # refused now, not by every worker
        _LocalSession(*given).run()
    return outcome


def default_workers(device: str = "auto") -> int:
    """How many runs at once suit the device."""
    if choose_device(device).type == "cuda":
        return min(GPU_WORKERS, cores())
    return min(CPU_WORKERS, cores())


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """A worker process, seen from the parent."""

    def __init__(self, store: Store, device: str, threads: int, perform: Perform) -> None:
        context = multiprocessing.get_context(START_METHOD)
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self.process = context.Process(  # type: ignore[attr-defined]
            target=worker_main,
            args=(theirs, store.folder, device, threads, perform),
            daemon=True,
        )
        # Ctrl-C reaches every process of a terminal, but here the parent decides what it means.
        with _without_interrupts():
            self.process.start()
        theirs.close()  # so that the end of the process ends the connection
        self.spec: RunSpec | None = None
        self.ready = False
        self.gone = False
        self.spent = False
        """To be stopped: what it keeps, on a GPU above all, must not meet the next run."""

    def give(self, spec: RunSpec) -> None:
        self.spec, self.ready = spec, False
        self.connection.send(spec)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.process.terminate()
        self.process.join(timeout=10)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.connection.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """SIGINT waits until after this, and never reaches the processes that are started in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class Session:
    """One call of :func:`run_all` while it lasts: what is still to do, and what is known of it."""

    store: Store
    missing: list[RunSpec]
    earlier_failures: dict[str, Record]
    count: int
    device: str
    perform: Perform
    tell: Callable[[Event], None]
    outcome: Outcome
    forecast: Forecast = field(default_factory=Forecast)
    elsewhere: list[RunSpec] = field(default_factory=list)
    """Runs that another process is making."""
    running: list[RunSpec] = field(default_factory=list)
    """Runs that are being made for this session."""

    def __post_init__(self) -> None:
        self.pending = deque(self.missing)

    def take(self, spec: RunSpec, answer: Answer) -> None:
        """What a worker has to say of a run it was given."""
        if isinstance(answer, Done):
            self._finish(spec, answer.record, answer.made_here)
        elif isinstance(answer, Busy):
            self.elsewhere.append(spec)
        elif isinstance(answer, NoRoom):
            self.give_up(spec, answer.error, answer.details)
        else:
            self._fail(spec, answer.error)

    def give_up(self, spec: RunSpec, error: str, details: str = "") -> None:
        """The run has failed, unless it is complete: what no worker could keep is kept here."""
        mine = self.store.claim(spec.signature)
        if mine is None:
            self.elsewhere.append(spec)
            return
        with mine:
            record = self.store.finished(mine)
            if record is None:
                self.store.fail(mine, spec, error, details)
        if record is not None:
            self._finish(spec, record, made_here=True)
        else:
            self._fail(spec, error)

    def look_elsewhere(self) -> None:
        """Take up what another process has finished, and try again what it has given up."""
        for spec in list(self.elsewhere):
            if self.store.is_claimed(spec.signature):
                continue
            self.elsewhere.remove(spec)
            record = self.store.get(spec.signature)
            failure = None if record else self.store.failures().get(spec.signature)
            if record is not None:
                self._finish(spec, record, made_here=False)
            elif failure is not None and failure != self.earlier_failures.get(spec.signature):
                self._fail(spec, failure["error"])
            else:
                self.pending.appendleft(spec)

    def _finish(self, spec: RunSpec, record: Record, made_here: bool) -> None:
        self.outcome.records[spec.signature] = record
        if made_here:
            self.outcome.made += 1
            self.forecast.learn(spec, record["wall_seconds"])
        left = self.forecast.seconds([*self._waiting(), *self.running], self.count)
        self.tell(Finished(spec, record, made_here, left))

    def _waiting(self) -> list[RunSpec]:
        return [*self.pending, *self.elsewhere]

    def _fail(self, spec: RunSpec, error: str) -> None:
        self.outcome.failed[spec.signature] = error
        self.tell(Failed(spec, error))


@dataclass
class _LocalSession(Session):
    """Runs made by processes of this machine."""

    workers: list[_Worker] = field(default_factory=list)
    put_off: deque[RunSpec] = field(default_factory=deque)
    """Runs that found no memory beside other workers."""

    def run(self) -> None:
        next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        try:
            while self._waiting() or any(w.spec for w in self.workers):
                self._keep_busy()
                connections = [worker.connection for worker in self.workers]
                for connection in wait(connections, timeout=SECONDS_BETWEEN_LOOKS):
                    self._listen(next(w for w in self.workers if w.connection is connection))
                if time.monotonic() >= next_look:
                    self.look_elsewhere()
                    next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        finally:
            for worker in self.workers:
                worker.stop()

    def _waiting(self) -> list[RunSpec]:
        return [*super()._waiting(), *self.put_off]

    def _take_up(self) -> None:
        """What was put off is made after all others, one by one, each with the GPU to itself."""
        if self.put_off and not self.pending and not any(w.spec for w in self.workers):
            self.pending.append(self.put_off.popleft())
            for worker in self.workers:
                worker.spent = True  # idle, it still fills memory

    def _keep_busy(self) -> None:
        """Bury dead workers, start those that are lacking, and hand out runs."""
        self._take_up()
        for worker in list(self.workers):
            if worker.spent or worker.gone:
                self.workers.remove(worker)
            if worker.spent:
                worker.stop()
            elif worker.gone:
                self._bury(worker)
        threads = max(1, min(torch.get_num_threads(), cores() // self.count))
        idle = sum(worker.spec is None for worker in self.workers)
        for _ in range(min(self.count - len(self.workers), len(self.pending) - idle)):
            self.workers.append(_Worker(self.store, self.device, threads, self.perform))
        for worker in self.workers:
            if worker.ready and not worker.gone and self.pending:
                self._hand_out(worker, self.pending.popleft())

    def _hand_out(self, worker: _Worker, spec: RunSpec) -> None:
        try:
            worker.give(spec)
        except (BrokenPipeError, ConnectionResetError):  # it died while idle: not this run's fault
            worker.spec, worker.ready, worker.gone = None, True, True
            self.pending.appendleft(spec)
            return
        self.tell(Started(spec))

    def _listen(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            worker.gone = True  # all it had to say was heard
            return
        spec = worker.spec
        if isinstance(message, Ready):
            worker.ready = True
            return
        assert spec is not None
        if isinstance(message, Step):
            self.tell(Stepped(spec, message.epoch))
            return
        worker.spec, worker.ready = None, True
        worker.spent = isinstance(message, Broken | NoRoom)
        self._count_running()
        if isinstance(message, NoRoom) and len(self.workers) > 1:
            self.put_off.append(spec)
            self.tell(PutOff(spec))
        else:
            self.take(spec, message)

    def _count_running(self) -> None:
        self.running = [worker.spec for worker in self.workers if worker.spec is not None]

    def _bury(self, worker: _Worker) -> None:
        """A worker died: the run it was making has failed, unless it was complete by then."""
        worker.process.join()
        worker.connection.close()
        code, spec = worker.process.exitcode or 0, worker.spec
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if spec is None:
            if not worker.ready:  # it could not even begin, and neither would the next
                raise RuntimeError(f"a worker process ended at its start ({how})")
            return
        self._count_running()
        self.give_up(
            spec,
            f"the process that made the run was ended by {how}: out of memory, or killed by "
            "someone",
        )
