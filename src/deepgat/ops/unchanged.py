"""Detects whether a tensor has changed since it was last seen."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def can_watch(tensor: Any) -> bool:
    """Whether changes of a tensor can be detected.

    They cannot in tensors made in inference mode, which have no version counter, nor in subclasses
    and the wrapped tensors of ``torch.func``, which hold no memory of their own.
    """
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and not tensor.is_inference()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


class Watched:
    """A tensor's identity, held weakly, with its version, address, shape and strides.

    torch's version counter, which all views of one storage share, counts the changes in place. It
    misses writes through ``tensor.data``, ``tensor.numpy()`` and other libraries.
    """

    def __init__(self, tensor: Tensor, when_freed: Callable[[Any], object]) -> None:
        self.reference = weakref.ref(tensor, when_freed)
        self._state = _state(tensor)

    def is_still(self, tensor: Tensor) -> bool:
        return self.reference() is tensor and self._state == _state(tensor)


class CheckedTensors:
    """Tensors that passed a check; each stays here until it changes or is freed."""

    def __init__(self) -> None:
        self._watched: dict[int, Watched] = {}

    def add(self, tensor: Tensor) -> None:
        if can_watch(tensor):
            key, watched = id(tensor), self._watched
            watched[key] = Watched(tensor, lambda _: watched.pop(key, None))

    def __contains__(self, tensor: Any) -> bool:
        watched = self._watched.get(id(tensor))
        return watched is not None and watched.is_still(tensor)

    def __len__(self) -> int:
        return len(self._watched)


def _state(tensor: Tensor) -> tuple[Any, ...]:
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
