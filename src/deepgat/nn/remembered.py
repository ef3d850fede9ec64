"""Remembers, while a network is trained, what its steps would compute again and again.

Outside of :func:`remembering` nothing is remembered: between two predictions a caller may change
the features in ways that cannot be seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from deepgat.ops import Neighbors, PartNeighbors, SparseMatrix
from deepgat.ops.unchanged import Watched, can_watch

_results: ContextVar[dict[tuple[int, str], tuple[_Inputs, Any]] | None] = ContextVar(
    "results", default=None
)


@contextmanager
def remembering() -> Iterator[None]:
    """Inside, :func:`remembered` remembers; at the end all of that is forgotten."""
    token = _results.set({})
    try:
        yield
    finally:
        _results.reset(token)


def remembered(
    owner: object,
    name: str,
    compute: Callable[[], Any],
    x: Tensor | SparseMatrix,
    lists: Neighbors | None = None,
) -> Any:
    """``compute()``, or its last result for the same owner, name, features and lists.

    The inputs are held weakly; a change in place is seen. Nothing is remembered of inputs that need
    a gradient, of a part of a graph, whose processes must all compute alike, nor inside
    ``torch.compile`` and CUDA graphs, which would read the result long after it is gone.
    """
    if torch.compiler.is_compiling():
        return compute()
    results = _results.get()
    if results is None or not _can_remember(x, lists):
        return compute()
    key = id(owner), name
    kept = results.get(key)
    if kept is not None and kept[0].are_still(owner, x, lists):
        return kept[1]
    with torch.no_grad():
        result = compute()
    results[key] = _Inputs(owner, x, lists, lambda _: results.pop(key, None)), result
    return result


class _Inputs:
    """Features and lists as they were."""

    def __init__(
        self,
        owner: object,
        x: Tensor | SparseMatrix,
        lists: Neighbors | None,
        when_freed: Callable[[object], object],
    ) -> None:
        self.objects = [weakref.ref(item, when_freed) for item in _objects(owner, x, lists)]
        self.numbers = [Watched(item, when_freed) for item in _numbers(x, lists)]
        self.precision = _precision(x)

    def are_still(self, owner: object, x: Tensor | SparseMatrix, lists: Neighbors | None) -> bool:
        objects, numbers = _objects(owner, x, lists), _numbers(x, lists)
        return (
            (len(objects), len(numbers)) == (len(self.objects), len(self.numbers))
            and all(a() is b for a, b in zip(self.objects, objects, strict=True))
            and all(a.is_still(b) for a, b in zip(self.numbers, numbers, strict=True))
            and self.precision == _precision(x)
        )


def _objects(owner: object, x: Tensor | SparseMatrix, lists: Neighbors | None) -> list[Any]:
    return [item for item in (owner, x, lists) if item is not None and not isinstance(item, Tensor)]


def _numbers(x: Tensor | SparseMatrix, lists: Neighbors | None) -> list[Tensor]:
    """The tensors that the result depends on, beside the lists themselves."""
    found = [x.values if isinstance(x, SparseMatrix) else x]
    if lists is not None:
        found += [item for item in (lists.log_weight, lists.features) if item is not None]
    return found


def _precision(x: Tensor | SparseMatrix) -> torch.dtype | None:
    """What autocast computes in, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _can_remember(x: Tensor | SparseMatrix, lists: Neighbors | None) -> bool:
    if isinstance(lists, PartNeighbors) or torch.is_inference_mode_enabled():
        return False
    if x.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    return all(can_watch(item) and not item.requires_grad for item in _numbers(x, lists))
