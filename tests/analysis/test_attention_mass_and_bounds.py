"""Attention masses by loops, the divergence's bound by brute force, the profile by its parts."""

import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepgat.analysis import (
    attention_divergence,
    attention_mass,
    dirichlet_energy,
    divergence_bound,
    effective_rank,
    micro_f1,
    over_smoothing_profile,
    uniform_attention,
)
from deepgat.errors import UserError
from deepgat.models import GAT, DeepGAT, Oracle
from deepgat.ops import EdgeScore, Neighbors, Uniform, attention_weights

from graphs import graphs, random_edges


def weights(near: Neighbors, heads: int) -> torch.Tensor:
    return attention_weights(near, EdgeScore(torch.randn(near.num_edges, heads).double()))


@given(graphs(), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_masses_equal_a_loop(graph, heads, classes, several):
    n, edge_index = graph
    near = Neighbors.from_edge_index(edge_index, n)
    alpha = weights(near, heads)
    y = torch.randint(2, (n, classes)).float() if several else torch.randint(-1, classes, (n,))
    itself, same = torch.zeros(n, heads).double(), torch.zeros(n, heads).double()
    for edge, (u, v) in enumerate(near.edge_index.T.tolist()):
        if u == v:
            itself[v] += alpha[edge]
            share = 1.0
        elif several:
            mine, theirs = set(y[v].nonzero().flatten().tolist()), y[u].nonzero().flatten().tolist()
            either = mine | set(theirs)
            share = len(mine & set(theirs)) / len(either) if either else 1.0
        else:
            share = float(y[u] == y[v] and y[v] >= 0)
        same[v] += share * alpha[edge]
    found = attention_mass(near.edge_index, alpha, y)
    torch.testing.assert_close(found.itself, itself)
    torch.testing.assert_close(found.same, same)


def test_masses_of_one_class():
    near = Neighbors.from_edge_index(random_edges(8, 20), 8)
    alpha = weights(near, 2)
    one = attention_mass(near.edge_index, alpha, torch.zeros(8).long())
    torch.testing.assert_close(one.same, torch.ones(8, 2).double())
    with pytest.raises(UserError, match="one row per edge"):
        attention_mass(near.edge_index, alpha[1:], torch.zeros(8).long())


@pytest.mark.parametrize("score_range", [0.1, 1.0, 3.0])
def test_bound_is_approached_by_the_largest_divergence_of_corners(score_range):
    """Vectors whose scores are 0 or r, softmaxed: r on a of k entries, and on b of the others."""
    size = 100
    best = 0.0
    for a in range(size):
        for b in range(0, size - a + 1, 2):
            scores = torch.zeros(2, size, dtype=torch.float64)
            scores[0, :a] = score_range
            scores[1, size - b :] = score_range
            log = scores.log_softmax(1)
            best = max(best, (log[0].exp() * (log[0] - log[1])).sum().item())
    bound = divergence_bound(score_range)
    assert bound * 0.999 < best <= bound + 1e-12


@given(st.integers(1, 12), st.floats(0.01, 6), st.integers(0, 10**6))
def test_no_scores_in_range_go_beyond_the_bound(size, score_range, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(2, 200, size, generator=generator).double()
    sharp = (scores * 3 - 1).clamp(0, 1)  # many at the ends, where the divergence is largest
    log = (score_range * sharp).log_softmax(-1)
    divergence = (log[0].exp() * (log[0] - log[1])).sum(-1)
    assert divergence.max() <= divergence_bound(score_range) + 1e-12


def test_bound_of_dp_is_about_0_47():
    assert divergence_bound(1.0) == pytest.approx(0.474475, abs=1e-6)
    assert divergence_bound(0.0) == 0
    with pytest.raises(UserError, match="score_range"):
        divergence_bound(-1.0)


@pytest.mark.parametrize("score", ["dp", "sd"])
def test_deepgat_stays_within_its_bound(score):
    """Weights so large that every prediction is certain; SD divides by the 3 classes."""
    edge_index, x = random_edges(30, 120), torch.randn(30, 4)
    runs = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = DeepGAT(4, 8, 2, 3, score=score).eval()
        for conv in model.convs:
            conv.class_weight.data *= 100
        runs.append(model.run(x, edge_index, with_attention=True).attention)
    bound = divergence_bound(1.0 if score == "dp" else 1 / 3)
    edges, reference = runs[0][-1]
    for layer in runs[1]:
        divergence = attention_divergence(edges, reference, layer.weight)
        assert (divergence <= bound + 1e-6).all()
        assert (divergence > bound / 8).any()


def test_uniform_attention():
    near = Neighbors.from_edge_index(random_edges(8, 20), 8)
    uniform = uniform_attention(near.edge_index)
    torch.testing.assert_close(uniform, attention_weights(near, Uniform()))


def test_profile_is_made_of_the_measures():
    edge_index, x, y = random_edges(20, 50), torch.randn(20, 4), torch.randint(3, (20,))
    y[0] = -1
    model = DeepGAT(4, 8, 3, 3, heads=2).eval()
    outputs = model.run(x, edge_index, with_attention=True)
    rows = over_smoothing_profile(outputs, edge_index, y)
    assert [row.layer for row in rows] == [0, 1, 2, 3]
    assert rows[0].energy is None
    assert rows[0].same_class_attention is None
    known = y >= 0
    for row in rows:
        logits = outputs.layer_logits[row.layer]
        assert row.micro_f1 == pytest.approx(micro_f1(logits[known], y[known]).item())
    for row in rows[1:]:
        h, (edges, alpha) = outputs.hidden[row.layer - 1], outputs.attention[row.layer - 1]
        assert row.energy == dirichlet_energy(h, edge_index)
        assert row.energy_unnormalized == dirichlet_energy(h, edge_index, normalized=False)
        assert row.effective_rank == effective_rank(h)
        same = attention_mass(edges, alpha, y).same[known]
        assert row.same_class_attention == pytest.approx(same.mean().item())
        assert row.same_class_attention_by_head == pytest.approx(same.mean(0).tolist())
        assert None not in asdict(row).values()


def test_profile_of_the_oracle_attends_to_its_own_class_alone():
    edge_index, y = random_edges(20, 50), torch.randint(3, (20,))
    outputs = Oracle(4, 8, 2, 3).eval().run(torch.randn(20, 4), edge_index, None, y, True)
    for row in over_smoothing_profile(outputs, edge_index, y, torch.arange(20) < 7)[1:]:
        assert row.same_class_attention == pytest.approx(1)
        assert row.uniform_same_class_attention < 1
        assert 0 < row.self_attention <= 1


def test_profile_without_attention_predictions_or_nodes():
    edge_index, y = random_edges(20, 50), torch.randint(2, (20, 3)).float()
    outputs = GAT(4, 8, 3, 3, multi_label=True).eval().run(torch.randn(20, 4), edge_index)
    rows = over_smoothing_profile(outputs, edge_index, y)
    assert [row.layer for row in rows] == [1, 2, 3]
    assert [row.micro_f1 is None for row in rows] == [True, True, False]
    assert all(row.same_class_attention is None for row in rows)
    nobody = over_smoothing_profile(outputs, edge_index, y, torch.zeros(20).bool())
    assert all(row.micro_f1 is None and math.isfinite(row.energy) for row in nobody)
