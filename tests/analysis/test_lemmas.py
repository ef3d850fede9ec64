"""The lemmas' formulas against dense powers and covariances by hand; their bands against scipy."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from deepgat.data import class_regular_graph, csbm_graph
from deepgat.errors import UserError
from deepgat.lab.paper.lemmas import (
    LEMMAS,
    ClassGaussians,
    check_lemma,
    formula_moments,
    walk_weights,
)
from deepgat.lab.paper.moment_bands import Moments, moment_bands, product_quantiles
from deepgat.nn import NeighborAttention, OracleScore, UniformScore
from deepgat.ops import Neighbors

from graphs import edges, graphs, undirected


def dense_step(lemma: str, near: Neighbors, y: torch.Tensor) -> torch.Tensor:
    """P, entry by entry."""
    n = near.num_nodes
    P = torch.zeros(n, n).double()
    for u, v in near.edge_index.T.tolist():
        P[v, u] = 1.0 if lemma == "gcn" or y[u] == y[v] else 0.0
    for v in range(n):
        P[v] /= P[v].sum()
    return P


@pytest.mark.slow
@given(graphs(), st.sampled_from(LEMMAS), st.integers(1, 4))
def test_walk_weights_are_rows_of_the_power_and_path_counts(graph, lemma, layers):
    n, edge_index = graph
    near = Neighbors.from_edge_index(edge_index, n)
    y = torch.randint(2, (n,))
    walks = walk_weights(lemma, near, y, torch.arange(n), layers)
    P = dense_step(lemma, near, y)
    counts = (P > 0).double()
    for layer in range(1, layers + 1):
        power = torch.linalg.matrix_power(P, layer)
        torch.testing.assert_close(walks.exact[layer - 1], power, rtol=1e-10, atol=1e-12)
        paths = torch.linalg.matrix_power(counts, layer)
        expected = paths / paths.sum(1, keepdim=True)
        torch.testing.assert_close(walks.path_count[layer - 1], expected, rtol=1e-10, atol=1e-12)


@given(graphs(max_nodes=6), st.sampled_from(LEMMAS), st.integers(1, 3))
@settings(max_examples=30)
def test_moments_equal_those_of_the_whole_gaussian_vector(graph, lemma, layers):
    """All of X as one Gaussian vector; h^l is a matrix times it, term by term."""
    n, edge_index = graph
    near = Neighbors.from_edge_index(edge_index, n)
    y = torch.randint(3, (n,))
    gaussians, W = ClassGaussians.example(3, 2), torch.randn(layers, 4, 2).double()
    walk = walk_weights(lemma, near, y, torch.arange(n), layers).exact
    found = formula_moments(walk, y, gaussians, W)
    P = dense_step(lemma, near, y)
    for layer in range(layers):
        power = torch.linalg.matrix_power(P, layer + 1)
        for v in range(n):
            mean, covariance = torch.zeros(4).double(), torch.zeros(4, 4).double()
            for u in range(n):
                part = power[v, u] * W[layer]
                mean += part @ gaussians.means[y[u]]
                covariance += part @ gaussians.covariances[y[u]] @ part.T
            torch.testing.assert_close(found.mean[layer, v], mean)
            torch.testing.assert_close(found.covariance[layer, v], covariance)


@pytest.mark.slow
@pytest.mark.parametrize("lemma", LEMMAS)
def test_regular_graphs_both_forms_hold(lemma):
    graph = class_regular_graph(20, 2, same=4, other=3)
    W = [torch.randn(2, 2).double() for _ in range(4)]
    check = check_lemma(lemma, graph.edge_index, graph.y, layers=4, draws=3000, weights=W)
    assert check.exact_holds
    assert check.path_count_holds
    torch.testing.assert_close(check.exact.mean, check.path_count.mean)
    torch.testing.assert_close(check.exact.covariance, check.path_count.covariance)
    torch.testing.assert_close(check.concentration, check.path_count_concentration)


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
    assert (check.concentration[-1, 1:-1] < check.concentration[0, 1:-1]).all()


def test_the_covariance_shrinks_with_every_layer_of_a_regular_graph_but_not_at_a_hub():
    regular = class_regular_graph(20, 2, same=4, other=3)
    check = check_lemma("gcn", regular.edge_index, regular.y, layers=6, draws=2)
    assert (check.concentration.diff(dim=0) < 0).all()
    star = undirected(edges(*[(0, leaf) for leaf in range(1, 12)]))
    hub = check_lemma("gcn", star, torch.arange(12) % 2, layers=2, nodes=torch.tensor([0]), draws=2)
    assert hub.concentration[0].item() == pytest.approx(1 / 12)
    assert hub.concentration[1] > hub.concentration[0]


def test_draws_are_the_same_in_any_blocks(monkeypatch):
    """One draw per block: merging moments equals taking them at once."""
    graph = csbm_graph(12, 2, 2, degree=3)
    monkeypatch.setattr("deepgat.lab.paper.lemmas.BLOCK_BYTES", 1)
    single = check_lemma("gcn", graph.edge_index, graph.y, layers=2, nodes=3, draws=50)
    gaussians, generator = ClassGaussians.example(2), torch.Generator().manual_seed(0)
    x = torch.cat([gaussians.draw(graph.y, 1, generator) for _ in range(50)], 1)
    near = Neighbors.from_edge_index(graph.edge_index, 12)
    P = dense_step("gcn", near, graph.y)
    for layer in range(2):
        h = torch.einsum("vu,usd->vsd", torch.linalg.matrix_power(P, layer + 1), x)[single.nodes]
        torch.testing.assert_close(single.empirical.mean[layer], h.mean(1))
        expected = torch.stack([torch.cov(each.T) for each in h])
        torch.testing.assert_close(single.empirical.covariance[layer], expected)


@pytest.mark.parametrize("lemma", LEMMAS)
def test_the_networks_of_the_lemmas_are_the_librarys(lemma):
    """h^l of a linear GCN and of a linear oracle with W = identity is P^l X."""
    graph = csbm_graph(20, 2, 2, degree=4)
    score = UniformScore if lemma == "gcn" else partial(OracleScore, inside_softmax=False)
    conv = NeighborAttention(2, 2, score=score, num_classes=2, bias=False).double()
    torch.nn.init.eye_(conv.weight)
    x = h = graph.x.double()
    hidden = []
    for _ in range(3):
        h = conv(h, graph.edge_index, labels=graph.y)
        hidden.append(h)
    walks = walk_weights(lemma, graph.edge_index, graph.y, torch.arange(20), 3)
    for h, rows in zip(hidden, walks.exact, strict=True):
        torch.testing.assert_close(h, rows @ x)


def test_awkward_graphs_hold_too():
    for n, edge_index in ((1, edges()), (4, edges()), (5, undirected(edges((0, 1))))):
        check = check_lemma("gcn", edge_index, torch.zeros(n).long(), layers=2, draws=500)
        assert check.exact_holds
        assert check.path_count_holds


def test_a_wrong_formula_is_noticed():
    """The band is narrow enough to see a variance off by a tenth."""
    graph = class_regular_graph(10, 2, same=2, other=1)
    check = check_lemma("gcn", graph.edge_index, graph.y, layers=1, nodes=4, draws=20_000)
    wrong = Moments(check.exact.mean, 1.1 * check.exact.covariance)
    inside = moment_bands(wrong, check.draws).holds_covariance(check.empirical)
    assert not inside.diagonal(dim1=-2, dim2=-1).all()


@pytest.mark.parametrize("rho", [-1.0, -0.6, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("degrees", [1, 7, 60])
def test_product_quantiles_by_drawing(rho, degrees):
    random = np.random.default_rng(0)
    draws = 40_000
    # The law itself, not the formula under test: sums of products of correlated pairs.
    root = np.linalg.cholesky(np.array([[1, rho], [rho, 1]]) + 1e-15 * np.eye(2))
    total = np.zeros(draws)
    for _ in range(degrees):
        a, b = root @ random.standard_normal((2, draws))
        total += a * b
    low, high = product_quantiles(np.array([rho]), degrees, 0.05)
    for share in ((total < low[0]).mean(), (total > high[0]).mean()):
        assert share == pytest.approx(0.05, abs=0.006)


def test_product_quantiles_of_perfect_correlation_are_those_of_chi_square():
    low, high = product_quantiles(np.array([1.0]), 50, 1e-6)
    assert low[0] == pytest.approx(stats.chi2.ppf(1e-6, 50), rel=1e-9)
    assert high[0] == pytest.approx(stats.chi2.isf(1e-6, 50), rel=1e-9)


def test_bands_cover_together_as_often_as_they_say():
    """400 checks of 12 numbers each at level 0.8: Bonferroni keeps at least that, nearly."""
    truth = Moments(
        torch.tensor([[1.0, -1.0], [0.0, 2.0]]).double(),
        torch.tensor([[[1.0, 0.5], [0.5, 2.0]], [[1.0, -0.9], [-0.9, 1.0]]]).double(),
    )
    bands = moment_bands(truth, 30, 0.8)
    root = torch.linalg.cholesky(truth.covariance)
    inside = 0
    for _ in range(400):
        x = truth.mean.unsqueeze(1) + torch.randn(2, 30, 2).double() @ root.mT
        found = Moments(x.mean(1), torch.stack([torch.cov(each.T) for each in x]))
        whole = bands.holds_mean(found).all() & bands.holds_covariance(found).all()
        inside += int(whole)
    assert 0.8 - 3 * 0.02 <= inside / 400 <= 0.93


def test_nonsense_is_refused():
    graph = csbm_graph(12, 2, 2, degree=3)
    with pytest.raises(UserError, match="did you mean 'gcn'"):
        check_lemma("gcnn", graph.edge_index, graph.y)
    with pytest.raises(UserError, match="one class per node"):
        check_lemma("gcn", graph.edge_index, graph.y - 1)
    with pytest.raises(UserError, match="one Gaussian per class"):
        check_lemma("gcn", graph.edge_index, graph.y, ClassGaussians.example(1))
    with pytest.raises(UserError, match="shape"):
        check_lemma("gcn", graph.edge_index, graph.y, layers=2, weights=[torch.eye(3)])
    with pytest.raises(UserError, match="layers is 0"):
        check_lemma("gcn", graph.edge_index, graph.y, layers=0)
    with pytest.raises(UserError, match="draws is 1"):
        check_lemma("gcn", graph.edge_index, graph.y, draws=1)
    with pytest.raises(UserError, match="level is 1"):
        check_lemma("gcn", graph.edge_index, graph.y, draws=3, level=1)
    with pytest.raises(UserError, match="positive semi-definite"):
        ClassGaussians(torch.zeros(1, 2), -torch.eye(2).unsqueeze(0))
    with pytest.raises(UserError, match="one matrix for every row"):
        ClassGaussians(torch.zeros(1, 2), torch.eye(2))
