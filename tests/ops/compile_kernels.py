"""Compile every Triton kernel for a GPU of today, on a machine without one; prints their names.

The interpreter, which tests the numbers there, takes what the compiler would refuse. Launches are
made by the library's own code, on tensors of the CPU; what would run is compiled to machine code
and left at that. Run by test_gpu_compilation.py, as a process of its own.
"""

import os
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from deepgat.ops.attention_operator import (
    ADDITIVE,
    AS_IS,
    DOT,
    LISTS,
    NONE,
    SIGMOID,
    SOFTMAX,
    Inputs,
)
from deepgat.ops.differences import BACK, BOTH, THERE, VALUE
from deepgat.ops.differences import LISTS as DIFFERENCE_LISTS
from deepgat.ops.gpu import (
    additive_score,
    attention,
    attention_kernels,
    differences,
    matmul,
    norm,
)
from deepgat.ops.lists import split_lists
from deepgat.ops.neighbors import Neighbors

HOPPER = GPUTarget("cuda", 90, 32)
KERNELS = (additive_score, attention_kernels, differences, matmul, norm)
N, HUB = 3000, 2500

compiled: set[JITFunction] = set()
launch = JITFunction.run


def compile_only(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    launch(kernel, *args, grid=grid, warmup=True, **options)
    compiled.add(kernel)


def neighbors(directed: bool) -> Neighbors:
    """A node that all hear, so that its list is cut, and some that hear no one."""
    edges = torch.stack([torch.arange(1, HUB), torch.zeros(HUB - 1, dtype=torch.long)])
    edges = edges if directed else torch.cat([edges, edges.flip(0)], 1)
    return Neighbors.from_edge_index(edges, N)


ATTENTION = {
    "gcn": {"kind": NONE, "symmetric": True},
    "gcn, dropped edges": {"kind": NONE, "symmetric": True, "bias": True, "directed": True},
    "sage": {"kind": NONE, "bias": True},
    "deepgat": {"kind": DOT, "activation": SOFTMAX, "shared": True, "dropout": 0.5},
    "deepgat of several labels": {"kind": DOT, "activation": SIGMOID, "shared": True,
                                  "directed": True},
    "deep": {"kind": DOT, "activation": SOFTMAX, "shared": True, "symmetric": True},
    "gat": {"kind": ADDITIVE, "dropout": 0.5, "named": True},
    "gat, directed": {"kind": ADDITIVE, "bias": True, "directed": True},
    "query and key": {"kind": DOT, "symmetric": True, "bias": True},
}  # fmt: skip


def compile_attention(
    dtype: torch.dtype, kind: int, activation: int = AS_IS, symmetric: bool = False,
    shared: bool = False, directed: bool = False, bias: bool = False, dropout: float = 0.0,
    named: bool = False, heads: int = 8, channels: int = 8,
) -> None:  # fmt: skip
    near = neighbors(directed)
    lists = [getattr(near, name) for name in LISTS]
    value = torch.zeros(N, heads, channels, dtype=dtype)
    width = {NONE: 0, DOT: 7, ADDITIVE: 1}[kind]
    query, key = (value.new_zeros(N, heads, width) for _ in range(2))
    inputs = Inputs(
        lists, query, query if shared else key, value,
        value.new_zeros(near.num_edges, heads) if bias else None,
        torch.zeros(N + 1 if named else 1, dtype=torch.long), kind, activation, 0.5, 0.2,
        symmetric, shared, not directed, dropout,
    )  # fmt: skip
    out, log_sum = attention.forward(inputs)
    attention.backward(torch.zeros_like(out), out, log_sum, inputs, kind != NONE, bias)


def compile_others(x: Tensor, powers: Sequence[float] = (2.5,)) -> None:
    """Those that take a matrix [n, m], and lists."""
    m = x.size(1)
    weight, seed, named = x.new_zeros(m), torch.zeros(1).long(), torch.zeros(N + 1).long()
    y = norm.layer_norm_elu(x, weight, weight, 1e-5)
    norm.layer_norm_elu_backward(y, x, weight, weight, 1e-5)
    near = neighbors(directed=True)
    ptr, index, values = near.ptr, near.source, x.new_zeros(near.num_edges)
    pieces, hubs = split_lists(ptr)
    for position, drawn, dropout in ((None, None, 0.0), (index, seed, 0.5), (None, named, 0.5)):
        matmul.sparse_matmul(ptr, index, pieces, hubs, position, values, x, drawn, dropout)
    for drawn in (seed, named):
        matmul.drop_entries(x, drawn, 0.5)
    of_heads, weight = x.unsqueeze(1), x.new_zeros(1, m)
    products = additive_score.forward(of_heads, weight, weight)
    additive_score.backward(of_heads, weight, weight, *products)
    source, pieces, hubs, *_ = (getattr(near, name) for name in DIFFERENCE_LISTS)
    for kind in (VALUE, THERE, BACK, BOTH):
        for power in powers:
            differences.run_pass(kind, source, pieces, hubs, x, x, power)


def public(module: ModuleType) -> set[JITFunction]:
    found = vars(module).items()
    return {f for name, f in found if isinstance(f, JITFunction) and not name.startswith("_")
            and f.fn.__module__ == module.__name__}  # fmt: skip


def main() -> None:
    JITFunction.run = compile_only
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: HOPPER,
            get_current_device=lambda: 0,
            get_current_stream=lambda device=None: 0,
        )
    )
    for settings in ATTENTION.values():
        compile_attention(torch.float32, **settings)
    compile_attention(torch.float32, NONE, symmetric=True, heads=1, channels=64)
    for dtype in (torch.bfloat16, torch.float64):
        compile_attention(dtype, **ATTENTION["deep"])
        compile_attention(dtype, **ATTENTION["gat"])
    compile_others(torch.zeros(N, 70), powers=(1.0, 2.5, 3.3))
    for x in (torch.zeros(N, 70).bfloat16(), torch.zeros(N, 70).double(), torch.zeros(N, 1)):
        compile_others(x)
    missing = set[JITFunction]().union(*map(public, KERNELS)) - compiled
    assert not missing, f"not compiled: {sorted(kernel.__name__ for kernel in missing)}"
    print(*sorted(kernel.__name__ for kernel in compiled))


if __name__ == "__main__":
    main()
