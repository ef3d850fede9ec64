"""Start the processes of a team on this machine, with torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deepgat.errors import UserError

VERDICT = "DEEPGAT_VERDICT"
"""The variable that names the file in which a process says why trying again is of no use."""
MOST_RESTARTS = 3


def launch(processes: int, arguments: Sequence[str], restarts: int = MOST_RESTARTS) -> int:
    """Run ``python -m deepgat ARGUMENTS`` in so many processes; the exit code of the whole.

    Where one dies, all are started again, at most ``restarts`` times; they go on from where the
    training was last kept.
    """
    if processes < 1:
        raise UserError(f"processes is {processes}: expected 1 or more")
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
            if code in (2, 130):  # it has said why
                return code
            raise UserError(
                f"process {number} of {processes} ended with exit code {failure.exitcode} and "
                f"{restarts} restarts did not help: see what it printed above"
            ) from error
        return int(verdict.read_text() or 0) if verdict.exists() else 0


def give_up(code: int) -> bool:
    """Note that starting again is of no use; whether this process is the first to say so."""
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
    """Whether this process takes the place of one that died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def _surroundings(processes: int) -> Iterator[Path]:
    """The cores divided among the processes, and a place for their verdict."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="deepgat-") as folder:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
        os.environ[VERDICT] = str(Path(folder) / "verdict")
        try:
            yield Path(folder) / "verdict"
        finally:
            os.environ.clear()
            os.environ.update(before)
