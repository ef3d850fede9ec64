"""Execute the runs that a store lacks, several at a time.

Each worker executes one run at a time. An error, a crash or a kill affects only its current run.
The result of a run is read from the store, whichever process executed it. Nothing is printed here:
:func:`run_all` reports an :class:`Event` for everything that happens.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from deepgat.distributed.launch import check_processes
from deepgat.errors import UserError
from deepgat.lab.experiments.cluster import RayCluster
from deepgat.lab.experiments.processes import Processes
from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.experiments.store import Store
from deepgat.lab.experiments.store_entry import Record
from deepgat.lab.experiments.work import Perform, perform
from deepgat.training.device import choose_device

CPU_WORKERS, GPU_WORKERS = 8, 4
"""The most workers by default."""
CLUSTER_WORKERS = 1000
"""Runs submitted to a cluster at once by default; it executes as many as it has cores for."""
SECONDS_BETWEEN_LOOKS = 1.0
"""How often to check on runs that another process is executing."""


class Planned(NamedTuple):
    """Told before anything runs: how many runs there are, and how many the store already has."""

    total: int
    present: int
    failed: int
    """Runs that failed earlier and are not retried."""


class Event(NamedTuple):
    """What happened to a run.

    A run is put off if its worker died or the GPU was full; it is tried again after the others.
    """

    what: Literal["started", "finished", "failed", "put off"]
    spec: RunSpec
    record: Record | None = None
    """Of a finished run."""
    error: str = ""
    """Why it failed or was put off."""


@dataclass
class Outcome:
    """The result of :func:`run_all`."""

    records: dict[str, Record] = field(default_factory=dict)
    """Signature → record, of every run that is now in the store."""
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
    on_event: Callable[[Planned | Event], None] | None = None,
    perform: Perform = perform,
    ray: str | None = None,
) -> Outcome:
    """Execute every run that the store lacks, and return all of them.

    Every run of one repetition (seed and split) comes before the next repetition. If another
    process is executing a run on the same store, wait for it, and take the run over if that process
    ends. Ctrl-C stops the workers at once and is passed on: finished runs are in the store, and the
    others leave no trace.

    Args:
        specs: the runs, in any order.
        store: where they are stored.
        workers: number of processes; None: a number that suits the device. Workers share a GPU.
        device: as in :class:`~deepgat.training.settings.TrainSettings`.
        retry_failed: also retry runs that failed earlier.
        on_event: called with :class:`Planned`, then with every :class:`Event`.
        perform: executes one run; a module-level function, so that workers can import it.
        ray: the address of a Ray cluster that executes the runs instead of local processes;
            ``workers`` is then the number of concurrent runs on the whole cluster.
    """
    if workers is not None and ray is None:
        check_processes(workers, "workers")
    elif workers is not None and workers < 1:
        raise UserError(f"workers is {workers}: expected 1 or more")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if workers is None and ray not in (None, "local"):
        workers = CLUSTER_WORKERS
    elif workers is None:
        most = GPU_WORKERS if choose_device(device).type == "cuda" else CPU_WORKERS
        workers = min(most, cores or 1)
    session = _Session(store, on_event or (lambda event: None))
    ordered = sorted(dict.fromkeys(specs), key=lambda spec: (spec.seed, spec.data.split))
    if retry_failed:
        for spec in ordered:
            store.forget_failure(spec.signature)
    missing = [spec for spec in ordered if not session.look_up(spec)]
    outcome = session.outcome
    session.tell(Planned(len(ordered), len(outcome.records), len(outcome.failed)))
    # A second round, with the machine to itself, for a run whose worker died or found no memory.
    for again, count in enumerate((workers, 1 if ray is None else workers)):
        if missing:
            count = min(count, len(missing))
            backend: Processes | RayCluster
            if ray is not None:
                backend = RayCluster(store, device, perform, ray, count)
            else:
                choose_device(device)  # fail here rather than in every worker
                threads = max(1, min(torch.get_num_threads(), (cores or 1) // count))
                backend = Processes(store, device, threads, perform)
            with closing(backend):
                missing = session.work(backend, missing, count, last=bool(again))
    return outcome


class _Session:
    """The state of one call of :func:`run_all`."""

    def __init__(self, store: Store, tell: Callable[[Planned | Event], None]) -> None:
        self.store = store
        self.tell = tell
        self.outcome = Outcome()
        self.pending: deque[RunSpec] = deque()
        self.elsewhere: list[RunSpec] = []
        """Runs that another process is executing."""

    def look_up(self, spec: RunSpec) -> bool:
        """Take the result of a run from the store; False if it has none."""
        if record := self.store.get(spec.signature):
            self.outcome.records[spec.signature] = record
        elif failure := self.store.failure(spec.signature):
            self.outcome.failed[spec.signature] = failure["error"]
        else:
            return False
        return True

    def work(
        self, workers: Processes | RayCluster, specs: list[RunSpec], count: int, last: bool
    ) -> list[RunSpec]:
        """Execute runs, at most ``count`` at once; returns those that need another round."""
        self.pending.extend(specs)
        running, put_off = 0, []
        while self.pending or running or self.elsewhere:
            while self.pending and running < count:
                spec = self.pending.popleft()
                workers.submit(spec)
                running += 1
                self.tell(Event("started", spec))
            for spec, (problem, _) in workers.finished(SECONDS_BETWEEN_LOOKS):
                running -= 1
                if problem and not last:
                    put_off.append(spec)
                    self.tell(Event("put off", spec, error=problem))
                    continue
                if problem:
                    self._fail(spec, problem)
                self._collect(spec)
            for spec in self.elsewhere[:]:
                if not self.store.is_claimed(spec.signature):
                    self.elsewhere.remove(spec)
                    self._collect(spec)
        return put_off

    def _fail(self, spec: RunSpec, error: str) -> None:
        """Store the failure of a run whose worker could not, unless the run is complete."""
        mine = self.store.claim(spec.signature)
        if mine is not None:
            with mine:
                if self.store.get(spec.signature) is None:
                    self.store.fail(mine, spec, error, "")

    def _collect(self, spec: RunSpec) -> None:
        """Report the result of a run; if it has none, another process is or was executing it."""
        if not self.look_up(spec):
            claimed = self.store.is_claimed(spec.signature)
            (self.elsewhere if claimed else self.pending).append(spec)
        elif record := self.outcome.records.get(spec.signature):
            self.tell(Event("finished", spec, record))
        else:
            self.tell(Event("failed", spec, error=self.outcome.failed[spec.signature]))
