"""Sums of powers of differences between neighbours: every backend against a loop, and autograd."""

import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from deepgat import ops
from deepgat.errors import UserError
from deepgat.ops import Neighbors, PartNeighbors, definition, differences
from deepgat.ops.cpu import kernels
from deepgat.ops.lists import split_lists

from graphs import AWKWARD, graphs, random_edges

POWERS = [1.0, 1.5, 2.0, 2.5, 3.0, 3.7]
DTYPES = [torch.float64, torch.float32]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
ON_GPU = torch.cuda.is_available()
native_only = pytest.mark.skipif(
    not kernels.available(), reason="the native kernels are not built here: no compiler"
)


def literal(edge_index: Tensor, x: Tensor, grad: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(out, gradient of x) by a loop over distinct edges (u, v) in double precision."""
    x, grad = x.detach().double(), grad.double()
    out, dx = torch.zeros_like(x), torch.zeros_like(x)
    for u, v in set(map(tuple, edge_index.t().tolist())):
        for c in range(x.size(1)):
            d = float(x[v, c] - x[u, c])
            out[v, c] += abs(d) ** p
            if d:
                slope = p * abs(d) ** (p - 1) * (1 if d > 0 else -1)
                dx[v, c] += grad[v, c] * slope
                dx[u, c] -= grad[v, c] * slope
    return out, dx


def found(run: Callable, neighbors: Neighbors, x: Tensor, grad: Tensor, p: float) -> list[Tensor]:
    x = x.detach().requires_grad_()
    out = run(neighbors, x, p)
    return [out.detach(), torch.autograd.grad(out, x, grad)[0]]


def some_numbers(n: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x and a gradient; some rows of x are alike, as in a graph that was smoothed over."""
    x = torch.randn(n, channels, dtype=dtype)
    x[n // 2 :: 3] = x[:1].clone()
    return x, torch.randn(n, channels, dtype=dtype)


def assert_right(
    run: Callable,
    edge_index: Tensor,
    n: int,
    channels: int,
    p: float,
    dtype: torch.dtype,
    longest: int = 512,
) -> None:
    neighbors = cut(Neighbors.from_edge_index(edge_index, n), longest)
    x, grad = some_numbers(n, channels, dtype)
    expected = literal(edge_index, x, grad, p)
    for got, right in zip(found(run, neighbors, x, grad, p), expected, strict=True):
        assert got.dtype == dtype
        scale = max(1.0, float(right.abs().max())) if right.numel() else 1.0
        torch.testing.assert_close(got.double(), right, rtol=0, atol=TOLERANCE[dtype] * scale)


def cut(near: Neighbors, longest: int) -> Neighbors:
    """The lists in pieces as short as asked for, so that small graphs have hubs."""
    pieces, hubs = split_lists(near.ptr, longest)
    source_pieces, source_hubs = split_lists(near.source_ptr, longest)
    return replace(
        near, pieces=pieces, hubs=hubs, source_pieces=source_pieces, source_hubs=source_hubs
    )


@pytest.fixture(params=["reference", "native"])
def run(request: pytest.FixtureRequest) -> Callable:
    if request.param == "native" and not kernels.available():
        pytest.skip("the native kernels are not built here: no compiler")
    if request.param == "native":
        return differences.kernel_differences
    return definition.neighbor_differences


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("name", list(AWKWARD))
def test_awkward_graphs(run, name, p):
    n, edge_index = AWKWARD[name]
    for dtype in DTYPES:
        assert_right(run, edge_index, n, 5, p, dtype)


@pytest.mark.parametrize("p", [*POWERS, 3.5, 4.0, 4.5, 6.0, 1.01])
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
def test_every_power(run, directed, p):
    for dtype in DTYPES:
        assert_right(run, random_edges(8, 20, directed=directed), 8, 9, p, dtype)


@native_only
@given(
    graph=graphs(),
    channels=st.integers(0, 40),
    p=st.sampled_from(POWERS),
    dtype=st.sampled_from(DTYPES),
    longest=st.sampled_from([2, 512]),
)
def test_any_graph(graph, channels, p, dtype, longest):
    n, edge_index = graph
    assert_right(differences.kernel_differences, edge_index, n, channels, p, dtype, longest)


@native_only
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("p", POWERS)
def test_hubs_of_many_pieces(p, directed):
    """Lists longer than a piece, against the definition."""
    n = 1300
    hub = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.long)])
    edge_index = torch.cat([hub, random_edges(n, 900, directed=True)], 1)
    if not directed:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    neighbors = Neighbors.from_edge_index(edge_index, n)
    assert len(neighbors.hubs)
    assert neighbors.symmetric != directed
    x, grad = some_numbers(n, 11, torch.float64)
    right = found(definition.neighbor_differences, neighbors, x, grad, p)
    for dtype in DTYPES:
        got = found(differences.kernel_differences, neighbors, x.to(dtype), grad.to(dtype), p)
        for mine, theirs in zip(got, right, strict=True):
            atol = TOLERANCE[dtype] * float(theirs.abs().max())
            torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("p", POWERS)
def test_small_and_large_differences_keep_their_digits(run, p):
    """From 10⁻⁶ to 10⁶, each channel to its own relative precision."""
    neighbors = Neighbors.from_edge_index(AWKWARD["hub"][1], 12)
    size = torch.logspace(-6, 6, 13)
    x, grad = torch.randn(12, 13), torch.rand(12, 13) + 1
    x = x * size
    right = found(run, neighbors, x.double(), grad.double(), p)
    for got, exact in zip(found(run, neighbors, x, grad, p), right, strict=True):
        scale = exact.abs().amax(0)
        assert ((got.double() - exact).abs() <= 1e-5 * scale).all()


def test_nan_is_not_hidden(run):
    neighbors = Neighbors.from_edge_index(AWKWARD["hub"][1], 12)
    x = torch.randn(12, 9)
    x[3, 4] = torch.nan
    for p in POWERS:
        out = run(neighbors, x, p)
        assert out[[0, 3], 4].isnan().all()
        assert out.isnan().sum() == 2


def test_the_gradient_of_equal_rows_is_zero(run):
    neighbors = Neighbors.from_edge_index(random_edges(6, 12), 6)
    for p in POWERS:
        out, grad = found(run, neighbors, torch.ones(6, 9), torch.ones(6, 9), p)
        assert not out.any()
        assert not grad.any()


def test_no_nodes_and_no_channels(run):
    for n, channels in ((0, 4), (3, 0)):
        neighbors = Neighbors.from_edge_index(torch.zeros(2, 0, dtype=torch.long), n)
        x = torch.zeros(n, channels)
        assert [item.shape for item in found(run, neighbors, x, x, 2.5)] == [x.shape] * 2


@native_only
def test_tensors_that_are_not_contiguous():
    neighbors = Neighbors.from_edge_index(random_edges(7, 15, directed=True), 7)
    x, grad = torch.randn(5, 7).t(), torch.randn(1, 5).expand(7, 5)
    got = found(differences.kernel_differences, neighbors, x, grad, 2.5)
    right = found(definition.neighbor_differences, neighbors, x, grad, 2.5)
    torch.testing.assert_close(got, right)


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("p", POWERS)
def test_gradcheck(run, p, directed):
    neighbors = Neighbors.from_edge_index(random_edges(6, 9, directed=directed), 6)
    x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: run(neighbors, x, p), x)


@native_only
@pytest.mark.slow
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
def test_registered_properly(directed):
    neighbors = Neighbors.from_edge_index(random_edges(6, 9, directed=directed), 6)
    lists = [getattr(neighbors, name) for name in differences.LISTS]
    x = torch.randn(6, 4, dtype=torch.double, requires_grad=True)
    arguments = (lists, x, 2.5, not directed)
    results = torch.library.opcheck(torch.ops.deepgat.differences.default, arguments)
    assert set(results.values()) == {"SUCCESS"}
    results = torch.library.opcheck(
        torch.ops.deepgat.differences_backward.default,
        (torch.randn(6, 4, dtype=torch.double), lists, x.detach(), 2.5, not directed),
        test_utils=("test_schema", "test_faketensor"),
    )
    assert set(results.values()) == {"SUCCESS"}


@native_only
@pytest.mark.slow
def test_torch_compile_sees_through():
    neighbors = Neighbors.from_edge_index(random_edges(20, 60), 20)
    x = torch.randn(20, 8)

    def gate(x: Tensor) -> Tensor:
        return ops.neighbor_differences(neighbors, x, 2.5).tanh()

    compiled = torch.compile(gate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), gate(x))


@native_only
@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
def test_the_number_of_threads_changes_no_bit(monkeypatch, directed, p):
    hub = torch.stack([torch.arange(1500), torch.zeros(1500, dtype=torch.long)])
    edge_index = torch.cat([random_edges(1500, 4000), hub], 1)
    if not directed:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    neighbors = Neighbors.from_edge_index(edge_index, 1500)
    x, grad = some_numbers(1500, 37, torch.float32)
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(kernels, "threads", lambda threads=threads: threads)
        results.append(found(differences.kernel_differences, neighbors, x, grad, p))
    for again in results[1:]:
        assert all(map(torch.equal, results[0], again))


@native_only
def test_nothing_but_x_and_the_lists_is_kept():
    neighbors = Neighbors.from_edge_index(random_edges(50, 400), 50)
    x, kept = torch.randn(50, 64, requires_grad=True), []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ops.neighbor_differences(neighbors, x, 2.5)
    assert [tensor.shape for tensor in kept if tensor.is_floating_point()] == [x.shape]


@native_only
def test_the_operator_chooses_like_attention(monkeypatch):
    calls = []

    def counted(run):
        return lambda *given: calls.append(run) or run(*given)

    fast, slow = differences.kernel_differences, definition.neighbor_differences
    monkeypatch.setattr(differences, "kernel_differences", counted(fast))
    monkeypatch.setattr(definition, "neighbor_differences", counted(slow))
    neighbors = Neighbors.from_edge_index(random_edges(9, 30), 9)
    x, grad = some_numbers(9, 6, torch.float32)
    right = found(slow, neighbors, x, grad, 2.5)
    torch.testing.assert_close(found(ops.neighbor_differences, neighbors, x, grad, 2.5), right)
    with ops.use_backend("reference"):
        got = found(ops.neighbor_differences, neighbors, x, grad, 2.5)
    assert all(map(torch.equal, got, right))
    assert calls == [fast, slow]
    weighted = replace(neighbors, log_weight=torch.zeros(neighbors.num_edges, 1))
    torch.testing.assert_close(found(ops.neighbor_differences, weighted, x, grad, 2.5), right)
    assert calls == [fast, slow, slow]


def test_what_does_not_fit_is_refused():
    neighbors = Neighbors.from_edge_index(random_edges(3, 5), 3)
    for x in (torch.rand(2, 4), torch.rand(4, 4), torch.rand(3, 2, 2), torch.rand(3)):
        with pytest.raises(UserError, match=r"x has shape .*: expected \[3, channels\]"):
            ops.neighbor_differences(neighbors, x, 2.5)
    for power in (0.5, -1, float("nan")):
        with pytest.raises(UserError, match=r"power is .*: expected 1 or more"):
            ops.neighbor_differences(neighbors, torch.rand(3, 4), power)


def test_whole_powers_may_be_integers():
    neighbors = Neighbors.from_edge_index(random_edges(9, 30), 9)
    x, grad = some_numbers(9, 6, torch.float32)
    for power in (1, 2, 3):
        found_ones = found(ops.neighbor_differences, neighbors, x, grad, power)
        right = found(ops.neighbor_differences, neighbors, x, grad, float(power))
        assert all(map(torch.equal, found_ones, right))


def test_what_overflows_is_infinite():
    neighbors = Neighbors.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2)
    x = torch.tensor([[1e20, 3e10, 1.0], [0.0, 0.0, 0.0]])
    for power in (2.5, 3.7):
        got = ops.neighbor_differences(neighbors, x, power)
        torch.testing.assert_close(got, definition.neighbor_differences(neighbors, x, power))


@native_only
def test_it_is_differentiated_once():
    neighbors = Neighbors.from_edge_index(random_edges(9, 30), 9)
    x = torch.rand(9, 4, requires_grad=True)
    total = ops.neighbor_differences(neighbors, x, 2.5).square().sum()
    (slope,) = torch.autograd.grad(total, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@native_only
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_numbers(dtype):
    """Stored short, computed in float32; under autocast the result is float32 too."""
    neighbors = Neighbors.from_edge_index(random_edges(9, 30), 9)
    x, grad = some_numbers(9, 6, dtype)
    right = found(definition.neighbor_differences, neighbors, x.double(), grad.double(), 2.5)
    for got, exact in zip(
        found(differences.kernel_differences, neighbors, x, grad, 2.5), right, strict=True
    ):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), exact, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = ops.neighbor_differences(neighbors, x, 2.5)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), right[0], rtol=1e-5, atol=1e-5)


def test_computed_again_in_the_backward_pass():
    neighbors = Neighbors.from_edge_index(random_edges(9, 30), 9)
    x, grad = some_numbers(9, 6, torch.float32)

    def again(neighbors: Neighbors, x: Tensor, p: float) -> Tensor:
        return checkpoint(
            lambda x: ops.neighbor_differences(neighbors, x.sin(), p), x, use_reentrant=False
        )

    def once(neighbors: Neighbors, x: Tensor, p: float) -> Tensor:
        return ops.neighbor_differences(neighbors, x.sin(), p)

    assert all(map(torch.equal, *(found(run, neighbors, x, grad, 2.5) for run in (again, once))))


def differences_of(x: Tensor, near: Neighbors, mean: bool) -> Tensor:
    total = ops.neighbor_differences(near, x, 2.5)
    return total / near.others.clamp(min=1).unsqueeze(1) if mean else total


@pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
def test_a_part_of_a_divided_graph(mean):
    """Own nodes first, then the halo, whose rows are borrowed."""
    n, own = 12, 8
    edge_index = random_edges(n, 40)
    whole = Neighbors.from_edge_index(edge_index, n)
    square = Neighbors.from_edge_index(edge_index[:, edge_index[1] < own], n)
    x, grad = some_numbers(n, 6, torch.float64)
    borrowed = x[own:].clone().requires_grad_()
    part = SimpleNamespace(
        own=own,
        ids=torch.arange(n),
        with_halo=lambda tensors: [torch.cat([item, borrowed]) for item in tensors],
    )
    lists = PartNeighbors.of(square, part)  # type: ignore[arg-type]
    mine = x[:own].clone().requires_grad_()
    out = differences_of(mine, lists, mean)
    got = torch.autograd.grad(out, [mine, borrowed], grad[:own])
    everyone = x.requires_grad_()
    expected = differences_of(everyone, whole, mean)[:own]
    torch.testing.assert_close(out, expected)
    (right,) = torch.autograd.grad(expected, everyone, grad[:own])
    torch.testing.assert_close(torch.cat(got), right)


# --------------------------------------- the Triton kernel: on a GPU, or interpreted without one


def run_triton(neighbors: Neighbors, x: Tensor, grad: Tensor, p: float) -> list[Tensor]:
    """[out, gradient by target and by source, gradient in one pass if symmetric]."""
    pytest.importorskip("triton", reason="Triton is not installed here")
    from deepgat.ops.gpu.differences import run_pass

    near, x, grad = ((item.to("cuda") if ON_GPU else item) for item in (neighbors, x, grad))
    lists = [getattr(near, name) for name in differences.LISTS]
    out = run_pass(differences.VALUE, *lists[:3], x, None, p)
    there = run_pass(differences.THERE, *lists[:3], x, grad, p)
    back = run_pass(differences.BACK, *lists[3:], x, grad, p)
    gradients = [there + back]
    if near.symmetric:
        gradients.append(run_pass(differences.BOTH, *lists[:3], x, grad, p))
    return [item.cpu() for item in (out, *gradients)]


def assert_triton_right(neighbors: Neighbors, channels: int, p: float, dtype=torch.float64) -> None:
    x, grad = some_numbers(neighbors.num_nodes, channels, dtype)
    right = found(definition.neighbor_differences, neighbors, x.double(), grad.double(), p)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 0.02}[dtype]
    for i, got in enumerate(run_triton(neighbors, x, grad, p)):
        exact = right[min(i, 1)]
        assert got.dtype == dtype
        scale = max(1.0, float(exact.abs().max())) if exact.numel() else 1.0
        torch.testing.assert_close(got.double(), exact, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
def test_triton_pieces_and_gradients(directed):
    near = Neighbors.from_edge_index(random_edges(4, 6, directed=directed), 4)
    assert_triton_right(cut(near, 2), 3, 2.5)


@pytest.mark.slow
@pytest.mark.parametrize("p", [*POWERS, 9.5])
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
def test_triton_every_power(directed, p):
    near = Neighbors.from_edge_index(random_edges(5, 9, directed=directed), 5)
    for dtype in DTYPES:
        assert_triton_right(cut(near, 2), 7, p, dtype)
    assert_triton_right(near, 7, p, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [0, 1, 64, 70])
def test_triton_ragged_sizes(channels):
    assert_triton_right(Neighbors.from_edge_index(random_edges(4, 5), 4), channels, 2.5)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("DEEPGAT_EXAMPLES", 500 if ON_GPU else 12)))
@given(graph=graphs(), p=st.sampled_from(POWERS), longest=st.sampled_from([2, 512]))
def test_triton_any_graph(graph, p, longest):
    n, edge_index = graph
    assert_triton_right(cut(Neighbors.from_edge_index(edge_index, n), longest), 4, p)


@pytest.mark.slow
def test_triton_no_nodes_and_one():
    for n in (0, 1):
        edge_index = torch.zeros(2, 0, dtype=torch.long)
        assert_triton_right(Neighbors.from_edge_index(edge_index, n), 4, 2.5)


@pytest.mark.slow
def test_triton_nan_is_not_hidden():
    neighbors = Neighbors.from_edge_index(AWKWARD["hub"][1], 12)
    x = torch.randn(12, 3)
    x[3, 1] = torch.nan
    for p in POWERS:
        out = run_triton(neighbors, x, x, p)[0]
        assert out[[0, 3], 1].isnan().all()
        assert out.isnan().sum() == 2
