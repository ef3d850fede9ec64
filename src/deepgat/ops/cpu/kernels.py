"""Loads the CPU kernels: a plain shared library, built with the package if there is a compiler."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BITS = {torch.float32: "f32", torch.float64: "f64"}
"""The dtypes that the kernels compute in."""


@cache
def library() -> ctypes.CDLL | None:
    """The shared library; None if it was not built."""
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # built for another machine
            continue
    return None


def available() -> bool:
    return library() is not None


def threads() -> int:
    """The number of threads of a kernel: as many as torch. No bit of any result depends on it."""
    return torch.get_num_threads()


@cache
def function(name: str, dtype: torch.dtype | None = None) -> Any:
    """A kernel, compiled for this processor's instruction set and for this dtype if it has one."""
    capability = torch.backends.cpu.get_cpu_capability().lower()
    full_name = name if dtype is None else f"{name}_{BITS[dtype]}"
    for suffix in (capability, "base"):
        found = getattr(library(), f"deepgat_{full_name}_{suffix}", None)
        if found is not None:
            found.restype = None
            return found
    raise RuntimeError(f"the kernel library has no {full_name}")


class Structure(ctypes.Structure):
    """The arguments of a kernel, by name; tensors become addresses and are kept alive."""

    def __init__(self, **values: Any) -> None:
        tensors = {name: item for name, item in values.items() if isinstance(item, Tensor)}
        self.kept = list(tensors.values())
        super().__init__(**values | {name: item.data_ptr() for name, item in tensors.items()})

    def set(self, **tensors: Tensor) -> None:
        """Set more tensors."""
        for name, tensor in tensors.items():
            self.kept.append(tensor)
            setattr(self, name, tensor.data_ptr())

    def run(self, name: str, dtype: torch.dtype | None = None) -> None:
        """Call a kernel with this structure."""
        function(name, dtype)(ctypes.byref(self))


def fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Fields of a structure that have the same type."""
    return [(name, kind) for name in names.split()]


def pointers(names: str) -> list[tuple[str, Any]]:
    return fields(ctypes.c_void_p, names)


def num_slots(hubs: Tensor) -> int:
    """The number of partial results of the lists that are split."""
    return int(hubs[-1, 2]) if len(hubs) else 0


def row_ids(seed: Tensor | None) -> int | None:
    """The address of the rows' numbers for the mask (:func:`.dropout_masks.numbered`)."""
    if seed is None or seed.numel() == 1:
        return None
    return seed.data_ptr() + seed.element_size()
