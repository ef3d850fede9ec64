"""Depth at little memory: activations computed again in the backward pass instead of kept.

Layers 1 … L are cut into segments; what lies inside a segment is forgotten after the forward pass
and computed again, to the bit, when its gradient is due. Segments of one layer keep L layer inputs;
segments of √L layers keep √L of them and, for a moment, √L layers' activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CHECKPOINTS = ("auto", "none", "layer", "sqrt")
_ROOM = 0.5
"""The share of the free memory that activations may take before they are forgotten."""


def segment_length(
    choice: str, layers: int, kept_bytes: float, input_bytes: float, free_bytes: float
) -> int:
    """Layers per segment, 0 for none; "auto" forgets no more than the free memory asks for.

    Args:
        choice: one of ``CHECKPOINTS``.
        kept_bytes: what the backward pass of one layer needs.
        input_bytes: the input of one layer.
        free_bytes: memory that is free.
    """
    root = max(1, round(math.sqrt(layers)))
    if choice != "auto":
        return {"none": 0, "layer": 1, "sqrt": root}[choice]
    room = _ROOM * free_bytes
    if layers * kept_bytes <= room:
        return 0
    if layers * input_bytes + kept_bytes <= room:
        return 1
    return root


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
