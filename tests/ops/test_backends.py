"""The fast backends against the definition: outputs and every gradient, at awkward sizes."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepgat import ops
from deepgat.errors import UserError
from deepgat.ops import attention, backends, native, reference
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.scores import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Normalization,
    ScoreForm,
    Uniform,
)

from graphs import AWKWARD, edges, graphs, random_edges, undirected

pytestmark = pytest.mark.skipif(
    not native.available(), reason="the native kernels are not built here: no compiler"
)

FORMS = (
    "dot",
    "dot shared",
    "classes",
    "labels",
    "additive",
    "edge score",
    "edge score for all heads",
    "uniform",
)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def make_form(name: str, neighbors: Neighbors, heads: int, width: int, dtype: torch.dtype):
    """A score form on random leaves, and those leaves."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, requires_grad=True)

    n, e = neighbors.num_nodes, neighbors.num_edges
    form: ScoreForm
    match name:
        case "dot":
            leaves = [leaf(n, heads, width), leaf(n, heads, width)]
            form = DotProduct(*leaves, 0.5)
        case "dot shared":
            leaves = [leaf(n, heads, width)]
            form = DotProduct(leaves[0], leaves[0], 0.5)
        case "classes" | "labels":
            leaves = [leaf(n, heads, width)]
            form = ClassAgreement(leaves[0], 2.0, independent_labels=name == "labels")
        case "additive":
            leaves = [leaf(n, heads), leaf(n, heads)]
            form = Additive(*leaves)
        case "edge score":
            leaves = [leaf(e, heads)]
            form = EdgeScore(leaves[0])
        case "edge score for all heads":
            leaves = [leaf(e, 1)]
            form = EdgeScore(leaves[0])
        case _:
            leaves, form = [], Uniform()
    return form, leaves


def assert_same(
    neighbors: Neighbors,
    name: str,
    heads: int,
    width: int,
    channels: int,
    normalization: Normalization,
    dtype: torch.dtype,
    dropout: float = 0.0,
) -> None:
    form, leaves = make_form(name, neighbors, heads, width, dtype)
    value = torch.randn(neighbors.num_nodes, heads, channels, dtype=dtype, requires_grad=True)
    upstream = torch.randn_like(value)
    seed = torch.tensor([77])
    found = []
    for backend in (reference, attention):
        out = backend.neighbor_attention(neighbors, value, form, normalization, dropout, seed)
        found.append([out, *torch.autograd.grad(out, [value, *leaves], upstream)])
    scale = max(
        1.0, max(float(item.detach().abs().max()) if item.numel() else 0.0 for item in found[0])
    )
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("normalization", Normalization)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("graph", AWKWARD)
def test_awkward_graphs(graph, name, normalization, dtype):
    n, edge_index = AWKWARD[graph]
    assert_same(Neighbors.from_edge_index(edge_index, n), name, 3, 5, 7, normalization, dtype)


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("channels", [1, 7, 8, 16, 64])
@pytest.mark.parametrize("width", [1, 5, 15, 121])
@pytest.mark.parametrize("heads", [1, 3, 8, 9])
def test_ragged_sizes(heads, width, channels, directed):
    neighbors = Neighbors.from_edge_index(random_edges(20, 60, directed=directed), 20)
    for name in ("dot", "dot shared", "classes"):
        assert_same(neighbors, name, heads, width, channels, Normalization.ROW, torch.float64)


@settings(max_examples=500)
@given(
    graph=graphs(),
    name=st.sampled_from(FORMS),
    heads=st.sampled_from([1, 3, 8, 10]),
    width=st.sampled_from([1, 5, 15]),
    channels=st.sampled_from([1, 7, 8]),
    normalization=st.sampled_from(Normalization),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    dropout=st.sampled_from([0.0, 0.6]),
)
def test_any_graph(graph, name, heads, width, channels, normalization, dtype, dropout):
    n, edge_index = graph
    neighbors = Neighbors.from_edge_index(edge_index, n)
    assert_same(neighbors, name, heads, width, channels, normalization, dtype, dropout)


@pytest.mark.parametrize("normalization", Normalization)
def test_a_hub_of_ten_thousand(normalization):
    hub = undirected(torch.stack([torch.zeros(10_000, dtype=torch.long), torch.arange(1, 10_001)]))
    neighbors = Neighbors.from_edge_index(hub, 10_001)
    assert_same(neighbors, "dot shared", 8, 5, 8, normalization, torch.float64)


def test_no_nodes():
    neighbors = Neighbors.from_edge_index(edges(), 0)
    for name in FORMS:
        assert_same(neighbors, name, 8, 5, 8, Normalization.ROW, torch.float32)


def test_huge_scores_stay_finite():
    neighbors = Neighbors.from_edge_index(random_edges(10, 30), 10)
    score = 1e4 * torch.randn(neighbors.num_edges, 8)
    score[::3] = -torch.inf
    score[neighbors.source == neighbors.target] = 0.0  # someone must be left in every list
    value = torch.randn(10, 8, 8)
    out = attention.neighbor_attention(neighbors, value, EdgeScore(score))
    expected = reference.neighbor_attention(neighbors, value, EdgeScore(score))
    assert out.isfinite().all()
    torch.testing.assert_close(out, expected)


def test_the_number_of_threads_changes_no_bit():
    neighbors = Neighbors.from_edge_index(random_edges(500, 4000), 500)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            form, leaves = make_form("dot shared", neighbors, 8, 5, torch.float32)
            value = torch.randn(500, 8, 8, requires_grad=True)
            out = attention.neighbor_attention(neighbors, value, form)
            found.append([out, *torch.autograd.grad(out.square().sum(), [value, *leaves])])
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


def operator_arguments(kind: int, activation: int, shared: bool, symmetric: bool):
    torch.manual_seed(1)
    lists = Neighbors.from_edge_index(random_edges(6, 9), 6)
    query, key, value = (torch.randn(6, 3, 4, dtype=torch.double) for _ in range(3))
    bias = torch.randn(lists.num_edges, 3, dtype=torch.double) if kind == attention.NONE else None
    if shared:
        key = torch.empty(0, dtype=torch.double)
    for tensor in (query, key, value, *([] if bias is None else [bias])):
        tensor.requires_grad_(tensor.dim() > 1)
    seed = torch.zeros(1, dtype=torch.long)
    return (
        [getattr(lists, name) for name in attention.LISTS], query, key, value, bias, seed,
        kind, activation, 0.5, 0.2, symmetric, shared, True, 0.0,
    )  # fmt: skip


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    ("kind", "activation", "shared"),
    [
        (attention.DOT, attention.AS_IS, False),
        (attention.DOT, attention.SOFTMAX, True),
        (attention.NONE, attention.AS_IS, False),
    ],
)
def test_registered_properly(kind, activation, shared, symmetric):
    arguments = operator_arguments(kind, activation, shared, symmetric)
    results = torch.library.opcheck(torch.ops.deepgat.attend.default, arguments)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("normalization", Normalization)
@pytest.mark.parametrize("name", FORMS)
def test_gradcheck(name, normalization):
    neighbors = Neighbors.from_edge_index(random_edges(6, 9), 6)
    form, leaves = make_form(name, neighbors, 2, 3, torch.float64)
    value = torch.randn(6, 2, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *_: attention.neighbor_attention(neighbors, value, form, normalization),
        (value, *leaves),
    )


def test_torch_compile_sees_through():
    neighbors = Neighbors.from_edge_index(random_edges(20, 60), 20)
    query, value = torch.randn(20, 8, 5), torch.randn(20, 8, 8)

    def layer(query: Tensor, value: Tensor) -> Tensor:
        form = DotProduct(query.softmax(-1), query.softmax(-1))
        return attention.neighbor_attention(neighbors, value, form).relu()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(query, value), layer(query, value))


def test_mask_is_a_fair_reproducible_coin():
    neighbors = Neighbors.from_edge_index(random_edges(300, 3000), 300)
    mask = reference.dropout_mask(neighbors, 8, 0.6, torch.tensor([5]))
    assert set(mask.unique().tolist()) == {0.0, 1 / (1 - 0.6)}
    kept = (mask > 0).double()
    assert abs(float(kept.mean()) - 0.4) < 0.01
    correlation = torch.corrcoef(kept.t()) - torch.eye(8)
    assert correlation.abs().max() < 0.05  # heads are independent
    assert torch.equal(mask, reference.dropout_mask(neighbors, 8, 0.6, torch.tensor([5])))
    assert not torch.equal(mask, reference.dropout_mask(neighbors, 8, 0.6, torch.tensor([6])))


def test_dropout_follows_torchs_seed():
    neighbors = Neighbors.from_edge_index(random_edges(50, 300), 50)
    value = torch.randn(50, 8, 8)

    def draw(seed: int, backend: str) -> Tensor:
        torch.manual_seed(seed)
        with ops.use_backend(backend):
            return ops.neighbor_attention(neighbors, value, Uniform(), dropout=0.5)

    assert torch.equal(draw(0, "native"), draw(0, "native"))
    assert not torch.equal(draw(0, "native"), draw(1, "native"))
    torch.testing.assert_close(draw(0, "native"), draw(0, "reference"))


def test_choosing_a_backend(monkeypatch):
    value = torch.zeros(1, 1, 1)
    assert backends._implementation(value) is attention.neighbor_attention
    with ops.use_backend("reference"):
        assert backends._implementation(value) is reference.neighbor_attention
    with pytest.raises(UserError, match="unknown backend"), ops.use_backend("cuda"):
        pass


def test_without_the_library_the_definition_runs_and_says_so_once(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    backends._say_once.cache_clear()
    value = torch.zeros(1, 1, 1)
    with pytest.warns(UserWarning, match="install a C\\+\\+ compiler"):
        assert backends._implementation(value) is reference.neighbor_attention
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backends._implementation(value)
    with pytest.raises(UserError, match="not built"), ops.use_backend("native"):
        pass
    backends._say_once.cache_clear()
