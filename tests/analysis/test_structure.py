"""The shape of graphs: exact against NetworkX on small ones, and against the printed Table 1."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given

from deepgat.analysis.graph_shape import diameter, graph_statistics, local_clustering
from deepgat.data import csbm_graph, load_graph, undirected_matrix

from graphs import AWKWARD, edges, graphs, random_edges, undirected


def as_networkx(n: int, edge_index: torch.Tensor) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edge_index.t().tolist())
    graph.remove_edges_from(nx.selfloop_edges(graph))
    return graph


def longest(graph: nx.Graph) -> int:
    lengths = nx.all_pairs_shortest_path_length(graph)
    return max(max(found.values()) for _, found in lengths)


def assert_as_networkx(n: int, edge_index: torch.Tensor) -> None:
    expected, matrix = as_networkx(n, edge_index), undirected_matrix(edge_index.numpy(), n)
    assert diameter(matrix) == longest(expected)
    clustering = nx.clustering(expected)
    np.testing.assert_allclose(local_clustering(matrix), [clustering[v] for v in range(n)])
    found = graph_statistics([(edge_index, n)])
    degrees = [expected.degree(v) for v in range(n)]
    assert found.edges == 2 * expected.number_of_edges()
    assert found.components == nx.number_connected_components(expected)
    assert found.true.mean == pytest.approx(np.mean(degrees))
    assert found.true.largest == max(degrees)
    assert found.printed.largest == 2 * (max(degrees) + 1)
    if n > 1:
        assert found.true.density == pytest.approx(nx.density(expected))


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_graphs(name):
    assert_as_networkx(*AWKWARD[name])


@given(graphs(max_nodes=14, max_edges=40))
def test_any_graph(drawn):
    assert_as_networkx(*drawn)


@pytest.mark.parametrize(("n", "count"), [(40, 45), (60, 60), (80, 200), (30, 400)])
def test_random_graphs(n, count):
    assert_as_networkx(n, random_edges(n, count, seed=n))


def test_a_long_path_with_a_tail():
    """Where the farthest node is not the farthest from the centre that is tried first."""
    path = [(i, i + 1) for i in range(60)]
    star = [(30, j) for j in range(61, 90)]
    assert_as_networkx(92, undirected(edges(*path, *star, (70, 90), (90, 91))))


def test_several_blocks(monkeypatch):
    graph = csbm_graph(120, 3, 4, hubs=3, hub_degree=60)
    monkeypatch.setattr("deepgat.analysis.graph_shape.BLOCK_ROWS", 7)
    assert_as_networkx(120, graph.edge_index)


def test_hubs_are_counted_as_printed():
    star = undirected(edges(*[(0, i) for i in range(1, 15)]))
    found = graph_statistics([(star, 15)])
    assert found.printed.hub_rate == pytest.approx(1 / 15)  # 2(14 + 1) = 30
    assert found.true.hub_rate == 0


def test_several_graphs_are_averaged_over_nodes():
    triangle, path = undirected(edges((0, 1), (1, 2), (2, 0))), undirected(edges((0, 1)))
    found = graph_statistics([(triangle, 3), (path, 2)])
    assert (found.nodes, found.edges, found.components, found.diameter) == (5, 8, 2, 1)
    assert found.clustering == pytest.approx(3 / 5)
    assert found.true.density == pytest.approx(8 / (3 * 2 + 2 * 1))


PRINTED = {
    "cora": (2708, 10_556, "9.8", 338, "2.18", 19, "0.18", "24.07"),
    "citeseer": (3327, 9104, "7.5", 200, "1.23", 28, "0.11", "14.15"),
    "cs": (18_333, 163_788, "19.9", 274, "18.04", 24, "0.05", "34.25"),
    "physics": (34_493, 495_924, "30.8", 766, "36.40", 17, "0.04", "37.76"),
}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", PRINTED)
def test_table_1_comes_out_as_printed(name):
    graph = load_graph(name, download=False).graph
    found = graph_statistics([(graph.edge_index, graph.num_nodes)])
    assert (
        found.nodes,
        found.edges,
        f"{found.printed.mean:.1f}",
        found.printed.largest,
        f"{100 * found.printed.hub_rate:.2f}",
        found.diameter,
        f"{100 * found.printed.density:.2f}",
        f"{100 * found.clustering:.2f}",
    ) == PRINTED[name]
