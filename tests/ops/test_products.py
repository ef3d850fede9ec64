"""Sparse products and dropout of entries: the CPU kernels against their definition."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deepgat.models import SYSTEMS, DeepGAT
from deepgat.ops import SparseMatrix, as_neighbors, matmul
from deepgat.ops.cpu import kernels

from graphs import random_edges

native_only = pytest.mark.skipif(
    not kernels.available(), reason="the native kernels are not built here: no compiler"
)
DTYPES = [torch.float64, torch.float32]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}


def sparse(n: int, d: int, share: float, dtype: torch.dtype) -> SparseMatrix:
    dense = torch.randn(n, d, dtype=dtype) * (torch.rand(n, d) < share)
    x = SparseMatrix.from_torch(dense.to_sparse_csr())
    return replace(x, values=x.values.clone())  # torch cannot trace a view of its sparse tensors


def arguments(x: SparseMatrix, dense: Tensor, transposed: bool, dropout: float) -> tuple:
    lists = (*x.columns, x.order) if transposed else (*x.rows, None)
    return (*lists, x.values, dense, torch.tensor([11]), dropout)


def assert_same_product(x: SparseMatrix, m: int, transposed: bool, dropout: float) -> None:
    dense = torch.randn(x.size(0 if transposed else 1), m, dtype=x.dtype)
    given = arguments(x, dense, transposed, dropout)
    found, expected = matmul.sparse_matmul(*given), matmul.define_sparse_matmul(*given)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[x.dtype])


@native_only
@given(
    n=st.integers(0, 9),
    d=st.integers(1, 9),
    m=st.integers(1, 150),
    share=st.sampled_from([0.0, 0.2, 1.0]),
    dtype=st.sampled_from(DTYPES),
    transposed=st.booleans(),
    dropout=st.sampled_from([0.0, 0.6]),
)
def test_any_product(n, d, m, share, dtype, transposed, dropout):
    """Empty rows, empty columns, no rows at all, any number of columns on the right."""
    assert_same_product(sparse(n, d, share, dtype), m, transposed, dropout)


@native_only
@pytest.mark.parametrize("dropout", [0.0, 0.6])
@pytest.mark.parametrize("m", [3, 20, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lists_that_are_cut(dtype, m, dropout):
    x = sparse(1300, 5, 0.9, dtype)  # columns of more entries than a piece has
    assert len(x.columns.hubs)
    assert_same_product(x, m, True, dropout)
    wide = sparse(5, 1300, 0.9, dtype)
    assert len(wide.rows.hubs)
    assert_same_product(wide, m, False, dropout)


@native_only
@given(
    n=st.integers(0, 9),
    m=st.integers(0, 40),
    dtype=st.sampled_from(DTYPES),
    dropout=st.sampled_from([0.1, 0.5, 0.9]),
    seed=st.integers(0, 2**31 - 2),
)
def test_dropped_entries_are_those_of_the_definition(n, m, dtype, dropout, seed):
    x, where = torch.randn(n, m, dtype=dtype), torch.tensor([seed])
    found = matmul.drop_entries(x, where, dropout)
    assert torch.equal(found, matmul.define_drop_entries(x, where, dropout))
    turned = x.t().contiguous().t()  # the mask follows the entry, not the memory
    assert torch.equal(matmul.drop_entries(turned, where, dropout), found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_other_types_run_the_definition(dtype):
    x = torch.randn(6, 5).to(dtype)
    found = matmul.drop_entries(x, torch.tensor([3]), 0.5)
    assert torch.equal(found, matmul.define_drop_entries(x, torch.tensor([3]), 0.5))


def test_the_gradient_of_dropped_entries_is_the_mask():
    x = torch.randn(7, 11, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: matmul.drop_entries(x, torch.tensor([3]), 0.5), x)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_product_is_registered_properly(transposed, dropout):
    x = sparse(6, 6, 0.5, torch.float64)
    given = arguments(x, torch.randn(6, 4, dtype=torch.float64), transposed, dropout)
    results = torch.library.opcheck(torch.ops.deepgat.sparse_matmul.default, given)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.slow
def test_dropping_entries_is_registered_properly():
    x = torch.randn(5, 9, dtype=torch.double, requires_grad=True)
    given = (x, torch.tensor([5]), 0.5)
    results = torch.library.opcheck(torch.ops.deepgat.drop_entries.default, given)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.slow
@native_only
def test_the_number_of_threads_changes_no_bit_of_a_training():
    """Twenty epochs of three layers, dropout everywhere, hubs in the graph and in the features."""
    n, labels = 900, torch.arange(900) % 3
    hub = torch.stack([torch.zeros(n, dtype=torch.long), torch.arange(n)])
    edges = torch.cat([random_edges(n, 2000), hub, hub.flip(0)], 1)
    neighbors, x = as_neighbors(edges, n), sparse(n, 12, 0.95, torch.float32)
    assert len(neighbors.hubs)
    assert len(x.columns.hubs)

    def train(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        model = DeepGAT(12, 8, 3, 3, **SYSTEMS["deepgat"].presets["authors"])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x, neighbors), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in model.parameters())]

    before = torch.get_num_threads()
    try:
        one, two = train(1), train(2)
    finally:
        torch.set_num_threads(before)
    assert one[0] != one[19], "nothing was learned"
    assert all(map(torch.equal, one, two))


@native_only
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_in_eager_mode_is_the_registered_operator(dtype, named):
    x = torch.randn(9, 5, dtype=dtype)[:, ::2].requires_grad_()
    seed = torch.tensor([7, *range(20, 29)]) if named else torch.tensor([7])
    grad = torch.randn(9, 3, dtype=dtype).t().contiguous().t()
    outs = [f(x, seed, 0.4) for f in (matmul.dropped, matmul.drop_entries)]
    assert "_Dropped" in type(outs[0].grad_fn).__name__
    assert torch.equal(*outs)
    assert 0 < outs[0].count_nonzero() < outs[0].numel()
    assert torch.equal(*(torch.autograd.grad(out, x, grad)[0] for out in outs))


def test_dropout_in_eager_mode_is_differentiable_twice():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    seed = torch.tensor([3])
    assert torch.autograd.gradgradcheck(lambda x: matmul.dropped(x, seed, 0.5) ** 3, x)
