"""Records the kernels that a call launches, for ``fused_layer.cpp`` to repeat on other memory."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

NUMBER = -1
"""In place of a buffer: the argument is a number."""
_PACKED = {
    "i1": "<?", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q",
    "u1": "<?", "u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "fp32": "<f", "fp64": "<d",
}  # fmt: skip
"""How a kernel takes a number, by the name of its type in Triton."""
WARP = 32

Argument = tuple[int, int]
"""(number of the buffer, offset in bytes), or (:data:`NUMBER`, its eight bytes as an integer)."""
Made = tuple[list[int], torch.dtype]
"""Shape and dtype of a buffer."""
Launch = tuple[int, int, int, int, int, list[Argument]]
"""(address of the kernel, grid, grid, threads of a block, bytes of shared memory, arguments)."""


class CannotRecordError(Exception):
    """This version of Triton, or this kernel, is launched in an unknown way."""


class Recorder:
    """The launches of one call.

    Args:
        given: the tensors that the call starts from; one of them is a buffer of the program.
        constants: tensors whose addresses never change.
    """

    def __init__(self, given: Sequence[Tensor | None], constants: Sequence[Tensor]) -> None:
        self._given = list(given)
        self._constants = {_storage(tensor) for tensor in constants}
        self._launches: list[tuple[Any, tuple[int, int], list[Any]]] = []

    def add(self, compiled: Any, grid: tuple[int, int], arguments: Sequence[Any]) -> None:
        """A launch of a compiled kernel."""
        self._launches.append((compiled, grid, list(arguments)))

    def program(self, results: Sequence[Tensor]) -> tuple[list[Made], list[Launch]]:
        """The buffers to make and the launches.

        The results come first among the buffers that the program makes, then all else that the
        kernels wrote to.
        """
        named = [*self._given, *results]
        exact = {item.data_ptr(): i for i, item in enumerate(named) if item is not None}
        places = {
            _storage(item): (i, item.data_ptr()) for i, item in enumerate(named) if item is not None
        }
        made: list[Made] = [(list(item.shape), item.dtype) for item in results]

        def place(tensor: Tensor) -> Argument:
            address, storage = tensor.data_ptr(), _storage(tensor)
            if storage in self._constants:
                return NUMBER, address
            if address in exact:
                return exact[address], 0
            if storage not in places:
                places[storage] = len(self._given) + len(made), storage
                made.append(([tensor.untyped_storage().nbytes()], torch.uint8))
            slot, start = places[storage]
            return slot, address - start

        launches = []
        for compiled, grid, values in self._launches:
            arguments = [
                place(value) if isinstance(value, Tensor) else (NUMBER, _bits(kind, value))
                for kind, value in _parameters(compiled, values)
            ]
            data = compiled.metadata
            launches.append(
                (compiled.function, *grid, WARP * data.num_warps, data.shared, arguments)
            )
        return made, launches


def _bits(kind: str, number: float) -> int:
    packed = struct.pack(_PACKED[kind], number).ljust(8, b"\0")
    return int.from_bytes(packed, "little", signed=True)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _parameters(compiled: Any, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(type, value) of what the compiled kernel takes: all arguments but its constants."""
    data = compiled.metadata
    if (
        data.num_ctas != 1
        or any(getattr(data, name, 0) for name in ("global_scratch_size", "profile_scratch_size"))
        or any(getattr(data, name, False) for name in ("launch_cooperative_grid", "launch_pdl"))
    ):
        raise CannotRecordError
    kinds = list(compiled.src.signature.values())
    if len(kinds) != len(values):
        raise CannotRecordError
    for kind, value in _flat(kinds, values):
        if kind == "constexpr":
            continue
        if kind not in _PACKED and not (kind.startswith("*") and isinstance(value, Tensor)):
            raise CannotRecordError
        yield kind, value


def _flat(kinds: Sequence[Any], values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, tuple):
            yield from _flat(kind, value)
        else:
            yield kind, value


_thread = threading.local()


@contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Record the launches of this thread with ``recorder``."""
    _thread.recorder = recorder
    try:
        yield
    finally:
        del _thread.recorder


def current() -> Recorder | None:
    """The recorder of this thread; None if its launches are not recorded."""
    return getattr(_thread, "recorder", None)
