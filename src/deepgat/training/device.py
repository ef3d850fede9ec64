"""The device of a training run, its precision and its random numbers."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from deepgat.errors import UserError


def choose_device(name: str) -> torch.device:
    """The device behind a name; "auto" is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a "meta" device has no numbers to give
    except (RuntimeError, AssertionError, ImportError) as error:
        raise UserError(
            f"the device {name!r} cannot be used here: choose auto, cpu or cuda"
        ) from error
    return device


def lacks_memory(error: BaseException) -> bool:
    """Whether the error means that a GPU's memory is full, also where a library raised it."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    signs = ("CUDA out of memory", "CUDA error: out of memory", "ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def out_of_memory(error: BaseException) -> str:
    """The error as one sentence for a user."""
    wanted = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    size = f" ({wanted[1]} more were asked for)" if wanted else ""
    return (
        f"the memory of the GPU is full{size}: let fewer programs or workers share it, train in "
        "batches (batches=clusters), or use the CPU (device=cpu)"
    )


def autocast(precision: str, device: torch.device) -> Any:
    """bfloat16 where the settings ask for it and the device is a GPU."""
    wanted = precision == "bf16" and device.type == "cuda"
    # its cache of cast weights would outlive a recorded step
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=wanted, cache_enabled=False)


SMALL = 2_000
"""Nodes and edges of a graph up to which one thread is used."""


@contextmanager
def few_threads(size: int, device: torch.device) -> Iterator[None]:
    """Uses one CPU thread for small graphs (``size``: nodes and edges).

    A second thread gains at most a tenth there, and costs time on a busy machine. Results do not
    depend on the number of threads.
    """
    before = torch.get_num_threads()
    few = device.type == "cpu" and size <= SMALL and before > 1
    if few:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if few:
            torch.set_num_threads(before)


_one_at_a_time = threading.RLock()


def _new_lock() -> None:
    """A thread that held the lock does not exist in a forked process."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


@contextmanager
def own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Seed everything inside, and leave the caller's random numbers as they were.

    torch has one generator per process, so threads wait here for each other.
    """
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else []
    with _one_at_a_time, torch.random.fork_rng(devices=devices):
        if device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds every GPU too
        else:
            torch.manual_seed(seed)
        yield
