"""Execute runs on a Ray cluster: the same attempts on the same store, in Ray's workers.

Every machine of the cluster needs deepgat and the store under the same path. When a worker dies,
its claim is released with its process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from deepgat.errors import UserError
from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.experiments.store import Store
from deepgat.lab.experiments.work import Attempt, Perform, attempt


class RayCluster:
    """Ray's workers, as :class:`~deepgat.lab.experiments.processes.Processes`.

    The address "local" starts a cluster of ``count`` cores on this machine; "auto" finds the
    cluster that this machine belongs to.
    """

    def __init__(
        self, store: Store, device: str, perform: Perform, address: str, count: int
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError("Ray is not installed: pip install 'deepgat[ray]'") from error
        options: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
        if address == "local":
            options |= {"num_cpus": count, "include_dashboard": False}
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(
                f"no Ray cluster answers at {address!r}: start one (ray start --head), or use "
                "the address local"
            ) from error
        gpus = 1 if device.startswith("cuda") else 0
        self.ray = ray
        self.remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_remote_attempt)
        self.arguments = (store.folder.resolve(), device, perform)
        self.busy: dict[Any, RunSpec] = {}

    def submit(self, spec: RunSpec) -> None:
        self.busy[self.remote.remote(spec, *self.arguments)] = spec

    def finished(self, timeout: float) -> Iterator[tuple[RunSpec, Attempt]]:
        if not self.busy:
            time.sleep(timeout)
            return
        done, _ = self.ray.wait(list(self.busy), timeout=timeout)
        for reference in done:
            spec = self.busy.pop(reference)
            try:
                yield spec, self.ray.get(reference)
            except self.ray.exceptions.RayError:
                yield spec, Attempt("the worker of the cluster that made the run died", clean=False)

    def close(self) -> None:
        self.ray.shutdown()


def _remote_attempt(spec: RunSpec, folder: Path, device: str, perform: Perform) -> Attempt:
    torch.set_num_threads(1)
    return attempt(Store(folder, create=False), spec, device, perform)
