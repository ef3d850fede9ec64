"""Triton kernels for GPUs; importing the modules registers them as the operators' CUDA kernels.

Triton comes with torch's builds for GPUs. Without it, the implementations in plain torch run.
"""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def available() -> bool:
    """Whether Triton is installed; registers the kernels if so."""
    if importlib.util.find_spec("triton") is None:
        return False
    from deepgat.ops.gpu import (  # noqa: F401  registers them
        attention,
        differences,
        matmul,
        norm,
        pairnorm,
    )

    return True
