"""The kernels for GPUs, in Triton; :func:`register` makes them the CUDA kernels of the operators.

Triton comes with torch's builds for GPUs. Where it is missing, the definitions in plain torch run.
"""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def available() -> bool:
    """Whether Triton is there and its kernels could be registered."""
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
