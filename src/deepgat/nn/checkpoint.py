"""Activation checkpointing: the backward pass recomputes activations instead of storing them.

The cheapest choice recomputes the projections W₂ h and W₁ h, half of what a layer stores, with one
matrix product. The others split layers 1 … L into segments and recompute everything inside a
segment, bit for bit. Segments of one layer store L layer inputs. Segments of √L layers store √L
inputs and, during the backward pass of a segment, the activations of √L layers.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHECKPOINTS = ("auto", "none", "projections", "layer", "sqrt")
_ROOM = 0.5
"""Share of the free memory that stored activations may take."""
_bound: ContextVar[float] = ContextVar("max_memory", default=math.inf)
_MMAP_THRESHOLD, _LARGE = -3, 2**20
"""glibc's parameter of ``mallopt``, and from which size on memory is to be given back at once."""


def choose_checkpoint(
    choice: str, layers: int, kept_bytes: float, input_bytes: float, free_bytes: float
) -> str:
    """Resolve "auto" to the choice that recomputes least within the free memory.

    Args:
        choice: one of ``CHECKPOINTS``.
        layers: L.
        kept_bytes: bytes that the backward pass of one layer needs.
        input_bytes: bytes of the input of one layer.
        free_bytes: free memory.
    """
    if choice != "auto":
        return choice
    takes = {way: step_bytes(way, layers, kept_bytes, input_bytes) for way in CHECKPOINTS[1:]}
    fitting = (way for way, size in takes.items() if size <= _ROOM * free_bytes)
    return next(fitting, "sqrt" if takes["sqrt"] < takes["layer"] else "layer")


def step_bytes(choice: str, layers: int, kept_bytes: float, input_bytes: float) -> float:
    """What the activations of a step take at most; arguments as in :func:`choose_checkpoint`."""
    if choice == "none":
        return layers * kept_bytes
    if choice == "projections":
        return layers * kept_bytes / 2 + kept_bytes
    length = segment_length(choice, layers)
    return layers / length * input_bytes + length * kept_bytes


def segment_length(choice: str, layers: int) -> int:
    """Layers per segment of :meth:`Network.run <deepgat.models.Network.run>`; 0 for none."""
    return {"layer": 1, "sqrt": max(1, round(math.sqrt(layers)))}.get(choice, 0)


@contextmanager
def remade(
    tensors: Sequence[Tensor | None], make: Callable[[], Sequence[Tensor | None]]
) -> Iterator[None]:
    """Autograd calls ``make`` in the backward pass instead of saving ``tensors``."""
    places = {_place(tensor): i for i, tensor in enumerate(tensors) if tensor is not None}
    made: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Any:
        return places.get(_place(tensor), tensor)

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        if kept not in made:
            with torch.no_grad():
                made.update({i: t for i, t in enumerate(make()) if t is not None})
        return made.pop(kept)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _place(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def recomputed(segment: Callable[..., Any], module: nn.Module, *inputs: Any) -> Any:
    """``segment(*inputs)``, recomputed in the backward pass."""
    return checkpoint(
        segment,
        *inputs,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _without_statistics(module)),
    )


@contextmanager
def memory_bound(most: float | None) -> Iterator[None]:
    """Inside, :func:`free_memory` counts on no more than so many bytes for this process."""
    token = _bound.set(_bound.get() if most is None else most)
    try:
        yield
    finally:
        _bound.reset(token)


def free_memory(device: torch.device) -> float:
    """In bytes: what the device, the limits of the process and :func:`memory_bound` leave it.

    Infinity if the system does not report it.
    """
    if device.type == "cuda":
        free, held = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
        return max(0.0, min(float(free), _bound.get() - held))
    own = _sizes(Path("/proc/self/status"))
    machine = _sizes(Path("/proc/meminfo")).get("MemAvailable", math.inf)
    spaces = [machine, _cgroup_memory(), _bound.get() - own.get("VmRSS", 0.0)]
    with suppress(ImportError):  # Windows has no such limits
        import resource

        if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            spaces.append(limit - own.get("VmSize", 0.0))  # ulimit -v
    return max(0.0, min(spaces))


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


@contextmanager
def _without_statistics(module: nn.Module) -> Iterator[None]:
    """Keeps recomputation from updating the running statistics of batch norms."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    counts = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
    before = [count.clone() for count in counts]
    for norm in norms:
        norm.momentum = 0.0  # the running averages stay as they are
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for count, was in zip(counts, before, strict=True):
            count.copy_(was)
