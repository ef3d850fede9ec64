"""rm_diag(Â^k) Y against a dense transcription, and the exact absence of a node's own label."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepgat.data import csbm_graph, label_features, propagate_labels
from deepgat.errors import UserError
from deepgat.models import LabelPropagation


def dense_power(edge_index: Tensor, Y: Tensor, k: int) -> Tensor:
    """The definition, word for word: Â = D⁻¹(A + I), Â^k, zero diagonal, times Y."""
    A = torch.zeros(len(Y), len(Y), dtype=torch.float64)
    for u, v in edge_index.t().tolist():
        A[v, u] = 1
    A.fill_diagonal_(1)
    power = torch.linalg.matrix_power(A / A.sum(dim=1, keepdim=True), k)
    return power.fill_diagonal_(0) @ Y


def dense_counts(edge_index: Tensor, Y: Tensor) -> Tensor:
    A = torch.zeros(len(Y), len(Y), dtype=torch.float64)
    for u, v in edge_index.t().tolist():
        A[v, u] = float(u != v)
    return A @ Y


def one_hot(y: Tensor, train: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(y, classes).double() * train[:, None]


@st.composite
def labelled_graphs(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, int]:
    """Up to 12 nodes with self-loops, repeated edges, isolated nodes and hubs; maybe directed."""
    n = draw(st.integers(1, 12))
    node = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=30))
    if draw(st.booleans()):
        edges += [(0, v) for v in range(n)]
    if draw(st.booleans()):
        edges += [(v, u) for u, v in edges]
    classes = draw(st.integers(1, 4))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n))
    train = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
    return edge_index, torch.tensor(y), torch.tensor(train), classes


NO_EDGES = (
    torch.zeros(2, 0, dtype=torch.long),
    torch.tensor([1, 0]),
    torch.tensor([True, True]),
    2,
)
ONE_NODE = (torch.tensor([[0, 0], [0, 0]]), torch.tensor([0]), torch.tensor([True]), 1)


@settings(max_examples=150)
@given(labelled_graphs(), st.sampled_from(["zero", "neighbor-counts"]))
@example(NO_EDGES, "zero")
@example(ONE_NODE, "neighbor-counts")
def test_equals_the_dense_definition(graph: tuple[Tensor, Tensor, Tensor, int], first: str) -> None:
    edge_index, y, train, classes = graph
    Y = one_hot(y, train, classes)
    z = propagate_labels(edge_index, Y, len(y), hops=5, first=first)
    assert z.shape == (len(y), 5, classes)
    assert z.dtype == torch.float64
    for k in range(5):
        expected = dense_power(edge_index, Y, k)
        if k == 0:
            expected = 0 * Y if first == "zero" else dense_counts(edge_index, Y)
        torch.testing.assert_close(z[:, k], expected, rtol=0, atol=1e-12)


def hub_graph(directed: bool) -> tuple[Tensor, Tensor, Tensor]:
    graph = csbm_graph(120, 4, 2, degree=5, hubs=3, hub_degree=40, seed=1)
    edge_index = graph.edge_index
    if directed:
        keep = torch.rand(edge_index.shape[1], generator=torch.Generator().manual_seed(0)) < 0.7
        edge_index = edge_index[:, keep]
    train = torch.arange(120) % 3 == 0
    return edge_index, graph.y, train


@pytest.mark.parametrize("first", label_features.FIRST_HOPS)
@pytest.mark.parametrize("directed", [False, True])
def test_own_label_has_no_part_bit_by_bit(directed: bool, first: str) -> None:
    edge_index, y, train = hub_graph(directed)
    z = propagate_labels(edge_index, one_hot(y, train, 4), 120, 4, first)
    others_moved = 0
    for v in train.nonzero().view(-1).tolist():
        changed = y.clone()
        changed[v] = (y[v] + 1) % 4
        after = propagate_labels(edge_index, one_hot(changed, train, 4), 120, 4, first)
        assert torch.equal(z[v], after[v])
        others_moved += int((z != after).any())
    assert others_moved > 0, "labels did not matter to anyone: the test says nothing"


def test_own_label_stays_out_when_it_is_hidden() -> None:
    edge_index, y, train = hub_graph(directed=False)
    z = propagate_labels(edge_index, one_hot(y, train, 4), 120, 3)
    for v in train.nonzero().view(-1).tolist():
        hidden = train.clone()
        hidden[v] = False
        assert torch.equal(z[v], propagate_labels(edge_index, one_hot(y, hidden, 4), 120, 3)[v])


@pytest.mark.parametrize("directed", [False, True])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, directed: bool) -> None:
    edge_index, y, train = hub_graph(directed)
    Y = one_hot(y, train, 4)
    whole = propagate_labels(edge_index, Y, 120, 5)
    for size in (1, 5_000):
        monkeypatch.setattr(label_features, "BLOCK_BYTES", size)
        assert torch.equal(propagate_labels(edge_index, Y, 120, 5), whole)


def test_row_sums_are_the_share_of_labelled_walks() -> None:
    """With every node labelled, row v of rm_diag(Â) sums to 1 − 1/|N_v|."""
    graph = csbm_graph(50, 2, 2, seed=3)
    Y = one_hot(graph.y, torch.ones(50, dtype=torch.bool), 2)
    z = propagate_labels(graph.edge_index, Y, 50, 2)
    size = 1 + torch.bincount(graph.edge_index[1], minlength=50).double()
    torch.testing.assert_close(z[:, 1].sum(dim=1), 1 - 1 / size, rtol=0, atol=1e-12)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_classifier_scores(hops: int) -> None:
    # A path 0–1–2, and 3, 4 on their own; 0, 2 and 4 are training nodes.
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    y = torch.tensor([0, 1, 1, 0, 1])
    train = torch.tensor([True, False, True, False, True])
    scores = LabelPropagation(hops, 2)(edge_index, y, train)
    expected = dense_power(edge_index, one_hot(y, train, 2), hops)
    torch.testing.assert_close(scores[1], expected[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(scores[3], torch.tensor([1 / 3, 2 / 3]).double())
    # 4 is never reached either, and its own label does not count.
    torch.testing.assert_close(scores[4], torch.tensor([0.5, 0.5]).double())


def test_classifier_never_sees_the_own_label() -> None:
    edge_index, y, train = hub_graph(directed=False)
    edge_index = edge_index[:, (edge_index > 9).all(dim=0)]  # leaves isolated training nodes
    scores = LabelPropagation(2, 4)(edge_index, y, train)
    for v in train.nonzero().view(-1).tolist():
        changed = y.clone()
        changed[v] = (y[v] + 1) % 4
        assert torch.equal(scores[v], LabelPropagation(2, 4)(edge_index, changed, train)[v])


def test_a_lone_training_node_scores_all_classes_alike() -> None:
    no_edges = torch.zeros(2, 0, dtype=torch.long)
    scores = LabelPropagation(1, 4)(no_edges, torch.tensor([2]), torch.tensor([True]))
    assert torch.equal(scores, torch.full((1, 4), 0.25, dtype=torch.float64))


def test_classifier_beats_chance_on_a_homophilous_graph() -> None:
    graph = csbm_graph(600, 3, 2, homophily=0.9, seed=0)
    train = torch.arange(600) % 5 == 0
    scores = LabelPropagation(2, 3)(graph.edge_index, graph.y, train)
    accuracy = (scores.argmax(dim=1) == graph.y)[~train].double().mean()
    assert accuracy > 0.8


def test_mistakes_are_told() -> None:
    edge_index, y, train = hub_graph(directed=False)
    Y = one_hot(y, train, 4)
    with pytest.raises(UserError, match="did you mean 'zero'"):
        propagate_labels(edge_index, Y, 120, 3, "zeros")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="at least one hop, not 0"):
        propagate_labels(edge_index, Y, 120, 0)
    with pytest.raises(UserError, match="num_layers is 0: expected 1 or more"):
        LabelPropagation(0, 4)(edge_index, y, train)
    with pytest.raises(UserError, match="at least one labelled training node"):
        LabelPropagation(1, 4)(edge_index, y, torch.zeros(120, dtype=torch.bool))
    with pytest.raises(UserError, match="the class 3, but there are only 2"):
        LabelPropagation(1, 2)(edge_index, y, train)
    with pytest.raises(UserError, match="one class per node"):
        LabelPropagation(1, 4)(edge_index, Y, train)


def test_neighborhoods_follow_the_direction_of_edges() -> None:
    near = label_features.neighborhoods(torch.tensor([[0, 0, 1], [1, 1, 1]]), 3)
    assert np.array_equal(near.closed.toarray(), [[1, 0, 0], [1, 1, 0], [0, 0, 1]])
