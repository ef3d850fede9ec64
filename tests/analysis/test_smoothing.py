"""Over-smoothing measures against literal loops, closed forms, and what must be zero."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deepgat.analysis import (
    dirichlet_energy,
    effective_rank,
    global_distance,
    neighbor_distance,
    numerical_rank,
    rayleigh_quotient,
)
from deepgat.errors import UserError
from deepgat.ops import Neighbors

from graphs import edges, graphs, undirected


@st.composite
def measured(draw: st.DrawFn) -> tuple[Tensor, Tensor, dict[int, set[int]]]:
    """(h, edge_index, the lists N_v without v); rows of zeros and equal rows included."""
    n, edge_index = draw(graphs())
    h = torch.randn(n, draw(st.integers(1, 4))).double()
    h *= draw(st.sampled_from([1e-9, 1.0, 1e6]))
    for v in range(n):
        match draw(st.sampled_from(["draw", "draw", "zero", "first"])):
            case "zero":
                h[v] = 0
            case "first":
                h[v] = 3 * h[0]
    others: dict[int, set[int]] = {v: set() for v in range(n)}
    for u, v in edge_index.T.tolist():
        others[v] |= {u} - {v}
    return h, edge_index, others


def cosine_distance(a: Tensor, b: Tensor) -> float:
    if not a.any() and not b.any():
        return 0.0
    if not a.any() or not b.any():
        return 1.0
    return 1 - float(a @ b) / (float(a.norm()) * float(b.norm()))


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


@given(measured(), st.sampled_from([1, 10**6]))
def test_energies_equal_a_loop(case, block):
    h, edge_index, others = case
    normal = plain = 0.0
    for v, lists in others.items():
        for u in lists:
            a, b = h[v] / math.sqrt(len(lists) + 1), h[u] / math.sqrt(len(others[u]) + 1)
            normal += float((a - b).square().sum()) / 2
            plain += float((h[v] - h[u]).square().sum()) / len(h)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deepgat.analysis.smoothing.BLOCK_BYTES", block)
        assert dirichlet_energy(h, edge_index) == pytest.approx(normal, rel=1e-9)
        assert dirichlet_energy(h, edge_index, normalized=False) == pytest.approx(plain, rel=1e-9)
    near = Neighbors.from_edge_index(edge_index, len(h))
    assert dirichlet_energy(h, near) == dirichlet_energy(h, edge_index)


@given(measured())
def test_normalised_energy_is_the_laplacian_form(case):
    """tr(hᵀ (I − D^-½ A D^-½) h) on undirected graphs."""
    h, edge_index, _ = case
    near = Neighbors.from_edge_index(undirected(edge_index), len(h))
    A = torch.zeros(len(h), len(h)).double()
    A[near.target.long(), near.source.long()] = 1
    root = A.sum(1).rsqrt()
    laplacian = torch.eye(len(h)).double() - root.unsqueeze(1) * A * root
    expected = float((h.T @ laplacian @ h).trace())
    size = float(h.square().sum())
    assert dirichlet_energy(h, near) == pytest.approx(expected, rel=1e-9, abs=1e-12 * size)
    if size:
        assert rayleigh_quotient(h, near) == pytest.approx(expected / size, abs=1e-9)
        assert -1e-12 <= rayleigh_quotient(h, near) < 2
    else:
        assert math.isnan(rayleigh_quotient(h, near))


@given(measured())
def test_distances_equal_a_loop(case):
    h, edge_index, others = case
    rows = [mean([cosine_distance(h[v], h[u]) for u in lists]) for v, lists in others.items()]
    expected = mean([row for row in rows if not math.isnan(row)])
    found = neighbor_distance(h, edge_index)
    assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)
    pairs = [cosine_distance(h[v], h[u]) for v in others for u in others if u != v]
    assert global_distance(h) == pytest.approx(mean(pairs), abs=1e-9, nan_ok=True)


@given(measured())
def test_ranks_equal_their_definitions(case):
    h, _, _ = case
    values = torch.linalg.svdvals(h)
    if not h.any():
        assert numerical_rank(h) == effective_rank(h) == 0
        return
    assert numerical_rank(h) == pytest.approx(float((values.norm() / values[0]) ** 2))
    shares = [float(value) for value in values / values.sum() if value > 0]
    expected = math.exp(-sum(share * math.log(share) for share in shares))
    assert effective_rank(h) == pytest.approx(expected)
    most = min(h.shape) + 1e-9
    assert 1 - 1e-9 <= numerical_rank(h) <= most
    assert 1 - 1e-9 <= effective_rank(h) <= most


def test_closed_forms_on_the_complete_graph_and_the_ring():
    n = 6
    complete = undirected(edges(*[(v, u) for v in range(n) for u in range(v)]))
    ring = undirected(edges(*[(v, (v + 1) % n) for v in range(n)]))
    one_hot = torch.eye(n)
    # Each ordered pair of different nodes differs by ‖e_v − e_u‖² = 2.
    assert dirichlet_energy(one_hot, complete, normalized=False) == pytest.approx(2 * (n - 1))
    assert dirichlet_energy(one_hot, complete) == pytest.approx(n - 1)
    assert dirichlet_energy(one_hot, ring, normalized=False) == pytest.approx(4)
    assert dirichlet_energy(one_hot, ring) == pytest.approx(2 * n / 3)
    for graph in (complete, ring):
        assert neighbor_distance(one_hot, graph) == pytest.approx(1)
    assert global_distance(one_hot) == pytest.approx(1)
    assert numerical_rank(one_hot) == pytest.approx(n)
    assert effective_rank(one_hot) == pytest.approx(n)
    angle = torch.arange(n) * 2 * math.pi / n
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    assert neighbor_distance(circle, ring) == pytest.approx(1 - math.cos(2 * math.pi / n))
    assert numerical_rank(circle) == pytest.approx(2)


@given(graphs())
def test_what_over_smoothing_leaves_is_zero(graph):
    n, edge_index = graph
    near = Neighbors.from_edge_index(edge_index, n)
    row = torch.randn(1, 3).double()
    constant, by_degree = row.expand(n, 3), near.degree.double().sqrt().unsqueeze(1) * row
    assert dirichlet_energy(constant, near, normalized=False) == 0
    assert dirichlet_energy(by_degree, near) == pytest.approx(0, abs=1e-28)
    parallel = (1 + torch.rand(n, 1).double()) * row
    nothing = 0.0 if near.num_edges > n else math.nan
    assert neighbor_distance(parallel, near) == pytest.approx(nothing, abs=1e-28, nan_ok=True)
    nothing = 0.0 if n > 1 else math.nan
    assert global_distance(parallel) == pytest.approx(nothing, abs=1e-28, nan_ok=True)
    assert numerical_rank(parallel) == pytest.approx(1)
    assert effective_rank(parallel) == pytest.approx(1, abs=1e-10)


def test_tiny_differences_do_not_drown():
    """Rows that differ by 1e-10 of their size: a difference of squares would say 0."""
    ring = undirected(edges(*[(v, (v + 1) % 9) for v in range(9)]))
    noise = torch.randn(9, 3).double()
    h, coarse = 1 + 1e-10 * noise, 1 + 1e-4 * noise
    ratio = dirichlet_energy(coarse, ring) / dirichlet_energy(h, ring)
    assert ratio == pytest.approx(1e12, rel=1e-4)
    assert neighbor_distance(coarse, ring) / neighbor_distance(h, ring) == pytest.approx(1e12, 1e-3)
    assert global_distance(coarse) / global_distance(h) == pytest.approx(1e12, rel=1e-3)


def test_nonsense_is_refused_and_infinities_are_nan():
    ring = undirected(edges((0, 1), (1, 2)))
    with pytest.raises(UserError, match="expected \\[nodes, channels\\]"):
        dirichlet_energy(torch.randn(3, 2, 2), ring)
    with pytest.raises(UserError, match="node numbers run from 0 to 1"):
        neighbor_distance(torch.randn(2, 2), ring)
    assert math.isnan(numerical_rank(torch.full((3, 2), math.inf)))
    assert math.isnan(effective_rank(torch.full((3, 2), math.nan)))
