"""Predictions from the receptive field are those of the whole graph."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from grown import (
    CLASSES,
    FEATURES,
    assert_equal_rows,
    field_of,
    growing,
    pieces,
    whole_outputs,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.utils import k_hop_subgraph

from deepgat.data.grown_graph import GrownGraph
from deepgat.data.kept_graph import KeptGraph
from deepgat.data.surroundings import around
from deepgat.errors import UserError
from deepgat.models import SYSTEMS, Ensemble, build_network, find_system
from deepgat.models.ensemble import EnsembleConfig
from deepgat.models.field import radius
from deepgat.training.receptive_field import field_outputs
from networks import ORACLES, network

from graphs import random_edges

LOCAL = [
    *((name, {}) for name in SYSTEMS if name not in (*ORACLES, "label-propagation")),
    ("deep", {"attention_from": 1}),
    ("deep", {"step_depth": 2, "attention_from": 1}),
    ("deepgat", {"label_hops": 6}),
    ("deepgat", {"label_input": "layer", "first_labels": "neighbor-counts"}),
    ("deepgat", {"norm": "batch", "residual": "identity"}),
    ("gat", {"score": "sd", "residual": "linear"}),
    ("gcn", {"normalization": "row", "unit_features": True}),
    ("gcnii", {"conv": "deepgat"}),
    ("gcnii", {"conv": "gat"}),
    ("g2", {"conv": "gcn"}),
    ("g2", {"conv": "deepgat", "gate_conv": "own", "reduction": "sum"}),
    ("prenorm", {"conv": "deepgat"}),
    ("prenorm", {"conv": "gat", "heads": 2}),
    ("jk", {"mode": "lstm"}),
]
"""Systems with some of their settings; PairNorm gets the whole graph."""


def small(name, layers, edge_dim=0, **choices):
    """A network with weights large enough for every layer to matter."""
    made = network(
        name, FEATURES, CLASSES, edge_dim=edge_dim, num_layers=layers, hidden_channels=4, **choices
    )
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return made.eval()


def compare(name, choices, shape, layers, weights, edge_dim, sparse, seed):
    """Field and whole graph, for new nodes and for any others."""
    torch.manual_seed(seed)
    edge_dim = 0 if name == "mlp" else edge_dim
    sparse = sparse and name != "prenorm"
    graph, new, whole = pieces(*shape, weights=weights, edge_dim=edge_dim, sparse=sparse, seed=seed)
    n, total = graph.num_nodes, whole.num_nodes
    made = small(name, layers, edge_dim, **choices)
    truth = whole_outputs(made, whole)
    assert_equal_rows(field_of(made, graph, new, range(n, total)), truth, slice(n, total))
    some = [0, total - 1, n - 1, 0]
    assert_equal_rows(field_of(made, graph, new, some), truth, some)


every_system = pytest.mark.parametrize(
    ("name", "choices"), LOCAL, ids=[f"{name} {choices or ''}" for name, choices in LOCAL]
)
any_graph = given(
    shape=growing(),
    layers=st.integers(1, 4),
    weights=st.booleans(),
    edge_dim=st.sampled_from([0, 0, 2]),
    sparse=st.booleans(),
    seed=st.integers(0, 99),
)


@every_system
@settings(max_examples=3)
@any_graph
def test_new_nodes_are_predicted_as_by_the_whole_graph(name, choices, **graph):
    compare(name, choices, **graph)


@pytest.mark.slow
@every_system
@settings(max_examples=30)
@any_graph
def test_new_nodes_of_many_graphs(name, choices, **graph):
    compare(name, choices, **graph)


@pytest.mark.parametrize("name", ["deep", "g2", "gcn", "deepgat", "dagnn", "grand"])
def test_fields_that_shrink_layer_by_layer(name):
    """On a graph much larger than the field, every layer runs on fewer nodes than the one before.

    A hub has a list long enough to be split.
    """
    n = 3000
    edges = torch.cat(
        [random_edges(n, 2500), torch.stack([torch.arange(600), torch.zeros(600)])], 1
    )
    links = torch.tensor([[5, n, n + 1, n], [n, 5, n, n + 1]])
    graph, new, whole = pieces(n, 2, edges.long(), links)
    made = small(name, 3)
    found = around(GrownGraph(KeptGraph.of(graph), new), np.array([n, n + 1]), radius(made).lists)
    assert len(found.nodes) < n / 2
    truth = whole_outputs(made, whole)
    assert_equal_rows(field_of(made, graph, new, [n, n + 1]), truth, [n, n + 1])
    assert_equal_rows(field_of(made, graph, new, [0, n]), truth, [0, n])  # the hub


def test_several_labels():
    graph, _, _ = pieces(40, 0, random_edges(40, 60), torch.empty(2, 0, dtype=torch.long))
    graph.graph.y = (graph.graph.x[:, :CLASSES] > 0).float()
    graph = type(graph)(**{**vars(graph), "multi_label": True})
    made = build_network(
        "deepgat", find_system("deepgat").config, FEATURES, CLASSES, multi_label=True
    ).eval()
    assert_equal_rows(field_of(made, graph, None, [3, 9]), whole_outputs(made, graph), [3, 9])


def test_an_ensemble_has_the_field_of_its_deepest_member():
    members = [
        {"system": "gcn", "settings": {"num_layers": 1}, "weight": 1, "temperature": 1.5},
        {"system": "deep", "settings": {"num_layers": 5}, "weight": 2, "temperature": 0.7},
        {"system": "g2", "settings": {"num_layers": 2}, "weight": 1, "temperature": 1},
    ]
    config = EnsembleConfig(num_layers=5, hidden_channels=64, members=members)
    made = build_network("ensemble", config, FEATURES, CLASSES).eval()
    assert isinstance(made, Ensemble)
    assert radius(made) == radius(made.members[1])
    links = torch.tensor([[4, 300], [300, 4]])
    graph, new, whole = pieces(300, 1, random_edges(300, 400), links)
    assert_equal_rows(field_of(made, graph, new, [300]), whole_outputs(made, whole), [300])


def test_only_the_field_is_read():
    """Beyond the field, features may be NaN and lists nonsense: nobody looks."""
    n = 2000
    edges = random_edges(n, 2500)
    graph, new, whole = pieces(n, 1, edges, torch.tensor([[7, n], [n, 7]]))
    made = small("gcn", 2)
    truth = whole_outputs(made, whole)
    kept = KeptGraph.of(graph)
    grown, asked = GrownGraph(kept, new), radius(made)
    found = around(grown, np.array([n]), asked.lists)
    read = found.nodes[found.distance <= asked.features]
    listed = found.nodes[found.distance < asked.lists]
    assert len(listed) < n / 4
    arrays = {name: array.copy() for name, array in kept.arrays.items()}
    unread = np.ones(n, dtype=bool)
    unread[read[read < n]] = False
    arrays["x"][unread] = np.nan
    unlisted = np.ones(n, dtype=bool)
    unlisted[listed[listed < n]] = False
    arrays["source"][np.repeat(unlisted, np.diff(arrays["ptr"]))] = -7
    spoilt = GrownGraph(KeptGraph(arrays, FEATURES, True), new)
    assert_equal_rows(field_outputs(made, spoilt, np.array([n])), truth, [n])


@pytest.mark.parametrize("name", ["deep", "gat", "g2"])
@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_a_cut_field_is_the_graph_of_the_nodes_within_so_many_hops(name, hops):
    n = 200
    graph, new, whole = pieces(n, 1, random_edges(n, 200), torch.tensor([[3, n], [n, 3]]))
    made = small(name, 4)
    nodes, edges, place, _ = k_hop_subgraph(
        n, hops, whole.graph.edge_index, relabel_nodes=True, num_nodes=n + 1
    )
    with torch.no_grad():
        expected = made(whole.graph.x[nodes], edges)[place]
    found = field_outputs(made, GrownGraph(KeptGraph.of(graph), new), np.array([n]), hops).logits
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    exact = field_outputs(
        made, GrownGraph(KeptGraph.of(graph), new), np.array([n]), radius(made).lists
    )
    assert_equal_rows(exact, whole_outputs(made, whole), [n])


def test_chunks_of_a_large_field():
    graph, new, whole = pieces(90, 1, random_edges(90, 300), torch.tensor([[3, 90], [90, 3]]))
    made = small("deep", 3)
    grown = GrownGraph(KeptGraph.of(graph), new)
    found = field_outputs(made, grown, np.array([90]), chunk=20).logits
    torch.testing.assert_close(found, whole_outputs(made, whole).logits[[90]], rtol=0, atol=1e-5)


def test_what_needs_the_whole_graph_says_so():
    assert small("gcn", 2).graph_wide == ""
    assert "mean over all nodes" in small("pairnorm", 2).graph_wide
    assert "mean over all nodes" in small("pairnorm-input", 2).graph_wide
    assert all("every label" in small(name, 2).graph_wide for name in ORACLES)
    graph, new, _ = pieces(9, 1, random_edges(9, 9), torch.tensor([[3, 9], [9, 3]]))
    grown = GrownGraph(KeptGraph.of(graph), new)
    with pytest.raises(UserError, match="PairNorm subtracts the mean over all nodes: leave hops"):
        field_outputs(small("pairnorm", 2), grown, np.array([9]), 1)
    for hops in (-1, 1.5, True):
        with pytest.raises(UserError, match=r"hops is .*: expected a whole number"):
            field_outputs(small("gcn", 2), grown, np.array([9]), hops)


def test_threads_share_a_graph():
    graph, _, _ = pieces(500, 0, random_edges(500, 900), torch.empty(2, 0, dtype=torch.long))
    made, kept = small("deep", 3), KeptGraph.of(graph)

    def predict(node):
        return field_outputs(made, GrownGraph(kept), np.array([node])).logits

    alone = [predict(node) for node in range(40)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(predict, range(40)))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("name", ["gcn", "deep", "deepgat", "appnp"])
def test_the_first_layers_run_on_the_whole_graph_and_the_last_on_a_field(name, monkeypatch):
    """The field of six layers is most of the graph; that of the last ones is not."""
    n = 400
    graph, new, whole = pieces(n, 1, random_edges(n, 700), torch.tensor([[3, n], [n, 3]]))
    made, sizes = small(name, 6), []
    run = type(made).run_layers

    def watched(self, numbers, h, context):
        sizes.append(context.neighbors.num_nodes)
        return run(self, numbers, h, context)

    truth = whole_outputs(made, whole)
    monkeypatch.setattr(type(made), "run_layers", watched)
    found = field_of(made, graph, new, [n])
    assert_equal_rows(found, truth, [n])
    assert sizes[0] == n + 1
    assert sizes[-1] < n / 4
    assert sizes == sorted(sizes, reverse=True)


def test_all_nodes_are_predicted_from_the_whole_graph():
    n = 60
    graph, new, whole = pieces(n, 1, random_edges(n, 90), torch.tensor([[3, n], [n, 3]]))
    made = small("gcn", 3)
    every = list(range(n + 1))[::-1]
    assert_equal_rows(field_of(made, graph, new, every), whole_outputs(made, whole), every)


def test_surroundings_stop_before_they_are_too_many():
    n = 300
    graph, new, _ = pieces(n, 1, random_edges(n, 500), torch.tensor([[3, n], [n, 3]]))
    grown = GrownGraph(KeptGraph.of(graph), new)
    every, few = (around(grown, np.array([n]), 6, most=most) for most in (None, 40))
    assert few.hops < 6
    assert len(few.nodes) == every.ends[few.hops] <= 40 < every.ends[few.hops + 1]
    assert np.array_equal(few.nodes, every.nodes[: len(few.nodes)])
    inner = few.ends[-2]
    assert torch.equal(few.neighbors.ptr[: inner + 1], every.neighbors.ptr[: inner + 1])
    assert few.neighbors.degree[inner:].eq(1).all()
