"""The operators on the CPU, in C++ with OpenMP."""


def register() -> None:
    """Register the kernels, if they are built."""
    from deepgat.ops.cpu import attention, differences, matmul  # noqa: F401
