"""Depth at little memory: activations computed again in the backward pass instead of kept.

The cheapest is to forget the projections W₂ h and W₁ h, half of what a layer keeps: one matrix
product brings them back. Beyond that, layers 1 … L are cut into segments; what lies inside one is
forgotten after the forward pass and computed again, to the bit, when its gradient is due.
Segments of one layer keep L layer inputs; segments of √L layers keep √L of them and, for a moment,
√L layers' activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHECKPOINTS = ("auto", "none", "projections", "layer", "sqrt")
_ROOM = 0.5
"""The share of the free memory that activations may take before they are forgotten."""


def chosen(
    choice: str, layers: int, kept_bytes: float, input_bytes: float, free_bytes: float
) -> str:
    """What "auto" stands for: it forgets no more than the free memory asks for.

    Args:
        choice: one of ``CHECKPOINTS``.
        layers: L.
        kept_bytes: what the backward pass of one layer needs.
        input_bytes: the input of one layer.
        free_bytes: memory that is free.
    """
    if choice != "auto":
        return choice
    room = _ROOM * free_bytes
    if layers * kept_bytes <= room:
        return "none"
    if layers * kept_bytes / 2 + kept_bytes <= room:
        return "projections"
    return "layer" if layers * input_bytes + kept_bytes <= room else "sqrt"


def segment_length(choice: str, layers: int) -> int:
    """Layers per segment of :meth:`Network.run <deepgat.models.Network.run>`; 0 for none."""
    return {"layer": 1, "sqrt": max(1, round(math.sqrt(layers)))}.get(choice, 0)


@contextmanager
def remade(
    tensors: Sequence[Tensor | None], make: Callable[[], Sequence[Tensor | None]]
) -> Iterator[None]:
    """Autograd forgets these tensors, where it would keep them, and calls ``make`` for them."""
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
    """``segment(*inputs)``, whose inside is computed again for the backward pass."""
    return checkpoint(
        segment,
        *inputs,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _without_statistics(module)),
    )


def free_memory(device: torch.device) -> float:
    """Bytes; infinite where the system does not tell."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    info = Path("/proc/meminfo")
    if not info.exists():
        return math.inf
    line = next(row for row in info.read_text().splitlines() if row.startswith("MemAvailable:"))
    return 1024.0 * int(line.split()[1])


@contextmanager
def _without_statistics(module: nn.Module) -> Iterator[None]:
    """Batch normalisations do not count the second computation of the same numbers."""
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
