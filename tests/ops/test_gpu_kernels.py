"""The Triton kernels against the definition: on a GPU, or interpreted where there is none.

Interpreted they are slow, so the graphs here are tiny; tests/test_gpu.py has the large ones.
"""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch_geometric.nn import PairNorm as WholePairNorm

from deepgat import ops
from deepgat.nn.norms import PairNorm
from deepgat.ops import (
    additive_score,
    definition,
    dropout_masks,
    joint_product,
    matmul,
)
from deepgat.ops import (
    kernel_attention as attention,
)
from deepgat.ops.lists import Lists, split_lists
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.score_forms import ClassAgreement, Normalization
from systems import pair_norm

from graphs import graphs, random_edges
from ops.test_backends import FORMS, KINK, make_form

pytest.importorskip("triton", reason="Triton is not installed here")

from deepgat.ops.gpu import additive_score as gpu_score
from deepgat.ops.gpu import attention as gpu
from deepgat.ops.gpu import launch
from deepgat.ops.gpu import matmul as gpu_matmul
from deepgat.ops.gpu import norm as gpu_norm

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


@pytest.fixture(autouse=True, scope="module")
def triton_kernels() -> Iterator[None]:
    """The Triton kernels on any device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(attention.KERNELS, DEVICE.type, attention.KERNELS["cuda"])
        yield


def lists_of(n: int, count: int, directed: bool, longest: int = 512) -> Neighbors:
    edge_index = random_edges(n, count, directed=directed) if count else torch.zeros(2, 0).long()
    return cut(Neighbors.from_edge_index(edge_index, n), longest)


def cut(near: Neighbors, longest: int) -> Neighbors:
    """The lists on the device, in pieces as short as asked for, so that small graphs have hubs."""
    pieces, hubs = split_lists(near.ptr, longest)
    source_pieces, source_hubs = split_lists(near.source_ptr, longest)
    near = replace(
        near, pieces=pieces, hubs=hubs, source_pieces=source_pieces, source_hubs=source_hubs
    )
    return near.to(DEVICE)


def assert_same(
    near: Neighbors,
    name: str,
    sizes: tuple[int, int, int],
    normalization: Normalization,
    dropout: float = 0.0,
    with_bias: bool = False,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-10,
) -> None:
    heads, width, channels = sizes
    with DEVICE:
        form, leaves = make_form(name, near, heads, width, dtype)
        value = torch.randn(near.num_nodes, heads, channels, dtype=dtype, requires_grad=True)
        upstream, seed = torch.randn_like(value), torch.tensor([77])
        bias = torch.randn(near.num_edges, 1, dtype=dtype, requires_grad=True)
    leaves = [value, *leaves, *([bias] if with_bias else [])]
    found = []
    for run in (definition.neighbor_attention, attention.kernel_attention):
        out = run(near, value, form, normalization, dropout, seed, bias if with_bias else None)
        found.append([out, *torch.autograd.grad(out, leaves, upstream)])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", [form for form in FORMS if form != KINK])
def test_one_of_every_form(name):
    """A directed graph with hubs, dropout and a bias; both normalisations in turn."""
    normalization = list(Normalization)[FORMS.index(name) % 2]
    assert_same(lists_of(3, 4, True, longest=2), name, (2, 3, 2), normalization, 0.5, True)


@pytest.mark.slow
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("normalization", Normalization)
@pytest.mark.parametrize("name", FORMS)
def test_every_form(name, normalization, directed):
    near = lists_of(5, 8, directed)
    assert_same(near, name, (3, 5, 7), normalization)


@pytest.mark.parametrize(
    "directed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["undirected", "directed"]
)
@pytest.mark.parametrize(
    "normalization",
    [Normalization.ROW, pytest.param(Normalization.SYMMETRIC, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "name",
    [
        "classes",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("dot", "additive", "uniform")),
    ],
)
def test_hubs_dropout_and_bias_together(name, normalization, directed):
    near = lists_of(5, 12, directed, longest=2)
    assert near.hubs.size(0)
    assert_same(near, name, (2, 3, 4), normalization, dropout=0.5, with_bias=True)


@pytest.mark.slow
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("normalization", Normalization)
@pytest.mark.parametrize("name", ["dot", "dot shared", "classes", "additive", "uniform"])
def test_edges_of_weight_0_are_as_good_as_none(name, normalization, directed):
    """Also where a whole piece of a hub's list has no others."""
    near = lists_of(7, 20, directed, longest=2)
    keep = near.source == near.target
    keep |= (near.source + near.target) % 3 == 0
    bias = torch.zeros(near.num_edges, 1, device=DEVICE).masked_fill(~keep[:, None], -torch.inf)
    assert any(bias[begin:end].isinf().all() for _, begin, end, slot in near.pieces if slot >= 0)
    with DEVICE:
        form, leaves = make_form(name, near, 2, 3, torch.float64)
        value = torch.randn(7, 2, 4, dtype=torch.float64, requires_grad=True)
        upstream, seed = torch.randn_like(value), torch.tensor([77])
    leaves = [value, *leaves]
    left = near.select(keep, near.symmetric)
    expected = definition.neighbor_attention(left, value, form, normalization, 0.5, seed)
    found = attention.kernel_attention(near, value, form, normalization, 0.5, seed, bias)
    results = [[out, *torch.autograd.grad(out, leaves, upstream)] for out in (expected, found)]
    for cut, masked in zip(*results, strict=True):
        torch.testing.assert_close(masked, cut, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1),
        *(
            pytest.param(sizes, marks=pytest.mark.slow)
            for sizes in ((1, 15, 64), (8, 5, 8), (9, 2, 3), (3, 121, 2))
        ),
    ],
)
def test_ragged_sizes(sizes, monkeypatch):
    monkeypatch.setattr(launch, "LARGEST", 256)  # so that heads are split over programs
    assert_same(lists_of(4, 5, False), "dot shared", sizes, Normalization.ROW)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "additive"])
def test_bfloat16_is_as_exact_as_its_storage(name):
    near = lists_of(6, 12, False)
    assert_same(near, name, (2, 5, 8), Normalization.ROW, dtype=torch.bfloat16, tolerance=0.1)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("DEEPGAT_EXAMPLES", 500 if ON_GPU else 12)))
@given(
    graph=graphs(),
    name=st.sampled_from(FORMS),
    normalization=st.sampled_from(Normalization),
    dropout=st.sampled_from([0.0, 0.6]),
    longest=st.sampled_from([2, 512]),
)
def test_any_graph(graph, name, normalization, dropout, longest):
    n, edge_index = graph
    near = Neighbors.from_edge_index(edge_index, n)
    assert_same(cut(near, longest), name, (3, 2, 4), normalization, dropout)


def test_no_nodes_and_one():
    for n in (0, 1):
        assert_same(lists_of(n, 0, False), "classes", (2, 3, 4), Normalization.ROW)


def random_matrix(rows: int, columns: int, longest: int):
    from deepgat.ops import SparseMatrix

    dense = torch.randn(rows, columns, dtype=torch.float64)
    dense *= torch.rand(rows, columns) < 0.4
    dense[0] = 0
    x = SparseMatrix.from_torch(dense.to_sparse_csr())
    rows, columns = (Lists.split(*lists[:2], longest) for lists in (x.rows, x.columns))
    return replace(x, rows=rows, columns=columns).to(DEVICE)


@pytest.mark.parametrize(
    ("longest", "dropout"), [(2, 0.5), pytest.param(512, 0.0, marks=pytest.mark.slow)]
)
def test_sparse_products(dropout, longest):
    x = random_matrix(7, 9, longest)
    seed = torch.tensor([5], device=DEVICE)
    for transposed in (False, True):
        lists = (*x.columns, x.order) if transposed else (*x.rows, None)
        dense = torch.randn(x.size(0 if transposed else 1), 11, device=DEVICE, dtype=torch.float64)
        arguments = (*lists, x.values, dense, seed, dropout)
        expected = matmul.define_sparse_matmul(*arguments)
        found = gpu_matmul.sparse_matmul(*arguments)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    "shape", [(37, 5), (1, 1), (7, 1), (20, 64), (3, 1025), (2, 2500), (5, 0), (0, 5), (0, 0)]
)
def test_drop_entries(shape, named):
    x = torch.randn(shape, device=DEVICE, dtype=torch.float64)
    seed = torch.tensor([9], device=DEVICE)
    if named:
        seed = dropout_masks.numbered(seed, torch.randperm(1000, device=DEVICE)[: shape[0]])
    row, column = (torch.arange(count, device=DEVICE) for count in shape)
    mask = dropout_masks.keep_entries(row.unsqueeze(1), column, 0.3, seed)
    torch.testing.assert_close(gpu_matmul.drop_entries(x, seed, 0.3), x * mask, rtol=0, atol=1e-12)


def test_entries_of_bfloat16_are_dropped_by_the_same_mask():
    x = torch.ones(9, 70, device=DEVICE)
    seed = torch.tensor([9], device=DEVICE)
    expected = gpu_matmul.drop_entries(x, seed, 0.5)
    assert torch.equal(gpu_matmul.drop_entries(x.bfloat16(), seed, 0.5).float(), expected)
    assert 0 < expected.count_nonzero() < expected.numel()


@pytest.mark.parametrize(
    ("heads", "longest"), [(3, 2), pytest.param(1, 512, marks=pytest.mark.slow)]
)
def test_equal_scores_are_counted(heads, longest):
    near = lists_of(9, 40, True, longest)
    value = torch.randn(9, heads, 2, dtype=torch.float64, device=DEVICE)
    none = value.new_empty(0)
    seed = torch.tensor([0], device=DEVICE)
    lists = [getattr(near, name) for name in attention.LISTS]
    inputs = (none, none, value, None, seed, attention.NONE, attention.AS_IS, 1.0, 0.0)
    _, log_sum = gpu.forward(attention.Inputs(lists, *inputs, True, False, False, 0.0))
    expected = near.ptr.diff().double().log().unsqueeze(1).expand(-1, heads)
    torch.testing.assert_close(log_sum, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (70, 64), (4, 0), (0, 4)])
def test_layer_norm_with_elu(shape):
    with DEVICE:
        x, grad = torch.randn(2, *shape, dtype=torch.float64)
        weight, bias = torch.randn(2, shape[1], dtype=torch.float64)
    leaves = [item.requires_grad_() for item in (x, weight, bias)]
    expected = F.elu(F.layer_norm(x, weight.shape, weight, bias, 1e-5))
    found = gpu_norm.layer_norm_elu(x.detach(), weight.detach(), bias.detach(), 1e-5)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    gradients = gpu_norm.layer_norm_elu_backward(grad, *(item.detach() for item in leaves), 1e-5)
    for mine, theirs in zip(gradients, torch.autograd.grad(expected, leaves, grad), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


SHAPES = {"one row": (1, 5), "one column": (9, 1), "one number": (1, 1), "wide": (3, 1100)}
CENTRED = {
    "equal rows": torch.full((6, 3), 0.5, dtype=torch.float64),
    "a row in the centre": torch.tensor([[1.0, 2], [-1, -2], [0, 0]], dtype=torch.float64),
}
"""Rows of which some have the length 0 once the mean is taken off."""


@pytest.mark.parametrize("individually", [False, True])
@pytest.mark.parametrize("kind", [*SHAPES, *CENTRED])
def test_pair_norm(kind, individually):
    x = CENTRED[kind] if kind in CENTRED else torch.randn(SHAPES[kind], dtype=torch.float64) + 3
    x = x.clone().to(DEVICE).requires_grad_()
    grad = torch.randn_like(x)
    results = []
    for run in (lambda x: pair_norm(x, 0.7, individually), PairNorm(0.7, individually)):
        y = run(x)
        results.append([y, *torch.autograd.grad(y, x, grad)])
    for expected, found in zip(*results, strict=True):
        scale = max(1.0, float(expected.detach().abs().max()))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * scale)


@pytest.mark.parametrize("individually", [False, True])
def test_pair_norm_in_bfloat16_sums_in_float32(individually):
    """Rows far from 0: their mean in bfloat16 would be off by more than they are apart."""
    x = (torch.randn(40, 6) + 200).bfloat16().to(DEVICE).requires_grad_()
    grad = torch.randn(40, 6).bfloat16().to(DEVICE)
    exact = x.detach().double().requires_grad_()
    expected = pair_norm(exact, 0.7, individually)
    found = PairNorm(0.7, individually)(x)
    assert found.dtype == torch.bfloat16
    close = {"rtol": 2**-7, "atol": 1e-5}
    torch.testing.assert_close(found.double(), expected, **close)
    (theirs,) = torch.autograd.grad(expected, exact, grad.double())
    (mine,) = torch.autograd.grad(found, x, grad)
    torch.testing.assert_close(mine.double(), theirs, **close)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("individually", [False, True])
def test_pair_norm_on_cuda_has_the_type_of_pygs(individually, autocast, dtype):
    """On tensors that have a device and a type alone, so that no GPU is needed."""
    ours, theirs = PairNorm(1.5, individually), WholePairNorm(1.5, individually)
    was_on, was_type = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with FakeTensorMode():
        x = torch.empty(5, 3, dtype=dtype, device="cuda")
        try:  # torch.autocast turns itself off where there is no GPU
            torch.set_autocast_enabled("cuda", autocast)
            torch.set_autocast_dtype("cuda", torch.bfloat16)
            found, expected = ours(x), theirs(x)
        finally:
            torch.set_autocast_enabled("cuda", was_on)
            torch.set_autocast_dtype("cuda", was_type)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape


@pytest.mark.parametrize("shape", [(5, 2, 3), (1, 1, 1), (9, 3, 8), (0, 2, 3)])
@pytest.mark.parametrize("sliced", [False, True])
def test_both_products_of_gats_score(shape, sliced, monkeypatch):
    kernels = gpu_score.forward, gpu_score.backward
    monkeypatch.setitem(additive_score.KERNELS, DEVICE.type, kernels)
    n, heads, channels = shape
    with DEVICE:
        x = torch.randn(n, heads * channels + sliced, dtype=torch.float64)
        x = x[:, int(sliced) :].unflatten(1, (heads, channels)).requires_grad_()
        target, source = torch.randn(2, heads, channels, dtype=torch.float64)
        upstream = torch.randn(2, n, heads, dtype=torch.float64)
    leaves = [x, target.requires_grad_(), source.requires_grad_()]
    expected = torch.stack([(x * target).sum(-1), (x * source).sum(-1)])
    found = torch.stack(ops.head_products(*leaves))
    assert "_HeadProducts" in str(found.grad_fn.next_functions)
    results = [[out, *torch.autograd.grad(out, leaves, upstream)] for out in (expected, found)]
    for theirs, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("directed", "longest"),
    [(False, 512), (False, 2), pytest.param(True, 2, marks=pytest.mark.slow)],
)
def test_gradients_of_columns_are_columns_of_one_matrix(directed, longest):
    near = lists_of(5, 8, directed, longest)
    with DEVICE:
        x, upstream = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 2, 4).double()
        weights = [torch.randn(2 * width, 4, dtype=torch.float64) for width in (4, 3)]
    leaves = [leaf.requires_grad_() for leaf in (x, *weights)]
    value, logits = ops.joint_linear(x, weights, 2)
    assert joint_product.side_by_side([value, logits]).shape == (5, 14)
    found = attention.kernel_attention(near, value, ClassAgreement(logits))
    blocks = torch.autograd.grad(found, [value, logits], upstream, retain_graph=True)
    assert joint_product.side_by_side(blocks).shape == (5, 14)
    apart = [(x @ weight.t()).unflatten(1, (2, -1)) for weight in weights]
    expected = definition.neighbor_attention(near, apart[0], ClassAgreement(apart[1]))
    results = [[out, *torch.autograd.grad(out, leaves, upstream)] for out in (expected, found)]
    for theirs, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
