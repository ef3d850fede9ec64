"""Time and peak memory of a step, on the CPU and on a GPU."""

from __future__ import annotations

import ctypes
import gc
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch_geometric

Step = Callable[[], object]


class Measurement(NamedTuple):
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
    first: dict[str, Measurement] = {}
    for name, step in ways.items():
        try:
            step()  # compiles and warms up
            first[name] = measure_once(step, device)
        except torch.OutOfMemoryError:
            empty_memory(device)
    times: dict[str, list[float]] = {name: [] for name in first}
    for _ in range(rounds):
        for name, found in first.items():
            short = device.type == "cuda" and found.milliseconds < 200
            times[name].append(_milliseconds(ways[name], device, repeats=10 if short else 1))
    return {name: Measurement(min(times[name]), first[name].peak_megabytes) for name in first}


def measure_once(step: Step, device: torch.device | None = None) -> Measurement:
    """A single run, by default on the CPU, whose memory is what Linux reports as resident."""
    device = device or torch.device("cpu")
    empty_memory(device)
    before = begin_peak(device)
    milliseconds = _milliseconds(step, device)
    return Measurement(milliseconds, max(0.0, (peak_memory(device) - before) / 1e6))


def begin_peak(device: torch.device) -> float:
    """From now on :func:`peak_memory` counts anew. Returns the bytes that are held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.memory_allocated(device))
    with suppress(OSError):  # only Linux can reset the peak
        Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def peak_memory(device: torch.device) -> float:
    """The most bytes held since :func:`begin_peak`."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return _resident("VmHWM")


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
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "python": platform.python_version(),
        "processor": models[0] if models else platform.processor() or platform.machine(),
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


def _milliseconds(step: Step, device: torch.device, repeats: int = 1) -> float:
    """The mean of several runs, whose launches overlap on a GPU as they do in training."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    _wait(device)
    return 1e3 * (time.perf_counter() - start) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def empty_memory(device: torch.device) -> None:
    """Return freed memory to the system."""
    gc.collect()
    _wait(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        trim(0)


def _resident(field: str) -> float:
    """Resident bytes: now (VmRSS), or the peak since the last reset (VmHWM).

    Outside Linux both are the peak since the process began.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    line = next(row for row in status.read_text().splitlines() if row.startswith(field + ":"))
    return 1024.0 * int(line.split()[1])
