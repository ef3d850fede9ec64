"""Starts the processes of a team on this machine with torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from deepgat.errors import VERDICT, UserError
from deepgat.machine import free_memory

MOST_RESTARTS = 3
PER_CORE, LEAST_LIMIT = 8, 64
"""Processes per core that are accepted, and how many always are."""
PROCESS_BYTES = 200 * 2**20
"""Memory that a process takes before it has read any data."""


def launch(processes: int, arguments: Sequence[str], restarts: int = MOST_RESTARTS) -> int:
    """Run ``python -m deepgat ARGUMENTS`` in several processes; return the exit code.

    If a process dies, all of them restart from the last checkpoint, at most ``restarts`` times.
    """
    check_processes(processes)
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"deepgat-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=restarts,
        monitor_interval=0.1,
    )
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with _surroundings(processes) as verdict:
        try:
            elastic_launch(config, sys.executable)("-m", "deepgat", *arguments)
        except SignalException:
            return 130
        except ChildFailedError as error:
            code = max(failure.exitcode for failure in error.failures.values())
            number, failure = error.get_first_failure()
            if code in (2, 130):  # the process has printed the reason
                return code
            raise UserError(
                f"process {number} of {processes} ended with exit code {failure.exitcode} and "
                f"{restarts} restarts did not help: see its output above"
            ) from error
        return int(verdict.read_text() or 0) if verdict.exists() else 0


def check_processes(processes: int, name: str = "processes") -> None:
    """Refuse more processes than the machine has cores and memory for."""
    if processes < 1:
        raise UserError(f"{name} is {processes}: expected 1 or more")
    if processes > (most := max(LEAST_LIMIT, PER_CORE * (os.cpu_count() or 1))):
        raise UserError(
            f"{name} is {processes}: expected {most} or fewer on a machine of "
            f"{os.cpu_count()} cores"
        )
    free = free_memory(torch.device("cpu"))
    if processes > 1 and processes * PROCESS_BYTES > free:
        raise UserError(
            f"{name} is {processes}: each takes {PROCESS_BYTES / 2**20:,.0f} MiB at least, but "
            f"{free / 2**20:,.0f} MiB of memory are free; choose fewer"
        )


def give_up(code: int) -> bool:
    """Record that restarts are futile; return whether this process is the first to do so."""
    path = os.environ.get(VERDICT)
    if path is None:
        return True
    try:
        with open(path, "x") as file:
            file.write(str(code))
    except FileExistsError:
        return False
    return True


def restarted() -> bool:
    """Whether this process replaces one that died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def _surroundings(processes: int) -> Iterator[Path]:
    """Environment of the processes: threads per process, and the path of the verdict."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="deepgat-") as folder:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
        os.environ[VERDICT] = str(Path(folder) / "verdict")
        try:
            yield Path(folder) / "verdict"
        finally:
            os.environ.clear()
            os.environ.update(before)
