"""Activation checkpointing: the backward pass recomputes activations instead of storing them.

The cheapest choice recomputes the projections W₂ h and W₁ h, half of what a layer stores, with one
matrix product. The others split layers 1 … L into segments and recompute everything inside a
segment, bit for bit. Segments of one layer store L layer inputs. Segments of √L layers store √L
inputs and, during the backward pass of a segment, the activations of √L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHECKPOINTS = ("auto", "none", "projections", "layer", "sqrt")
_ROOM = 0.5
"""Share of the free memory that stored activations may take."""


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
def recompute_saved(
    tensors: Sequence[Tensor | None], make: Callable[[], Sequence[Tensor | None]]
) -> Iterator[None]:
    """Inside the context, autograd saves none of ``tensors``: the backward pass calls ``make``."""
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
