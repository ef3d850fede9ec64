"""Time and peak memory of a step, on the CPU and on a GPU."""

from __future__ import annotations

import ctypes
import gc
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Step = Callable[[], object]


@dataclass(frozen=True)
class Measurement:
    """The fastest time of a step, and its peak memory above what was allocated before it."""

    milliseconds: float
    peak_megabytes: float
    """0 for a CUDA graph, whose memory was allocated when it was recorded."""


def measure(
    ways: Mapping[str, Step], device: torch.device, rounds: int = 5
) -> dict[str, Measurement]:
    """Run all ways in turn, ``rounds`` times, and keep the fastest time of each.

    The result omits ways that raise ``torch.OutOfMemoryError``.
    """
    working: dict[str, Step] = {}
    peaks: dict[str, float] = {}
    for name, step in ways.items():
        try:
            step()  # compiles and warms up
            peaks[name] = peak_megabytes(step, device)
        except torch.OutOfMemoryError:
            _empty(device)
            continue
        working[name] = step
    times: dict[str, list[float]] = {name: [] for name in working}
    for _ in range(rounds):
        for name, step in working.items():
            times[name].append(_milliseconds(step, device))
    return {name: Measurement(min(times[name]), peaks[name]) for name in working}


def measure_once(step: Step) -> Measurement:
    """Time and memory of a single run on the CPU, for long steps."""
    device = torch.device("cpu")
    _empty(device)
    with _freed_at_once():
        before = _resident("VmRSS")
        _reset_resident_peak()
        milliseconds = _milliseconds(step, device)
        return Measurement(milliseconds, max(0.0, (_resident("VmHWM") - before) / 1e6))


def peak_megabytes(step: Step, device: torch.device) -> float:
    """Peak memory above what was allocated before the step."""
    _empty(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - held) / 1e6
    with _freed_at_once():
        step()  # fills holes in blocks allocated earlier
        _empty(device)
        before = _resident("VmRSS")
        _reset_resident_peak()
        step()
        return max(0.0, (_resident("VmHWM") - before) / 1e6)


def memory_comes_back() -> bool:
    """Whether freed memory returns to the system, as CPU peak measurements require.

    torch's ARM builds use mimalloc, which keeps freed memory unless MIMALLOC_PURGE_DELAY=0 is set
    at start-up; measured peaks are then too low. True if resident memory cannot be read, because
    then no peaks are measured.
    """
    with _freed_at_once():
        block = torch.ones(2**24)  # 64 MiB, touched
        held = _resident("VmRSS")
        del block
        _empty(torch.device("cpu"))
        return not held or held - _resident("VmRSS") > 2**25


def replayed(step: Step) -> Step:
    """The step as a CUDA graph, without the cost of launching kernels."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def machine(device: torch.device) -> dict[str, Any]:
    """Hardware and versions."""
    import torch_geometric

    found: dict[str, Any] = {
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        found["copy_gigabytes_per_second"] = round(copy_bandwidth(device))
    return found


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a copy, in GB/s: an upper bound for a gather."""
    x = torch.empty(2**28, device=device)
    y = torch.empty_like(x)
    y.copy_(x)
    best = min(_milliseconds(lambda: y.copy_(x), device) for _ in range(5))
    return 2 * x.numel() * 4 / best / 1e6


def _milliseconds(step: Step, device: torch.device) -> float:
    if device.type == "cpu":
        start = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - start)
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    repeats = 10 if time.perf_counter() - start < 0.2 else 1
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / repeats


def _empty(device: torch.device) -> None:
    """Return freed memory to the system."""
    gc.collect()
    if device.type == "cpu":
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if give_back is not None:
            give_back(0)
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@contextmanager
def _freed_at_once() -> Iterator[None]:
    """Make glibc return blocks of 64 KiB and more when they are freed.

    It would otherwise keep a varying number of holes between blocks in use.
    """
    options = getattr(ctypes.CDLL(None), "mallopt", None)
    threshold = -3  # M_MMAP_THRESHOLD
    if options is not None:
        options(threshold, 2**16)
    try:
        yield
    finally:
        if options is not None:
            options(threshold, 2**25)


def _resident(field: str) -> float:
    """Resident bytes: now (VmRSS), or the peak since the last reset (VmHWM)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    line = next(row for row in status.read_text().splitlines() if row.startswith(field + ":"))
    return 1024.0 * int(line.split()[1])


def _reset_resident_peak() -> None:
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
