"""Repeated launches are those that Triton would make, shown on a machine without a GPU.

Triton's own specialisation of the arguments is computed for every launch; nothing is compiled or
run. A launcher must repeat a kernel only where that specialisation is the one it was prepared for,
and with the arguments in Triton's order. Run by test_gpu_compilation.py, as a process of its own.
"""

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported

import torch
from torch import Tensor
from triton.runtime import JITFunction, driver

from deepgat import ops
from deepgat.ops import Additive, ClassAgreement, DotProduct, Neighbors, Uniform
from deepgat.ops import additive_score as score_operators
from deepgat.ops import kernel_attention as operators
from deepgat.ops.gpu import additive_score, attention, prepared

from ops.compile_kernels import HOPPER

STREAM = 7
now: list[tuple[Any, ...]] = []
"""Tensors, numbers and settings of the launch that is being made."""
made = {"prepared": 0, "repeated": 0}


def specialisation(kernel: JITFunction, args: Sequence[Any], options: dict[str, Any]) -> str:
    binder = kernel.device_caches[0][-1]
    return str(binder(*args, **options, debug=False)[1:])


def prepare(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    """In the place of ``JITFunction.run``: a compiled kernel that checks how it is repeated."""
    expected = specialisation(kernel, args, options)
    made["prepared"] += 1

    def run(x: int, y: int, z: int, stream: int, function: str, packed: str, *rest: Any) -> None:
        assert (stream, function, packed, rest[:3]) == (STREAM, "function", "packed", (None,) * 3)
        assert min(x, y) > 0
        assert z == 1
        tensors, numbers = now[-1]
        given = rest[3:]
        assert list(given[: len(tensors)]) == [tensor.data_ptr() for tensor in tensors]
        assert given[len(tensors) : len(tensors) + len(numbers)] == numbers
        assert len(given) == len(kernel.arg_names)
        repeated = (*tensors, *given[len(tensors) :])
        assert specialisation(kernel, repeated, options) == expected, kernel.__name__
        made["repeated"] += 1

    return SimpleNamespace(
        run=run, function="function", packed_metadata="packed",
        metadata=SimpleNamespace(target=HOPPER),
    )  # fmt: skip


def remember(launch: Any) -> Any:
    def call(self: Any, grid: Any, stream: Any, tensors: Any, *numbers: int) -> None:
        now.append((tensors, numbers))
        launch(self, grid, stream, tensors, *numbers)

    return call


def placed(shift: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros at a multiple of 64 bytes, plus ``shift`` numbers."""
    size = torch.Size(shape).numel()
    whole = torch.zeros(size + 64, dtype=dtype)
    first = -whole.data_ptr() % 64 // whole.element_size() + shift
    return whole[first : first + size].view(shape).requires_grad_()


def main() -> None:
    JITFunction.run = prepare
    prepared.Launcher.__call__ = remember(prepared.Launcher.__call__)  # type: ignore[method-assign]
    for module in (attention, additive_score):
        module.current_stream = lambda tensor: STREAM  # type: ignore[attr-defined]
    operators.KERNELS["cpu"] = operators.KERNELS["cuda"]
    score_operators.KERNELS["cpu"] = score_operators.KERNELS["cuda"]
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: HOPPER,
            get_current_device=lambda: 0,
            get_current_stream=lambda device=None: STREAM,
        )
    )
    for n in (1, 16, 17, 600):
        ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
        star = torch.stack([torch.arange(n), torch.zeros(n).long()])
        for edges in (ring, torch.cat([star, star.flip(0)], 1)):
            near = Neighbors.from_edge_index(edges, n)
            for shift in (0, 1, 4, 0):
                for dtype in (torch.float32, torch.float64, torch.bfloat16):
                    value, query, key = (placed(shift, n, 4, 8, dtype=dtype) for _ in range(3))
                    weights = [placed(0, 4, 8, dtype=dtype) for _ in range(2)]
                    forms = (
                        ClassAgreement(placed(0, n, 4, 3, dtype=dtype), 0.5),
                        Additive(*ops.head_products(value, *weights)),
                        DotProduct(query, key),
                        DotProduct(query, query),
                        Uniform(),
                    )
                    for form in forms:
                        for way in ("row", "symmetric"):
                            for dropout in (0.0, 0.5):
                                out = ops.neighbor_attention(near, value, form, way, dropout)
                                out.sum().backward(retain_graph=True)
    assert made["repeated"] > made["prepared"] > 0, made
    print(made["repeated"])


if __name__ == "__main__":
    main()
