"""The lemmas' formulas against dense powers and covariances by hand; their bands against draws."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch_geometric.utils import degree

from deepgat.data import csbm_graph
from deepgat.lab.paper.lemmas import (
    LEMMAS,
    LEVEL,
    Moments,
    check_lemma,
    class_gaussians,
    draw_features,
    formula_moments,
    moment_bands,
    regular_graph,
    step_matrix,
    walk_weights,
)
from deepgat.nn import NeighborAttention, OracleScore, UniformScore
from deepgat.ops import Neighbors

from graphs import graphs


def dense_step(lemma: str, near: Neighbors, y: torch.Tensor) -> torch.Tensor:
    """P, entry by entry."""
    n = near.num_nodes
    P = torch.zeros(n, n).double()
    for u, v in near.edge_index.T.tolist():
        P[v, u] = 1.0 if lemma == "gcn" or y[u] == y[v] else 0.0
    for v in range(n):
        P[v] /= P[v].sum()
    return P


@given(graphs(max_nodes=6), st.sampled_from(sorted(LEMMAS)), st.integers(1, 3))
@settings(max_examples=30)
def test_formulas_equal_those_of_the_whole_gaussian_vector(graph, lemma, layers):
    """Rows of the dense power; all of X as one Gaussian vector, and h^l a matrix times it."""
    n, edge_index = graph
    near = Neighbors.from_edge_index(edge_index, n)
    y = torch.randint(2, (n,))
    P, step = dense_step(lemma, near, y), step_matrix(lemma, near, y)
    walk = walk_weights(step, torch.arange(n), layers)
    counted = walk_weights(step.sign(), torch.arange(n), layers)
    found, gaussians = formula_moments(walk, y), class_gaussians()
    for layer in range(layers):
        power = torch.linalg.matrix_power(P, layer + 1)
        torch.testing.assert_close(walk[layer], power, rtol=1e-10, atol=1e-12)
        paths = torch.linalg.matrix_power((P > 0).double(), layer + 1)
        torch.testing.assert_close(counted[layer], paths / paths.sum(1, keepdim=True))
        for v in range(n):
            mean, covariance = torch.zeros(2).double(), torch.zeros(2, 2).double()
            for u in range(n):
                mean += power[v, u] * gaussians.mean[y[u]]
                covariance += power[v, u] ** 2 * gaussians.covariance[y[u]]
            torch.testing.assert_close(found.mean[layer, v], mean)
            torch.testing.assert_close(found.covariance[layer, v], covariance)


def test_the_regular_graph_is_regular_in_and_between_classes():
    graph = regular_graph()
    assert graph.is_undirected()
    assert not graph.has_self_loops()
    source, target = graph.edge_index
    for c in range(2):
        heard = degree(target[graph.y[source] == c], 100)
        assert (heard == torch.where(graph.y == c, 4, 2)).all()


@pytest.mark.parametrize("lemma", LEMMAS)
def test_regular_graphs_both_forms_hold(lemma):
    graph = regular_graph()
    check = check_lemma(lemma, graph.edge_index, graph.y, layers=4, draws=1500)
    assert check.exact_holds
    assert check.path_count_holds
    torch.testing.assert_close(check.exact.mean, check.path_count.mean)
    torch.testing.assert_close(check.exact.covariance, check.path_count.covariance)


@pytest.mark.parametrize("lemma", LEMMAS)
def test_irregular_graphs_only_the_exact_form_holds(lemma):
    graph = csbm_graph(60, 2, 2, degree=4, hubs=2, hub_degree=20)
    check = check_lemma(lemma, graph.edge_index, graph.y, layers=4, nodes=6, draws=4000)
    assert check.exact_holds
    assert not check.path_count_holds
    shares = check.shares_inside()
    assert shares["exact_mean"] == shares["exact_covariance"] == 1
    assert shares["path_count_covariance"] < 0.9
    assert (shares["path_count_mean"] == 1) == (lemma == "oracle")
    assert check.exact.mean.shape == check.empirical.mean.shape == (4, 6, 2)
    assert check.exact.covariance.shape == check.empirical.covariance.shape == (4, 6, 2, 2)
    assert check.degree.tolist() == sorted(check.degree.tolist())


def test_features_are_drawn_from_the_gaussians_of_the_classes():
    x = draw_features(torch.tensor([0, 1]), 20_000)
    gaussians = class_gaussians()
    torch.testing.assert_close(x.mean(1), gaussians.mean, rtol=0, atol=0.05)
    for own, expected in zip(x, gaussians.covariance, strict=True):
        torch.testing.assert_close(own.T.cov(), expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("lemma", LEMMAS)
def test_the_networks_of_the_lemmas_are_the_librarys(lemma):
    """h^l of a linear GCN and of a linear oracle with W = identity is P^l X."""
    graph = csbm_graph(20, 2, 2, degree=4)
    score = UniformScore if lemma == "gcn" else partial(OracleScore, inside_softmax=False)
    conv = NeighborAttention(2, 2, score=score, num_classes=2, bias=False).double()
    torch.nn.init.eye_(conv.weight)
    x = h = graph.x.double()
    step = step_matrix(lemma, Neighbors.from_edge_index(graph.edge_index, 20), graph.y)
    for rows in walk_weights(step, torch.arange(20), 3):
        h = conv(h, graph.edge_index, labels=graph.y)
        torch.testing.assert_close(h, rows @ x)


def test_a_wrong_formula_is_noticed():
    """The band is narrow enough to see a variance off by a tenth."""
    graph = regular_graph()
    check = check_lemma("gcn", graph.edge_index, graph.y, layers=1, nodes=4, draws=10_000)
    wrong = Moments(check.exact.mean, 1.1 * check.exact.covariance)
    _, inside = moment_bands(wrong, check.draws).inside(check.empirical)
    assert not inside.diagonal(dim1=-2, dim2=-1).all()


def test_bands_of_variances_are_those_of_chi_square():
    truth = Moments(torch.zeros(1, 1).double(), torch.full((1, 1, 1), 3.0).double())
    lower, upper = moment_bands(truth, 2000)
    tail = (1 - LEVEL) / 2 / 2
    expected = [3 * stats.chi2.ppf(p, 1999) / 1999 for p in (tail, 1 - tail)]
    assert [lower.covariance.item(), upper.covariance.item()] == pytest.approx(expected, rel=1e-5)


def test_bands_cover_together_as_often_as_they_say():
    """400 checks of 10 numbers each: Bonferroni keeps at least the level, nearly."""
    truth = Moments(
        torch.tensor([[1.0, -1.0], [0.0, 2.0]]).double(),
        torch.tensor([[[1.0, 0.5], [0.5, 2.0]], [[1.0, -0.9], [-0.9, 1.0]]]).double(),
    )
    bands = moment_bands(truth, 100)
    root = torch.linalg.cholesky(truth.covariance)
    inside = 0
    for _ in range(400):
        x = truth.mean.unsqueeze(1) + torch.randn(2, 100, 2).double() @ root.mT
        found = Moments(x.mean(1), torch.stack([torch.cov(each.T) for each in x]))
        inside += all(bool(part.all()) for part in bands.inside(found))
    assert inside / 400 >= LEVEL - 3 * 0.011
