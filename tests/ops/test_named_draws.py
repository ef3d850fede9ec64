"""Dropout on a part of a graph: its masks are rows of the masks of the whole."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deepgat.ops import (
    Additive,
    Neighbors,
    SparseMatrix,
    definition,
    dropout_masks,
    matmul,
)
from deepgat.ops import (
    kernel_attention as attention,
)
from deepgat.ops.cpu import attention as cpu_attention
from deepgat.ops.cpu import kernels
from deepgat.ops.cpu import matmul as cpu_matmul

from graphs import random_edges

gpu_attention = pytest.importorskip("deepgat.ops.gpu.attention")
from deepgat.ops.gpu import matmul as gpu_matmul  # noqa: E402

N, KEPT = 40, torch.tensor([3, 5, 8, 13, 21, 34])
SEED = torch.tensor([12345])
NAMED = dropout_masks.numbered(SEED, KEPT)
GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # else interpreted
needs_native = pytest.mark.skipif(not kernels.available(), reason="the kernels are not built")


def on_gpu(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The Triton kernel, given and giving tensors of the CPU."""

    def moved(item: Any, device: torch.device) -> Any:
        if isinstance(item, attention.Inputs):
            return attention.Inputs(*(moved(inner, device) for inner in item))
        if isinstance(item, list | tuple):
            return [moved(inner, device) for inner in item]
        return item.to(device) if isinstance(item, Tensor) else item

    return lambda *arguments: moved(kernel(*moved(arguments, GPU)), torch.device("cpu"))


def test_masks_of_rows_are_rows_of_masks():
    column = torch.arange(9)
    whole = dropout_masks.keep_entries(torch.arange(N).unsqueeze(1), column, 0.4, SEED)
    part = dropout_masks.keep_entries(torch.arange(len(KEPT)).unsqueeze(1), column, 0.4, NAMED)
    assert torch.equal(part, whole[KEPT])
    assert 0 < (part == 0).sum() < part.numel()
    target, source = torch.tensor([0, 1, 5]), torch.tensor([2, 1, 0])
    part = dropout_masks.keep_edges(target, source, 4, 0.4, NAMED)
    assert torch.equal(part, dropout_masks.keep_edges(KEPT[target], KEPT[source], 4, 0.4, SEED))


@pytest.mark.parametrize("width", [3, 8, 21])
@pytest.mark.parametrize(
    "drop",
    [
        matmul.define_drop_entries,
        pytest.param(cpu_matmul.drop_entries, marks=needs_native),
        on_gpu(gpu_matmul.drop_entries),
    ],
)
def test_dropped_rows(width, drop):
    x = torch.randn(N, width, dtype=torch.double)
    expected = matmul.define_drop_entries(x, SEED, 0.4)[KEPT]
    torch.testing.assert_close(drop(x[KEPT].contiguous(), NAMED, 0.4), expected)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "product",
    [
        matmul.define_sparse_matmul,
        pytest.param(cpu_matmul.sparse_matmul, marks=needs_native),
        on_gpu(gpu_matmul.sparse_matmul),
    ],
)
def test_products_with_dropped_sparse_rows(transposed, product):
    x = torch.randn(N, 30, dtype=torch.double) * (torch.rand(N, 30) < 0.5)
    mask = dropout_masks.keep_entries(torch.arange(N).unsqueeze(1), torch.arange(30), 0.4, SEED)
    dropped = (x * mask)[KEPT]
    part = SparseMatrix.from_torch(x[KEPT].to_sparse_csr())
    if transposed:
        lists = (*part.columns, part.order)
        dense = torch.randn(len(KEPT), 11, dtype=torch.double)
        expected = dropped.t() @ dense
    else:
        lists = (*part.rows, None)
        dense = torch.randn(30, 11, dtype=torch.double)
        expected = dropped @ dense
    found = product(*lists, part.values, dense, NAMED, 0.4)
    torch.testing.assert_close(found, expected)


def attention_kernels(backend: str):
    if backend == "triton":
        return on_gpu(gpu_attention.forward), on_gpu(gpu_attention.backward)
    return cpu_attention.forward, cpu_attention.backward


@pytest.mark.parametrize(
    ("backend", "heads"),
    [
        pytest.param("native", 1, marks=needs_native),
        pytest.param("native", 8, marks=needs_native),
        ("triton", 1),
        pytest.param("triton", 8, marks=pytest.mark.slow),
    ],
)
def test_attention_draws_by_the_nodes_numbers(backend, heads):
    """Forward and backward of the kernels against the definition, which the first tests pin."""
    n, dtype = len(KEPT), torch.double
    lists = Neighbors.from_edge_index(random_edges(n, 14, directed=True), n)
    value = torch.randn(n, heads, 5, dtype=dtype, requires_grad=True)
    query, key = (torch.randn(n, heads, dtype=dtype, requires_grad=True) for _ in range(2))
    grad = torch.randn(n, heads, 5, dtype=dtype)
    expected = definition.neighbor_attention(
        lists, value, Additive(query, key), dropout=0.4, seed=NAMED
    )
    wanted = torch.autograd.grad(expected, (query, key, value), grad)
    unnamed = definition.neighbor_attention(
        lists, value, Additive(query, key), dropout=0.4, seed=SEED
    )
    assert not torch.allclose(expected, unnamed)
    forward, backward = attention_kernels(backend)
    tensors = [getattr(lists, name) for name in attention.LISTS]
    q, k, v = query.detach().unsqueeze(-1), key.detach().unsqueeze(-1), value.detach()
    plain = (attention.ADDITIVE, attention.AS_IS, 1.0, 0.2, False, False, lists.symmetric, 0.4)
    inputs = attention.Inputs(tensors, q, k, v, None, NAMED, *plain)
    out, log_sum = forward(inputs)
    torch.testing.assert_close(out, expected.detach())
    found = backward(grad, out, log_sum, inputs, True, False)
    for a, b in zip(found, wanted, strict=False):
        torch.testing.assert_close(a.reshape(b.shape), b)
