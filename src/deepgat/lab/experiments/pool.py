"""Execute the runs that a store lacks, several at a time.

The runner owns a few worker processes and gives each one run after another. An error, a crash or a
kill of a worker affects only its current run. The runner prints nothing; it emits :data:`Event`
objects.
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
"""Forked processes cannot use CUDA."""
CPU_WORKERS, GPU_WORKERS = 8, 4
"""The most workers by default."""
CLUSTER_WORKERS = 1000
"""Runs submitted to a cluster at once by default; it executes as many as it has cores for."""
SECONDS_BETWEEN_LOOKS = 1.0
"""How often to check on runs that another process is executing."""


@dataclass(frozen=True)
class Planned:
    """Before anything runs: all runs, those already in the store, and the number of workers."""

    specs: list[RunSpec]
    present: dict[str, Record]
    failed: dict[str, str]
    """Runs that failed earlier and are not retried: signature → error."""
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
    """Predicted, for all runs that are left; None if unknown."""


@dataclass(frozen=True)
class Failed:
    spec: RunSpec
    error: str


@dataclass(frozen=True)
class PutOff:
    """The GPU had too little memory for the run beside the others; it will run after them."""

    spec: RunSpec


Event: TypeAlias = Planned | Started | Stepped | Finished | Failed | PutOff


@dataclass
class Outcome:
    """The result of :func:`run_all`."""

    records: dict[str, Record] = field(default_factory=dict)
    """Signature → record, of every run that is now in the store."""
    made: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Signature → error."""
    diverged: dict[str, Record] = field(default_factory=dict)
    """Signature → failure, of runs that diverged, if the caller separated them."""


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
    """Execute every run that the store lacks, and return all of them.

    If another process is executing a run on the same store, wait for it, and take the run over if
    that process ends. Ctrl-C stops the workers at once and is passed on: finished runs are in the
    store, and the others leave no trace.

    Args:
        specs: the runs, in any order.
        store: where they are stored.
        workers: number of processes; None: a number that suits the device. Workers share a GPU.
        device: as in :class:`~deepgat.training.loop.TrainSettings`.
        retry_failed: also retry runs that failed earlier.
        on_event: called with every :data:`Event`.
        perform: executes one run; a module-level function, so that workers can import it.
        ray: the address of a Ray cluster that executes the runs instead of local processes;
            ``workers`` is then the number of concurrent runs on the whole cluster.
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
        from deepgat.lab.experiments.cluster import RaySession  # it imports this module

        RaySession(*given, address=ray).run()
    elif missing:
        choose_device(device)  # fail here rather than in every worker
        _LocalSession(*given).run()
    return outcome


def default_workers(device: str = "auto") -> int:
    """The default number of workers for a device."""
    if choose_device(device).type == "cuda":
        return min(GPU_WORKERS, cores())
    return min(CPU_WORKERS, cores())


def cores() -> int:
    """The number of processor cores that this process may use."""
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
        # Ctrl-C reaches every process of a terminal; only the parent should handle it.
        with _without_interrupts():
            self.process.start()
        theirs.close()  # so that the connection ends with the process
        self.spec: RunSpec | None = None
        self.ready = False
        self.gone = False
        self.spent = False
        """To be stopped, because the next run must not find what it left, above all on a GPU."""

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
    """Delay SIGINT to the end of the block, and hide it from processes started within."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class Session:
    """The state of one call of :func:`run_all`."""

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
    """Runs that another process is executing."""
    running: list[RunSpec] = field(default_factory=list)
    """Runs that this session is executing."""

    def __post_init__(self) -> None:
        self.pending = deque(self.missing)

    def take(self, spec: RunSpec, answer: Answer) -> None:
        """Handle a worker's answer about its run."""
        if isinstance(answer, Done):
            self._finish(spec, answer.record, answer.made_here)
        elif isinstance(answer, Busy):
            self.elsewhere.append(spec)
        elif isinstance(answer, NoRoom):
            self.give_up(spec, answer.error, answer.details)
        else:
            self._fail(spec, answer.error)

    def give_up(self, spec: RunSpec, error: str, details: str = "") -> None:
        """Store the failure of a run whose worker could not, unless the run is complete."""
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
        """Collect runs that another process has finished, and retry those it has abandoned."""
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
    """Executes the runs in processes of this machine."""

    workers: list[_Worker] = field(default_factory=list)
    put_off: deque[RunSpec] = field(default_factory=deque)
    """Runs that ran out of GPU memory beside other workers."""

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
        """Execute postponed runs after all others, one at a time, each alone on the GPU."""
        if self.put_off and not self.pending and not any(w.spec for w in self.workers):
            self.pending.append(self.put_off.popleft())
            for worker in self.workers:
                worker.spent = True  # even an idle one holds GPU memory

    def _keep_busy(self) -> None:
        """Remove dead workers, start missing ones, and hand out runs."""
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
        except (BrokenPipeError, ConnectionResetError):  # it died idle: not the run's fault
            worker.spec, worker.ready, worker.gone = None, True, True
            self.pending.appendleft(spec)
            return
        self.tell(Started(spec))

    def _listen(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            worker.gone = True  # every message it sent has been received
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
        """Handle a dead worker: its run has failed, unless it was complete by then."""
        worker.process.join()
        worker.connection.close()
        code, spec = worker.process.exitcode or 0, worker.spec
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if spec is None:
            if not worker.ready:  # it failed to start, and so would the next
                raise RuntimeError(f"a worker process ended at its start ({how})")
            return
        self._count_running()
        self.give_up(
            spec,
            f"the process that made the run was ended by {how}: out of memory, or killed by "
            "someone",
        )
