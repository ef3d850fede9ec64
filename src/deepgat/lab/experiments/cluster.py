"""Execute runs on a Ray cluster: the same attempts on the same store, in Ray's workers.

Every machine of the cluster needs deepgat and the store under the same path. When a worker dies,
its claim is released with its process, so the run is tried again.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from deepgat.errors import UserError
from deepgat.lab.experiments.pool import SECONDS_BETWEEN_LOOKS, Session, Started
from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.experiments.store import Store
from deepgat.lab.experiments.work import Perform
from deepgat.lab.experiments.worker import Answer, attempt

MOST_DEATHS = 3
"""After this many dead workers, a run counts as failed."""


def remote_attempt(
    folder: Path, spec: RunSpec, device: str, threads: int, perform: Perform
) -> Answer:
    """One run, in a worker of the cluster."""
    torch.set_num_threads(threads)
    return attempt(Store(folder, create=False), spec, device, perform)


@dataclass
class RaySession(Session):
    """One call of ``run_all`` that executes its runs on a cluster; ``address`` is Ray's.

    "local" starts a cluster on this machine for the duration of the call; "auto" finds the cluster
    this machine belongs to. It reports when runs start and end, but not their epochs.
    """

    address: str = "auto"
    deaths: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        ray = _ray()
        options: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
        if self.address == "local":
            options |= {"num_cpus": self.count, "include_dashboard": False}
        try:
            ray.init(address=self.address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(
                f"no Ray cluster answers at {self.address!r}: start one (ray start --head), or use "
                "--ray local"
            ) from error
        try:
            self._work(ray)
        finally:
            ray.shutdown()

    def _work(self, ray: Any) -> None:
        gpus = 1 if self.device.startswith("cuda") else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(remote_attempt)
        store = self.store.folder.resolve()
        making: dict[Any, RunSpec] = {}
        while self.pending or self.elsewhere or making:
            while self.pending and len(making) < self.count:
                spec = self.pending.popleft()
                making[remote.remote(store, spec, self.device, 1, self.perform)] = spec
                self.tell(Started(spec))
            done: list[Any] = []
            if making:
                done, _ = ray.wait(list(making), timeout=SECONDS_BETWEEN_LOOKS)
            elif self.elsewhere:
                time.sleep(SECONDS_BETWEEN_LOOKS)
            for reference in done:
                spec = making.pop(reference)
                self.running = list(making.values())
                try:
                    self.take(spec, ray.get(reference))
                except ray.exceptions.RayError:  # the worker died; a failed run is an answer
                    self._died(spec)
            if not done:
                self.look_elsewhere()

    def _died(self, spec: RunSpec) -> None:
        self.deaths[spec.signature] += 1
        if self.deaths[spec.signature] < MOST_DEATHS:
            self.pending.appendleft(spec)
        else:
            self.give_up(spec, f"{MOST_DEATHS} workers of the cluster died over it")


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError("Ray is not installed: pip install 'deepgat[ray]'") from error
    return ray
