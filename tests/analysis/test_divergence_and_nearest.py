"""Attention divergence against scipy node by node; nearest neighbours by brute force."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from deepgat.analysis import attention_divergence, bayes_error_bounds, nearest_neighbor_error
from deepgat.errors import UserError
from deepgat.ops import EdgeScore, Neighbors, Uniform, attention_weights

from graphs import graphs, random_edges


def weights(near: Neighbors, heads: int) -> torch.Tensor:
    return attention_weights(near, EdgeScore(torch.randn(near.num_edges, heads).double()))


@given(graphs(), st.integers(1, 3), st.integers(1, 3))
def test_divergence_equals_scipy_node_by_node(graph, heads, other_heads):
    n, edge_index = graph
    near = Neighbors.from_edge_index(edge_index, n)
    a, b = weights(near, heads), weights(near, other_heads)
    found = attention_divergence(near.edge_index, a, b)
    expected = [
        entropy(a[near.target == v].mean(1).numpy(), b[near.target == v].mean(1).numpy())
        for v in range(n)
    ]
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-10)


def test_the_two_readings_differ_only_where_the_other_vanishes():
    near = Neighbors.from_edge_index(torch.tensor([[0], [1]]), 2)  # edges 0→0, 0→1, 1→1
    uniform = attention_weights(near, Uniform())
    alone = torch.tensor([[1.0], [0.0], [1.0]])
    paper = attention_divergence(near.edge_index, uniform, alone)
    assert paper.tolist() == pytest.approx([0.0, 0.5 * math.log(0.5)])
    authors = attention_divergence(near.edge_index, uniform, alone, "authors")
    share, nothing, all_ = 0.5 + 1e-5, 1e-5, 1 + 1e-5
    wanted = share * math.log(share / nothing) + share * math.log(share / all_)
    assert authors.tolist() == pytest.approx([0.0, wanted])


def test_divergence_from_itself_is_zero():
    near = Neighbors.from_edge_index(random_edges(8, 20), 8)
    a = weights(near, 2)
    for reading in ("paper", "authors"):
        assert attention_divergence(near.edge_index, a, a, reading).abs().max() == 0


def test_divergence_refuses_nonsense():
    near = Neighbors.from_edge_index(random_edges(8, 20), 8)
    a = weights(near, 2)
    with pytest.raises(UserError, match="did you mean 'paper'"):
        attention_divergence(near.edge_index, a, a, "papers")
    with pytest.raises(UserError, match="must have the same edges"):
        attention_divergence(near.edge_index, a, a[1:])


def test_nearest_neighbour_error_by_brute_force():
    h, y = torch.randn(60, 3), torch.randint(3, (60,))
    prototypes = torch.arange(60) < 20
    queries = torch.arange(60) >= 35
    nearest = torch.cdist(h[queries], h[prototypes]).argmin(1)
    expected = (y[prototypes][nearest] != y[queries]).double().mean().item()
    assert 0 < expected < 1
    assert nearest_neighbor_error(h, y, prototypes, queries) == pytest.approx(expected)


def test_nearest_neighbour_error_refuses_nonsense():
    h, y, some, none = torch.randn(4, 2), torch.arange(4), torch.arange(4) < 2, torch.zeros(4) > 0
    with pytest.raises(UserError, match="prototypes has no node"):
        nearest_neighbor_error(h, y, none, some)
    with pytest.raises(UserError, match="queries has no node"):
        nearest_neighbor_error(h, y, some, none)
    with pytest.raises(UserError, match="one class per node"):
        nearest_neighbor_error(h, torch.zeros(4, 3), some, ~some)
    with pytest.raises(UserError, match="not finite"):
        nearest_neighbor_error(h * torch.nan, y, some, ~some)


@given(st.integers(2, 20), st.floats(0, 1))
def test_bayes_bounds_hold_the_bayes_error(classes, share):
    """For a Bayes error e_B the nearest-neighbour error is at most e_B (2 − π e_B)."""
    ratio = classes / (classes - 1)
    bayes = share / ratio  # guessing errs 1/π of the time
    nearest = bayes * (2 - ratio * bayes)
    lower, upper = bayes_error_bounds(nearest, classes)
    assert upper == nearest
    assert lower == pytest.approx(bayes, abs=1e-6)


def test_bayes_bounds_end_at_guessing():
    assert bayes_error_bounds(0.0, 5) == (0.0, 0.0)
    assert bayes_error_bounds(0.5, 2) == (0.5, 0.5)
    lower, upper = bayes_error_bounds(0.6, 2)
    assert math.isnan(lower)
    assert upper == 0.6
