"""Remembers the last result of a slow function of inputs that do not change."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepgat.ops import Neighbors, PartNeighbors, SparseMatrix
from deepgat.ops.unchanged import Watched, can_watch


class Remembered:
    """The last result of ``compute`` for the same features and the same lists.

    The inputs are held weakly, and the result goes with them; a change in place is seen. Nothing is
    remembered of inputs that need a gradient, of a part of a graph, whose processes must all
    compute alike, nor inside ``torch.compile``, ``torch.export`` and CUDA graphs, which would read
    the result long after it is gone. Copies of a module begin with nothing.
    """

    def __init__(self) -> None:
        self._kept: tuple[_Inputs, Any] | None = None

    def __call__(
        self, compute: Callable[[], Any], x: Tensor | SparseMatrix, lists: Neighbors | None = None
    ) -> Any:
        if not _can_remember(x, lists):
            return compute()
        kept = self._kept
        if kept is not None and kept[0].are_still(x, lists):
            return kept[1]
        with torch.no_grad():
            result = compute()
        self._kept = _Inputs(x, lists, self._forget), result
        return result

    def _forget(self, _: object) -> None:
        self._kept = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Remembered:
        return Remembered()

    def __reduce__(self) -> tuple[type[Remembered], tuple[()]]:
        return Remembered, ()


class _Inputs:
    """Features and lists as they were."""

    def __init__(
        self,
        x: Tensor | SparseMatrix,
        lists: Neighbors | None,
        when_freed: Callable[[object], None],
    ) -> None:
        self.objects = [weakref.ref(item, when_freed) for item in _objects(x, lists)]
        self.numbers = [Watched(item, when_freed) for item in _numbers(x, lists)]
        self.precision = _precision(x)

    def are_still(self, x: Tensor | SparseMatrix, lists: Neighbors | None) -> bool:
        objects, numbers = _objects(x, lists), _numbers(x, lists)
        return (
            (len(objects), len(numbers)) == (len(self.objects), len(self.numbers))
            and all(a() is b for a, b in zip(self.objects, objects, strict=True))
            and all(a.is_still(b) for a, b in zip(self.numbers, numbers, strict=True))
            and self.precision == _precision(x)
        )


def _objects(x: Tensor | SparseMatrix, lists: Neighbors | None) -> list[Any]:
    return [item for item in (x, lists) if item is not None and not isinstance(item, Tensor)]


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
    if torch.compiler.is_compiling() or isinstance(lists, PartNeighbors):
        return False
    if x.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    return all(can_watch(item) and not item.requires_grad for item in _numbers(x, lists))
