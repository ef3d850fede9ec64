"""Numbers as the page reads them, and which nodes and edges it holds."""

import base64

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepgat.errors import UserError
from deepgat.ops import as_neighbors
from deepgat.view.encoding import (
    evenly_chosen,
    packed,
    packed_classes,
    packed_positions,
    packed_shares,
    packed_weights,
)
from deepgat.view.layout import chosen_layout, positions
from deepgat.view.sample import sample_graph

from graphs import AWKWARD, graphs, random_edges

TYPES = {"u8": np.uint8, "u16": np.dtype("<u2"), "i16": np.dtype("<i2"), "u32": np.dtype("<u4")}


def unpacked(value):
    return np.frombuffer(base64.b64decode(value["data"]), TYPES[value["type"]])


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int16, np.uint32, ">u2"])
def test_arrays_survive(kind):
    values = np.array([0, 1, 7, 120], dtype=kind)
    assert unpacked(packed(values)).tolist() == [0, 1, 7, 120]


def test_classes_take_a_byte_where_they_fit():
    assert packed_classes(np.array([255]), 256)["type"] == "u8"
    assert unpacked(packed_classes(np.array([0, 256]), 257)).tolist() == [0, 256]


@settings(max_examples=40)
@given(st.lists(st.floats(0, 3), min_size=1, max_size=50))
def test_weights_are_close_in_eight_bits(weights):
    exact = np.array(weights)
    found = packed_weights(exact)
    read = found["scale"] * (unpacked(found).astype(float) / 255) ** 2
    bound = np.sqrt(exact * found["scale"]) / 255 + found["scale"] / 260_100 + 1e-12
    assert (np.abs(read - exact) <= bound).all()


def test_a_small_weight_is_not_zero():
    found = packed_weights(np.array([1.0, 0.001]))
    assert found["scale"] * (unpacked(found)[1] / 255) ** 2 == pytest.approx(0.001, rel=0.07)


def test_shares_and_positions_are_close():
    shares = np.linspace(0, 1, 1000)
    assert np.abs(unpacked(packed_shares(shares)) / 255 - shares).max() <= 1 / 510 + 1e-9
    places = np.random.default_rng(0).normal(size=(50, 2)) * [5, 1]
    found = unpacked(packed_positions(places)).reshape(-1, 2) / 65535
    size = np.ptp(places, axis=0).max()
    assert np.abs(found * size + places.min(0) - places).max() <= size / 65535
    assert not unpacked(packed_positions(np.ones((3, 2)))).any()


def test_layers_are_chosen_evenly_and_with_the_last():
    assert evenly_chosen(5, 9) == [0, 1, 2, 3, 4]
    assert evenly_chosen(9, 3) == [0, 4, 8]
    assert evenly_chosen(7, 1) == [6]


def lists_of(edge_index, n):
    near = as_neighbors(edge_index, n)
    return near.ptr.numpy(), near.source.numpy()


@pytest.mark.parametrize("name", AWKWARD)
def test_a_small_graph_is_kept_whole(name):
    n, edge_index = AWKWARD[name]
    ptr, source = lists_of(edge_index, n)
    found = sample_graph(ptr, source)
    assert found.nodes.tolist() == list(range(n))
    assert found.whole.all()
    assert np.array_equal(found.source, source)
    assert np.array_equal(found.ptr, ptr)


@settings(max_examples=40)
@given(graphs(max_nodes=12, max_edges=40), st.integers(4, 10), st.integers(8, 30))
def test_a_sample_has_all_neighbours_of_its_whole_nodes(graph, most_nodes, most_edges):
    n, edge_index = graph
    ptr, source = lists_of(edge_index, n)
    found = sample_graph(ptr, source, most_nodes, most_edges)
    assert len(found.nodes) <= max(most_nodes, n if n <= most_nodes else 0)
    assert len(found.source) <= max(most_edges, len(source) if found.whole.all() else 0)
    for place, node in enumerate(found.nodes):
        here = slice(found.ptr[place], found.ptr[place + 1])
        expected = source[ptr[node] : ptr[node + 1]].tolist() if found.whole[place] else []
        assert found.nodes[found.source[here]].tolist() == expected
        assert source[found.edges[here]].tolist() == expected


def test_a_large_graph_is_sampled_up_to_the_bounds():
    ptr, source = lists_of(random_edges(2000, 6000), 2000)
    found = sample_graph(ptr, source, 500, 100_000)
    assert 400 < len(found.nodes) <= 500
    assert 20 < found.whole.sum() < 500
    fewer = sample_graph(ptr, source, 5000, 1000)
    assert len(fewer.nodes) == 2000
    assert 900 < len(fewer.source) <= 1000


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (9, 4), (30, 60)])
@pytest.mark.parametrize("layout", ["auto", "pca"])
def test_every_node_has_a_place(shape, layout):
    h = torch.randn(shape).numpy()
    found = positions(h, chosen_layout(layout, len(h)))
    assert found.shape == (shape[0], 2)
    assert np.isfinite(found).all()
    assert not positions(np.ones((20, 3)), "tsne").any()  # a collapsed network


def test_an_outlier_does_not_shrink_the_map():
    h = np.random.default_rng(0).normal(size=(500, 2))
    h[7] = 1000.0
    found = positions(h, "pca")
    assert np.ptp(found) < 20
    assert found[7, 0] in (found[:, 0].min(), found[:, 0].max())


def test_the_layout_follows_the_size():
    assert chosen_layout("auto", 5000) == "tsne"
    assert chosen_layout("auto", 5001) == "pca"
    assert chosen_layout("tsne", 9) == "pca"
    with pytest.raises(UserError, match="did you mean 'tsne'"):
        chosen_layout("t-sne", 9)
