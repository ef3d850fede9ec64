"""Chooses between an operator's kernels and its definition in plain torch."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from deepgat.errors import UserError, unknown_name
from deepgat.ops.cpu import kernels

BACKENDS = ("auto", "reference", "native", "triton")
KERNELS = {"cpu": "native", "cuda": "triton"}
"""The backend with kernels for each type of device."""
BUILT = {
    "cpu": kernels.available(),
    "cuda": importlib.util.find_spec("triton") is not None,
}
_HOW_TO_GET = {
    "cpu": (
        "install a C++ compiler with OpenMP, then deepgat again "
        "(pip install --force-reinstall --no-deps deepgat)"
    ),
    "cuda": "install triton (pip install triton), which torch's builds for GPUs include",
}
_chosen = "auto"  # a plain global: torch.compile can read it


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run operators with one backend: "reference" (plain torch), "native" (C++) or "triton".

    "auto", the default, is the fastest for the tensors' device: native on CPUs, Triton on GPUs.
    """
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    for device, backend in KERNELS.items():
        if name == backend and not BUILT[device]:
            raise UserError(f"the {name} backend is not available: {_HOW_TO_GET[device]}")
    global _chosen
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def current() -> str:
    """The backend selected with :func:`use_backend`; "auto" by default."""
    return _chosen


def kernels_run_on(device: str) -> bool:
    """Whether an operator runs its kernels on this type of device, rather than its definition."""
    if _chosen == "reference":
        return False
    if BUILT.get(device) and _chosen in ("auto", KERNELS[device]):
        return True
    if _chosen != "auto":
        raise UserError(f"the {_chosen} backend does not run on {device} tensors: choose auto")
    if device in _HOW_TO_GET and not torch.compiler.is_compiling():
        _warn_once(device)
    return False


@cache
def _warn_once(device: str) -> None:
    warnings.warn(
        f"deepgat runs its slow path on the {device}, because its fast kernels are missing: "
        f"{_HOW_TO_GET[device]}",
        stacklevel=4,
    )
