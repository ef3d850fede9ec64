"""The fast backends against the definition: outputs and every gradient, at awkward sizes."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepgat import ops
from deepgat.errors import UserError
from deepgat.ops import backends, definition, differences
from deepgat.ops import kernel_attention as attention
from deepgat.ops.cpu import attention as cpu_attention
from deepgat.ops.cpu import kernels
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.score_forms import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Normalization,
    ScoreForm,
    Uniform,
)

from graphs import AWKWARD, edges, graphs, random_edges

pytestmark = pytest.mark.skipif(
    not kernels.available(), reason="the native kernels are not built here: no compiler"
)

KINK = "additive, sums of zero"
"""Where LeakyReLU's derivative is a matter of choice: the kernels choose as torch does."""
FORMS = (
    "dot",
    "dot shared",
    "classes",
    "labels",
    "additive",
    KINK,
    "edge score",
    "edge score for all heads",
    "uniform",
)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.02}
HEADS = [1, 2, 3, 4, 5, 8, 10]
"""Few and many: the kernels lay them out differently."""


def make_form(name: str, neighbors: Neighbors, heads: int, width: int, dtype: torch.dtype):
    """A score form on random leaves, and those leaves."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, requires_grad=True)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-1, 2, shape).to(dtype).requires_grad_()

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
        case "additive" | "additive, sums of zero":
            number = whole if name == KINK else leaf
            leaves = [number(n, heads), number(n, heads)]
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
    biased: bool = False,
) -> None:
    form, leaves = make_form(name, neighbors, heads, width, dtype)
    bias = None
    if biased:
        bias = torch.randn(neighbors.num_edges, heads, dtype=dtype, requires_grad=True)
        leaves.append(bias)
    value = torch.randn(neighbors.num_nodes, heads, channels, dtype=dtype, requires_grad=True)
    upstream = torch.randn_like(value)
    seed = torch.tensor([77])
    found = []
    for run in (definition.neighbor_attention, attention.kernel_attention):
        out = run(neighbors, value, form, normalization, dropout, seed, bias)
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
@pytest.mark.parametrize(
    ("heads", "width", "channels"),
    [
        (heads, (1, 5, 15, 121)[(i + j) % 4], channels)
        for i, heads in enumerate((1, 3, 8, 9))
        for j, channels in enumerate((1, 7, 8, 16, 64))
    ],
)
def test_ragged_sizes(heads, width, channels, directed):
    """Every two of the three sizes meet."""
    neighbors = Neighbors.from_edge_index(random_edges(20, 60, directed=directed), 20)
    for name in ("dot", "dot shared", "classes"):
        assert_same(neighbors, name, heads, width, channels, Normalization.ROW, torch.float64)


ANY_CALL = given(
    graph=graphs(),
    name=st.sampled_from(FORMS),
    heads=st.sampled_from(HEADS),
    width=st.sampled_from([1, 5, 15]),
    channels=st.sampled_from([1, 7, 8]),
    normalization=st.sampled_from(Normalization),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    dropout=st.sampled_from([0.0, 0.6]),
    biased=st.booleans(),
)


def check_call(graph, name, heads, width, channels, normalization, dtype, dropout, biased):
    n, edge_index = graph
    neighbors = Neighbors.from_edge_index(edge_index, n)
    assert_same(neighbors, name, heads, width, channels, normalization, dtype, dropout, biased)


@settings(max_examples=100)
@ANY_CALL
def test_any_graph(**call):
    check_call(**call)


@pytest.mark.slow
@settings(max_examples=500)
@ANY_CALL
def test_five_hundred_graphs(**call):
    check_call(**call)


def star(rays: int, into_the_hub: bool = True, out_of_it: bool = True) -> Neighbors:
    """Node 0 listens to all others, or all others to it, or both."""
    rim = torch.arange(1, rays + 1)
    inward = torch.stack([rim, torch.zeros_like(rim)])
    wanted = [inward] * into_the_hub + [inward.flip(0)] * out_of_it
    return Neighbors.from_edge_index(torch.cat(wanted, 1), rays + 1)


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("normalization", Normalization)
@pytest.mark.parametrize("name", FORMS)
def test_lists_that_are_cut(name, normalization, heads):
    for neighbors in (star(1300), star(600, into_the_hub=False), star(600, out_of_it=False)):
        assert len(neighbors.hubs) + len(neighbors.source_hubs) > 0
        for biased in (False, True):
            assert_same(
                neighbors, name, heads, 3, 4, normalization, torch.float64, 0.3, biased=biased
            )


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("normalization", Normalization)
def test_a_hub_of_ten_thousand(normalization, heads):
    neighbors = star(10_000)
    for dtype in (torch.float64, torch.float32):
        assert_same(neighbors, "dot shared", heads, 5, 8, normalization, dtype)


def test_a_cut_list_whose_pieces_are_switched_off():
    neighbors = star(1300)
    score = torch.randn(neighbors.num_edges, 8)
    score[:600] = -torch.inf  # the hub's first piece as a whole
    value = torch.randn(1301, 8, 8)
    out = attention.kernel_attention(neighbors, value, EdgeScore(score))
    torch.testing.assert_close(
        out, definition.neighbor_attention(neighbors, value, EdgeScore(score)), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("name", FORMS)
def test_half_precision_is_computed_in_single(name, heads):
    """The result is that of the rounded inputs, rounded once; gradients come back in bfloat16."""
    neighbors = Neighbors.from_edge_index(random_edges(20, 60), 20)
    form, leaves = make_form(name, neighbors, heads, 5, torch.bfloat16)
    value = torch.randn(20, heads, 8, dtype=torch.bfloat16, requires_grad=True)
    out = attention.kernel_attention(neighbors, value, form)
    exact_form, exact_leaves = make_form(name, neighbors, heads, 5, torch.float64)
    for exact, leaf in zip(exact_leaves, leaves, strict=True):
        exact.data.copy_(leaf.data)
    exact_value = value.detach().double().requires_grad_()
    exact_out = definition.neighbor_attention(neighbors, exact_value, exact_form)
    upstream = torch.randn_like(value)
    found = [out, *torch.autograd.grad(out, [value, *leaves], upstream)]
    exact_inputs = [exact_value, *exact_leaves]
    expected = [exact_out, *torch.autograd.grad(exact_out, exact_inputs, upstream.double())]
    for got, right in zip(found, expected, strict=True):
        assert got.dtype == torch.bfloat16
        tolerance = TOLERANCE[torch.bfloat16] * max(1.0, float(right.detach().abs().max()))
        torch.testing.assert_close(got.double(), right, rtol=0, atol=tolerance)


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_every_copy_of_the_kernels(monkeypatch, capability):
    order = ["default", "avx2", "avx512"]
    here = torch.backends.cpu.get_cpu_capability().lower()
    if here not in order or order.index(capability) > order.index(here):
        pytest.skip(f"this processor has {here}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability.upper())
    kernels.function.cache_clear()
    neighbors = star(600)
    try:
        for heads in (1, 8, 10):
            for dtype in (torch.float64, torch.float32):
                assert_same(neighbors, "classes", heads, 5, 8, Normalization.ROW, dtype, 0.5)
        for power in (2.5, 3.7):
            x = torch.rand(601, 10)
            found = differences.kernel_differences(neighbors, x, power)
            right = definition.neighbor_differences(neighbors, x.double(), power)
            torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)
    finally:
        kernels.function.cache_clear()


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
    out = attention.kernel_attention(neighbors, value, EdgeScore(score))
    expected = definition.neighbor_attention(neighbors, value, EdgeScore(score))
    assert out.isfinite().all()
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("normalization", Normalization)
@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("name", FORMS)
def test_the_number_of_threads_changes_no_bit(monkeypatch, name, heads, normalization):
    pairs = [random_edges(1500, 4000), star(1400).edge_index]
    neighbors = Neighbors.from_edge_index(torch.cat(pairs, 1), 1500)
    form, leaves = make_form(name, neighbors, heads, 5, torch.float32)
    value = torch.randn(1500, heads, 8, requires_grad=True)
    upstream = torch.randn_like(value)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(kernels, "threads", lambda threads=threads: threads)
        out = attention.kernel_attention(neighbors, value, form, normalization)
        found.append([out, *torch.autograd.grad(out, [value, *leaves], upstream)])
    for again in found[1:]:
        assert all(map(torch.equal, found[0], again))


@pytest.mark.parametrize("heads", [1, 2, 8, 10])
@pytest.mark.parametrize("name", ["dot", "dot shared", "classes", "labels"])
def test_kept_scores_change_no_bit(monkeypatch, name, heads):
    """Small graphs keep the scores between the two passes of the symmetric normalisation."""
    pairs = [random_edges(700, 2000), star(600).edge_index]
    neighbors = Neighbors.from_edge_index(torch.cat(pairs, 1), 700)
    form, _ = make_form(name, neighbors, heads, 10, torch.float32)
    value = torch.randn(700, heads, 20)
    kept = attention.kernel_attention(neighbors, value, form, Normalization.SYMMETRIC)
    monkeypatch.setattr(cpu_attention, "KEPT_SCORES", 0)
    again = attention.kernel_attention(neighbors, value, form, Normalization.SYMMETRIC)
    assert torch.equal(kept, again)


def test_lists_that_move_in_memory_are_read_where_they_are():
    """What the CPU kernels keep with the lists holds as long as these stay in their place."""
    neighbors = Neighbors.from_edge_index(random_edges(50, 100), 50)
    value = torch.randn(50, 1, 8)
    before = attention.kernel_attention(neighbors, value, Uniform())
    old = neighbors.source.data
    neighbors.source.data = old.clone()
    old.zero_()
    assert torch.equal(attention.kernel_attention(neighbors, value, Uniform()), before)


def operator_arguments(kind: int, activation: int, shared: bool, symmetric: bool, heads: int):
    torch.manual_seed(1)
    lists = Neighbors.from_edge_index(random_edges(6, 9), 6)
    width = 1 if kind == attention.ADDITIVE else 4
    query, key = (torch.randn(6, heads, width, dtype=torch.double) for _ in range(2))
    value = torch.randn(6, heads, 4, dtype=torch.double)
    bias = None if shared else torch.randn(lists.num_edges, heads, dtype=torch.double)
    if shared:
        key = torch.empty(0, dtype=torch.double)
    for tensor in (query, key, value, *([] if bias is None else [bias])):
        tensor.requires_grad_(tensor.dim() > 1)
    seed = torch.zeros(1, dtype=torch.long)
    return (
        [getattr(lists, name) for name in attention.LISTS], query, key, value, bias, seed,
        kind, activation, 0.5, 0.2, symmetric, shared, True, 0.0,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("symmetric", "heads"), [(False, 1), (True, 10)])
@pytest.mark.parametrize(
    ("kind", "activation", "shared"),
    [
        (attention.DOT, attention.AS_IS, False),
        (attention.DOT, attention.SOFTMAX, True),
        (attention.ADDITIVE, attention.AS_IS, False),
        (attention.NONE, attention.AS_IS, False),
    ],
)
def test_registered_properly(kind, activation, shared, symmetric, heads):
    arguments = operator_arguments(kind, activation, shared, symmetric, heads)
    results = torch.library.opcheck(torch.ops.deepgat.attend.default, arguments)
    assert set(results.values()) == {"SUCCESS"}
    with torch.no_grad():
        found = attention.attend(*arguments)
        plain = [item.detach() if isinstance(item, Tensor) else item for item in arguments]
        arguments = (torch.randn_like(found[0]), *found, *plain, True, not shared)
        results = torch.library.opcheck(
            torch.ops.deepgat.attend_backward.default,
            arguments,
            test_utils=("test_schema", "test_faketensor"),
        )
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("normalization", Normalization)
@pytest.mark.parametrize("name", [form for form in FORMS if form != KINK])
def test_gradcheck(name, normalization):
    neighbors = Neighbors.from_edge_index(random_edges(6, 9), 6)
    form, leaves = make_form(name, neighbors, 2, 3, torch.float64)
    value = torch.randn(6, 2, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *_: attention.kernel_attention(neighbors, value, form, normalization),
        (value, *leaves),
    )


@pytest.mark.slow
def test_torch_compile_sees_through():
    neighbors = Neighbors.from_edge_index(random_edges(20, 60), 20)
    query, value = torch.randn(20, 8, 5), torch.randn(20, 8, 8)

    def layer(query: Tensor, value: Tensor) -> Tensor:
        form = DotProduct(query.softmax(-1), query.softmax(-1))
        return attention.kernel_attention(neighbors, value, form).relu()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(query, value), layer(query, value))


def test_mask_is_a_fair_reproducible_coin():
    neighbors = Neighbors.from_edge_index(random_edges(300, 3000), 300)
    mask = definition.dropout_mask(neighbors, 8, 0.6, torch.tensor([5]))
    assert set(mask.unique().tolist()) == {0.0, 1 / (1 - 0.6)}
    kept = (mask > 0).double()
    assert abs(float(kept.mean()) - 0.4) < 0.01
    correlation = torch.corrcoef(kept.t()) - torch.eye(8)
    assert correlation.abs().max() < 0.05  # heads are independent
    assert torch.equal(mask, definition.dropout_mask(neighbors, 8, 0.6, torch.tensor([5])))
    assert not torch.equal(mask, definition.dropout_mask(neighbors, 8, 0.6, torch.tensor([6])))


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
    assert backends.kernels_run_on("cpu")
    with ops.use_backend("reference"):
        assert not backends.kernels_run_on("cpu")
    monkeypatch.setitem(backends.BUILT, "cuda", True)
    with ops.use_backend("triton"), pytest.raises(UserError, match="does not run on cpu tensors"):
        backends.kernels_run_on("cpu")
    with pytest.raises(UserError, match="unknown backend"), ops.use_backend("cuda"):
        pass


def test_without_the_library_the_definition_runs_and_says_so_once(monkeypatch):
    monkeypatch.setitem(backends.BUILT, "cpu", False)
    backends._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="install a C\\+\\+ compiler"):
        assert not backends.kernels_run_on("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backends.kernels_run_on("cpu")
    with pytest.raises(UserError, match="not available"), ops.use_backend("native"):
        pass
    backends._warn_once.cache_clear()
