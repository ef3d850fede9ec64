"""Graphs without files: shape, symmetry, the numbers that were asked for, and seeds."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, degree, k_hop_subgraph

from deepgat.data import csbm_graph, digits_graph, hops_graph, load_graph
from deepgat.data.catalogue.entries import ENTRIES
from deepgat.errors import UserError
from deepgat.models.registry import build_network
from deepgat.training.recipes import recipe


def assert_simple(graph: Data) -> None:
    """Undirected, no self-loops, no duplicates, ids in range."""
    assert graph.edge_index.dtype is torch.long
    assert graph.is_undirected()
    assert not graph.has_self_loops()
    assert coalesce(graph.edge_index, num_nodes=graph.num_nodes).shape == graph.edge_index.shape
    assert graph.num_edges == 0 or int(graph.edge_index.max()) < graph.num_nodes


@pytest.mark.parametrize("neighbors", [1, 10])
def test_digits(neighbors: int) -> None:
    graph = digits_graph(neighbors)
    assert_simple(graph)
    assert graph.x.shape == (1797, 64)
    assert graph.x.dtype is torch.float32
    assert 0 <= float(graph.x.min()) < float(graph.x.max()) == 1
    assert graph.y.unique().tolist() == list(range(10))
    degrees = degree(graph.edge_index[0], 1797)
    assert int(degrees.min()) >= neighbors
    assert 1797 * neighbors <= graph.num_edges <= 2 * 1797 * neighbors
    same = (graph.y[graph.edge_index[0]] == graph.y[graph.edge_index[1]]).float().mean()
    assert same > 0.9


def test_digits_joins_the_nearest() -> None:
    graph = digits_graph(3)
    distance = torch.cdist(graph.x.double(), graph.x.double()).fill_diagonal_(torch.inf)
    third = distance.sort(dim=1).values[:, 2]
    u, v = graph.edge_index
    assert bool((distance[u, v] <= torch.maximum(third[u], third[v]) + 1e-6).all())


def test_digits_does_not_depend_on_the_number_of_threads() -> None:
    """Some nodes are equally near; with two threads scikit-learn takes others of them."""
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(digits_graph().edge_index)
    assert torch.equal(*found)


@pytest.mark.parametrize("homophily", [0.0, 0.3, 0.9, 1.0])
def test_csbm_has_the_homophily_asked_for(homophily: float) -> None:
    graph = csbm_graph(3000, 4, 8, homophily=homophily, seed=5)
    assert_simple(graph)
    same = (graph.y[graph.edge_index[0]] == graph.y[graph.edge_index[1]]).double().mean()
    assert float(same) == pytest.approx(homophily, abs=0.03)


def test_csbm_degrees_and_hubs() -> None:
    graph = csbm_graph(3000, 3, 4, degree=6, hubs=5, hub_degree=400, seed=1)
    degrees = degree(graph.edge_index[0], 3000)
    assert float(degrees[5:].mean()) == pytest.approx(6, abs=1)
    assert int(degrees[:5].min()) > 300
    assert int(degrees[5:].max()) < 40
    plain = csbm_graph(3000, 3, 4, degree=6, hubs=0, seed=1)
    assert plain.num_edges == pytest.approx(18_000, rel=0.01)


def test_csbm_features_are_gaussians_around_class_means() -> None:
    graph = csbm_graph(20_000, 2, 3, separation=4.0, seed=0)
    assert graph.x.dtype is torch.float32
    for c in range(2):
        own = graph.x[graph.y == c].double()
        assert float(own.mean(dim=0).norm()) == pytest.approx(4, abs=0.1)
        torch.testing.assert_close(own.T.cov(), torch.eye(3).double(), rtol=0, atol=0.06)
    assert torch.bincount(graph.y).tolist() == [10_000, 10_000]


def test_csbm_is_seeded_and_leaves_global_states_alone() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    one, same, other = csbm_graph(seed=3), csbm_graph(seed=3), csbm_graph(seed=4)
    for key in ("x", "y", "edge_index"):
        assert torch.equal(one[key], same[key])
    assert not torch.equal(one.x, other.x)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize(
    ("nodes", "classes", "hubs"), [(1, 1, 0), (1, 1, 1), (2, 2, 2), (5, 1, 2), (7, 7, 0)]
)
def test_csbm_smallest(nodes: int, classes: int, hubs: int) -> None:
    graph = csbm_graph(nodes, classes, 1, degree=nodes - 1, hubs=hubs, hub_degree=nodes - 1)
    assert_simple(graph)
    assert graph.y.unique().tolist() == list(range(classes))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"homophily": 1.1}, "homophily is 1.1, but must be 0 to 1"),
        ({"num_nodes": 3}, "num_nodes is 3, but must be at least the 5 classes"),
        ({"classes": 0}, "classes is 0"),
        ({"features": 0}, "features is 0"),
        ({"degree": -1}, "degree is -1"),
        ({"hubs": -1}, "hubs is -1"),
        ({"hubs": 1, "hub_degree": 2000}, "hub_degree is 2000, but must be 0 to 1999"),
    ],
)
def test_csbm_mistakes_are_told(wrong: dict[str, int], says: str) -> None:
    with pytest.raises(UserError, match=says):
        csbm_graph(**wrong)


def test_digits_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="neighbors is 0, but must be 1 to 1796"):
        digits_graph(0)


def neighbourhood(graph: Data, node: int, hops: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and renumbered edges of what ``hops`` layers can see from a node."""
    nodes, edge_index, _, _ = k_hop_subgraph(node, hops, graph.edge_index, relabel_nodes=True)
    return graph.x[nodes], edge_index


@pytest.mark.parametrize("hops", [1, 2, 3, 8, 32])
def test_hops_labels_cannot_be_seen_from_nearer(hops: int) -> None:
    """Nodes of every class have the same neighbourhood of k − 1 hops, and another of k."""
    graph = hops_graph(hops, 12, 3, seed=1)
    assert torch.bincount(graph.y[:12]).tolist() == [4, 4, 4]
    assert (graph.y[12:] == -1).all()
    for node in range(1, 12):
        near, far = ([neighbourhood(graph, v, h) for v in (0, node)] for h in (hops - 1, hops))
        assert all(torch.equal(a, b) for a, b in zip(*near, strict=True))
        assert torch.equal(far[0][1], far[1][1])
        assert torch.equal(far[0][0], far[1][0]) == bool(graph.y[0] == graph.y[node])


@pytest.mark.parametrize("system", ["gcn", "residual", "gat", "gcnii", "deep"])
def test_hops_needs_as_many_layers(system: str) -> None:
    """Whatever its weights, a network of k − 1 layers tells nodes with labels nothing apart."""
    graph = hops_graph(3, 8, 2, seed=0)
    for layers in (2, 3):
        torch.manual_seed(0)
        settings = recipe(system, num_layers=layers).settings
        logits = build_network(system, settings, 32, 2).eval()(graph.x, graph.edge_index)
        differ = (logits[:8] - logits[0]).abs().amax(dim=1) > 0
        assert differ.tolist() == [layers == 3 and bool(y != graph.y[0]) for y in graph.y[:8]]


@pytest.mark.parametrize("hops", [2, 4, 8, 16, 32])
def test_hops_in_the_catalogue(hops: int) -> None:
    dataset = load_graph(f"hops-{hops}")
    graph, entry = dataset.graph, ENTRIES[f"hops-{hops}"]
    assert (graph.num_nodes, graph.num_edges) == (entry.nodes, entry.edges)
    assert (graph.num_features, dataset.num_classes) == (entry.features, entry.classes)
    parts = [graph[f"{name}_mask"] for name in ("train", "val", "test")]
    assert [int(mask.sum()) for mask in parts] == [120, 60, 60]
    assert not torch.stack(parts)[:, 240:].any()
    for mask in parts:
        assert len(torch.bincount(graph.y[mask]).unique()) == 1, "balanced"
    other = load_graph(f"hops-{hops}", "stored:9").graph
    assert torch.equal(graph.x, other.x)
    assert not torch.equal(graph.train_mask, other.train_mask)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"hops": 0}, "hops is 0, but must be 1 or more"),
        ({"parts": 3}, "parts is 3, but must be at least the 4 classes"),
        ({"classes": 0}, "classes is 0"),
        ({"features": 0}, "features is 0"),
        ({"width": 0}, "width is 0"),
    ],
)
def test_hops_mistakes_are_told(wrong: dict[str, int], says: str) -> None:
    with pytest.raises(UserError, match=says):
        hops_graph(**wrong)
