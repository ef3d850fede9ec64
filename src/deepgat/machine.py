"""The memory that a machine leaves this process, and the bound that a user sets on it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import torch

_bound: ContextVar[float] = ContextVar("max_memory", default=math.inf)
_MMAP_THRESHOLD, _LARGE = -3, 2**20
"""glibc's parameter of ``mallopt``, and from which size on memory is to be given back at once."""


@contextmanager
def memory_bound(most: float | None) -> Iterator[None]:
    """Inside, :func:`free_memory` counts on no more than so many bytes for this process."""
    token = _bound.set(_bound.get() if most is None else most)
    try:
        yield
    finally:
        _bound.reset(token)


def free_memory(device: torch.device, trust: float = 1.0) -> float:
    """In bytes: what the device, the limits of the process and :func:`memory_bound` leave it.

    Infinity if the system does not report it. ``trust`` multiplies what the machine has, which
    others may give back or take, and leaves the user's bound as it is.
    """
    if device.type == "cuda":
        free, held = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
        return max(0.0, min(trust * free, _bound.get() - held))
    own = _sizes(Path("/proc/self/status"))
    spaces = [_sizes(Path("/proc/meminfo")).get("MemAvailable", math.inf), _cgroup_memory()]
    with suppress(ImportError):  # Windows has no such limits
        import resource

        if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            spaces.append(limit - own.get("VmSize", 0.0))  # ulimit -v
    return max(0.0, min(trust * min(spaces), _bound.get() - own.get("VmRSS", 0.0)))


def _sizes(path: Path) -> dict[str, float]:
    """Name → bytes of the rows ``Name: 12 kB`` of a file of the system; empty without the file."""
    with suppress(OSError):
        rows = [row.split() for row in path.read_text().splitlines()]
        return {row[0][:-1]: 1024.0 * int(row[1]) for row in rows if row[-1:] == ["kB"]}
    return {}


def _cgroup_memory(root: Path = Path("/")) -> float:
    """What the control groups of this process, such as a container's, leave of their memory."""
    free = math.inf
    with suppress(OSError, ValueError):
        for row in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = row.split(":", 2)
            if not kinds:
                top, limit, used, cache = "sys/fs/cgroup", "memory.max", "memory.current", ""
            elif "memory" in kinds.split(","):
                top, cache = "sys/fs/cgroup/memory", "total_"
                limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
            else:
                continue
            inner = Path(path.lstrip("/"))
            for folder in (root / top / part for part in (inner, *inner.parents)):
                with suppress(OSError, ValueError, KeyError):  # no limit is the text "max"
                    most = float((folder / limit).read_text())
                    rows = map(str.split, (folder / "memory.stat").read_text().splitlines())
                    stat = {name: float(value) for name, value in rows}
                    files = stat[f"{cache}active_file"] + stat[f"{cache}inactive_file"]
                    free = min(free, most - float((folder / used).read_text()) + files)
    return free


def give_back_freed_memory() -> None:
    """From now on glibc returns large blocks to the system when they are freed.

    By default it keeps those below 32 MiB, and the aligned blocks that torch asks for rarely fit
    where others were: recomputed layers would save nothing. Costs some time, so it is asked only
    where memory is scarce.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)
