"""Triton kernels for GPUs; importing the modules registers them as the operators' CUDA kernels.

Triton comes with torch's builds for GPUs. Without it, the implementations in plain torch run.
"""


def register() -> None:
    """Register the kernels."""
    from deepgat.ops.gpu import (  # noqa: F401
        additive_score,
        attention,
        differences,
        fused_layer,
        matmul,
        norm,
    )
