"""Sparse features and features side by side against plain dense ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deepgat.ops import Columns, SparseMatrix, as_features, dropout, linear, take_rows, unit_rows

TOLERANCE = {"rtol": 0, "atol": 1e-12}


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    """[n, d] in double precision, mostly zeros; empty rows, empty columns, no rows."""
    n, d = draw(st.integers(0, 6)), draw(st.integers(1, 6))
    number = st.sampled_from([0.0, 0.0, 0.0, 1.0, -2.5, 0.125])
    rows = draw(st.lists(st.lists(number, min_size=d, max_size=d), min_size=n, max_size=n))
    return torch.tensor(rows, dtype=torch.double).reshape(n, d)


def to_dense(x: SparseMatrix) -> Tensor:
    return x.matmul(torch.eye(x.size(1), dtype=x.dtype))


@given(matrices(), st.sampled_from(["to_sparse_csr", "to_sparse_coo", "to_sparse_csc"]))
def test_products_equal_the_dense_ones(dense, layout):
    x = as_features(getattr(dense, layout)())
    assert isinstance(x, SparseMatrix)
    assert x.shape == tuple(dense.shape) == (x.size(0), x.size(1))
    assert x.dtype == torch.double
    right = torch.randn(dense.size(1), 3, dtype=torch.double)
    left = torch.randn(dense.size(0), 3, dtype=torch.double)
    torch.testing.assert_close(x.matmul(right), dense @ right, **TOLERANCE)
    torch.testing.assert_close(x.transposed_matmul(left), dense.t() @ left, **TOLERANCE)


@given(matrices())
def test_the_dense_form_and_unit_rows(dense):
    x = as_features(dense.to_sparse_csr())
    assert torch.equal(x.to_dense(), dense)
    torch.testing.assert_close(unit_rows(x).to_dense(), unit_rows(dense), **TOLERANCE)
    total = dense.abs().sum(1, keepdim=True)
    expected = torch.where(total > 0, dense / total, dense)
    torch.testing.assert_close(unit_rows(dense), expected, **TOLERANCE)


@given(matrices())
def test_linear_and_its_gradients_equal_the_dense_ones(dense):
    weight = torch.randn(4, dense.size(1), dtype=torch.double, requires_grad=True)
    bias = torch.randn(4, dtype=torch.double, requires_grad=True)
    direction = torch.randn(dense.size(0), 4, dtype=torch.double)
    results = []
    for x in (dense, as_features(dense.to_sparse_csr())):
        out = linear(x, weight, bias)
        results.append([out, *torch.autograd.grad(out, [weight, bias], direction)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **TOLERANCE)


def test_repeated_entries_of_coo_are_added():
    repeated = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 5.0], (2, 2))
    assert to_dense(SparseMatrix.from_torch(repeated)).tolist() == [[0, 3], [5, 0]]


def test_dense_features_pass_through():
    x = torch.randn(3, 2)
    assert as_features(x) is x
    sparse = as_features(x.to_sparse_csr())
    assert as_features(sparse) is sparse


def test_to_changes_the_numbers_and_keeps_the_places():
    dense = torch.tensor([[0.0, 1.5], [2.0, 0.0]])
    x = SparseMatrix.from_torch(dense.to_sparse_csr()).to(torch.float64)
    assert x.dtype == torch.float64
    assert x.to("cpu").device == torch.device("cpu")
    assert torch.equal(to_dense(x), dense.double())
    assert torch.equal(x.transposed_matmul(torch.eye(2).double()), dense.t().double())
    assert x.rows.entries.dtype == x.columns.entries.dtype == torch.int32


def test_dropout_of_sparse_features_keeps_zeros_and_scales_the_rest():
    dense = torch.rand(50, 40) * (torch.rand(50, 40) < 0.3)
    x = SparseMatrix.from_torch(dense.to_sparse_csr())
    dropped = to_dense(dropout(x, 0.75, training=True))
    gone = dropped == 0
    torch.testing.assert_close(dropped[~gone], 4 * dense[~gone])
    share = gone[dense != 0].double().mean()
    assert 0.65 < share < 0.85
    assert torch.equal(to_dense(x), dense), "the features themselves were changed"


def test_the_transpose_of_dropped_features_is_that_of_the_same_numbers():
    dense = torch.rand(8, 5) * (torch.rand(8, 5) < 0.5)
    dropped = dropout(SparseMatrix.from_torch(dense.to_sparse_csr()), 0.5, training=True)
    assert torch.equal(dropped.transposed_matmul(torch.eye(8)).t(), to_dense(dropped))


def sparse_and_columns() -> list:
    x = SparseMatrix.from_torch(torch.eye(3).to_sparse_csr())
    return [torch.ones(3, 3), x, Columns((x, torch.ones(3, 2)))]


@pytest.mark.parametrize("x", sparse_and_columns(), ids=["dense", "sparse", "columns"])
def test_dropout_is_nothing_outside_training_or_at_share_0(x):
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x


def test_columns_equal_one_wide_matrix():
    a = torch.randn(7, 4, dtype=torch.double) * (torch.rand(7, 4) < 0.5)
    b = torch.randn(7, 3, dtype=torch.double, requires_grad=True)
    weight = torch.randn(2, 7, dtype=torch.double, requires_grad=True)
    bias = torch.randn(2, dtype=torch.double, requires_grad=True)
    columns = Columns((as_features(a.to_sparse_csr()), b))
    assert (columns.size(0), columns.size(1)) == (7, 7)
    leaves = [weight, bias, b]
    results = []
    for x in (columns, torch.cat([a, b], 1)):
        out = linear(x, weight, bias)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for mine, dense in zip(*results, strict=True):
        torch.testing.assert_close(mine, dense, **TOLERANCE)


def test_dropout_of_columns_reaches_every_block():
    x = SparseMatrix.from_torch(torch.ones(20, 20).to_sparse_csr())
    sparse, dense = dropout(Columns((x, torch.ones(20, 20))), 0.5, training=True).blocks
    for block in (to_dense(sparse), dense):
        assert set(block.unique().tolist()) == {0.0, 2.0}


def test_the_same_sparse_input_gives_the_same_bits():
    dense = torch.randn(300, 80) * (torch.rand(300, 80) < 0.1)
    x = as_features(dense.to_sparse_csr())
    weight = torch.randn(16, 80, requires_grad=True)

    def run() -> list[Tensor]:
        out = linear(x, weight)
        return [out, *torch.autograd.grad(out.square().sum(), weight)]

    first = run()
    for _ in range(3):
        assert all(map(torch.equal, first, run()))


@pytest.mark.parametrize("rows", [[], [0], [2, 0, 2, 5], [0, 1, 2, 3, 4, 5]])
def test_some_rows(rows):
    dense = torch.randn(6, 4)
    dense[dense < 0.3] = 0
    dense[2] = 0
    index = torch.tensor(rows, dtype=torch.long)
    found = take_rows(as_features(dense.to_sparse_csr()), index)
    assert torch.equal(found.to_dense(), dense[index])
    assert torch.equal(take_rows(dense, index), dense[index])
    grad = torch.randn(len(rows), 3)
    torch.testing.assert_close(found.transposed_matmul(grad), dense[index].t() @ grad)
