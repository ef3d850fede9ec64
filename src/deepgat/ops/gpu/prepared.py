"""Triton kernels that are launched again and again: bound and specialised once.

``kernel[grid](…)`` binds the arguments, looks at every one of them and searches for the compiled
kernel, which takes longer than most kernels run. A :class:`Launcher` remembers the compiled kernel
for what Triton specialises on and calls it directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import triton
from torch import Tensor
from triton.runtime import JITFunction

from deepgat.ops.gpu import recording

P = ParamSpec("P")
R = TypeVar("R")
_LARGEST_INT32 = 2**31 - 1
_runtime = getattr(getattr(triton, "knobs", None), "runtime", None)
"""Triton's settings. Versions without them launch compiled kernels with other arguments."""


class Launcher:
    """A kernel with fixed settings.

    The parameters of the kernel are tensors, then integers that may change from launch to launch,
    then those of ``settings``. A launcher serves one choice of dtypes on one device, so the key
    under which it is kept must contain both. It handles different alignments and integers.
    """

    __slots__ = ("_compiled", "_kernel", "_options", "_settings")

    def __init__(self, kernel: Any, settings: Mapping[str, Any], **options: Any) -> None:
        names = kernel.arg_names[-len(settings) :]
        assert set(names) == settings.keys(), sorted(settings.keys() ^ set(names))
        self._kernel = kernel
        self._settings = tuple(settings[name] for name in names)
        self._options = options
        self._compiled: dict[Any, tuple[Any, ...]] = {}

    def __call__(
        self, grid: tuple[int, int], stream: int | None, tensors: Sequence[Tensor], *numbers: int
    ) -> None:
        """Launch on ``stream``, the current one of the current device; None: not on a GPU."""
        pointers = [tensor.data_ptr() for tensor in tensors]
        bits = 0
        for pointer in pointers:
            bits |= pointer
        key: Any = 0 if not bits & 15 else tuple(pointer & 15 == 0 for pointer in pointers)
        if numbers:
            key = (key, *map(_specialisation, numbers))
        found = self._compiled.get(key)
        if found is not None and stream is not None and can_repeat():
            compiled, run, function, metadata = found
            run(
                *grid, 1, stream, function, metadata, None, None, None,
                *pointers, *numbers, *self._settings,
            )  # fmt: skip
        else:
            compiled = self._kernel[grid](*tensors, *numbers, *self._settings, **self._options)
            if stream is not None and _is_known(self._kernel, compiled):
                handles = compiled.run, compiled.function, compiled.packed_metadata
                self._compiled[key] = compiled, *handles
        recorder = recording.current()
        if recorder is not None:
            recorder.add(compiled, grid, (*tensors, *numbers, *self._settings))


def _specialisation(number: int) -> int:
    """What Triton compiles for: its type, whether it is 1, whether 16 divides it."""
    if number > _LARGEST_INT32:
        return 2 if number % 16 else 3
    return 1 if number == 1 else 0 if number % 16 else 16


def can_repeat() -> bool:
    """Whether no profiler hooks into launches."""
    return _runtime is not None and not _calls(_runtime.launch_enter_hook)


def _calls(hook: Any) -> bool:
    return hook is not None and bool(getattr(hook, "calls", True))


def _is_known(kernel: Any, compiled: Any) -> bool:
    """Whether this version of Triton launches compiled kernels in the way known here."""
    if _runtime is None or not hasattr(_runtime, "launch_enter_hook"):
        return False
    target = getattr(getattr(compiled, "metadata", None), "target", None)
    return isinstance(kernel, JITFunction) and getattr(target, "backend", None) == "cuda"


def on_device_of(run: Callable[P, R]) -> Callable[P, R]:
    """Run a function with the device of its first tensor as the current one."""

    @wraps(run)
    def there(*args: P.args, **kwargs: P.kwargs) -> R:
        device = args[0].device  # type: ignore[attr-defined]
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return run(*args, **kwargs)
        with torch.cuda.device(device):
            return run(*args, **kwargs)

    return there


def current_stream(tensor: Tensor) -> int | None:
    """The current CUDA stream of the tensor's device; None on other devices."""
    if tensor.device.type != "cuda":
        return None
    return int(torch._C._cuda_getCurrentRawStream(tensor.device.index))
