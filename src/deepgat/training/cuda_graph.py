"""A step recorded once as a CUDA graph and replayed: one launch instead of hundreds."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
WARM_UP = 3
"""Calls that run as they are before one is recorded: kernels compile, libraries plan."""


class Recorded(Generic[T]):
    """A function without arguments that always works on the same tensors.

    Its first calls run it; then it is recorded, and every later call replays the recording and
    returns the very same objects, whose tensors hold the new numbers. Random numbers go on as they
    would have without recording. ``enabled=False`` just calls the function.
    """

    def __init__(self, function: Callable[[], T], enabled: bool) -> None:
        self.function = function
        self.enabled = enabled
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: T

    def __call__(self) -> T:
        if not self.enabled:
            return self.function()
        self.calls += 1
        if self.calls <= WARM_UP:
            return self._aside()
        if self.graph is None and not self._record():
            return self.function()
        assert self.graph is not None
        self.graph.replay()
        return self.result

    def _aside(self) -> T:
        """Run the function on a stream of its own, as recording will."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.function()
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def release(self) -> None:
        """Free the recording and the memory it works in."""
        if self.graph is not None:
            del self.result
            self.graph.reset()
            self.graph = None
        self.enabled = False

    def _record(self) -> bool:
        graph = torch.cuda.CUDAGraph()
        # A recording that fails leaves torch's generator believing that it is still recorded.
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        try:
            with _no_garbage_collection(), torch.cuda.graph(graph):
                self.result = self.function()
        except RuntimeError as error:
            generator.graphsafe_set_state(before)
            self.enabled = False
            warnings.warn(
                f"this model cannot be recorded as a CUDA graph, so its steps stay slow: {error}",
                stacklevel=3,
            )
            return False
        self.graph = graph
        return True


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Freeing an old recording in the midst of a new one would spoil that."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
