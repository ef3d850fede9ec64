"""Parts of neighbour lists: the same as lists built anew; edges dropped in pairs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.nn import GCNConv
from torch_geometric.utils import dropout_edge

from deepgat.nn import NeighborAttention, UniformScore
from deepgat.nn.drop_edge import DropEdge, all_edges, no_edges
from deepgat.ops import Neighbors, Normalization

from graphs import graphs, random_edges

FIELDS = ("ptr", "source", "target", "source_ptr", "by_source", "target_by_source")


def assert_same_lists(a: Neighbors, b: Neighbors) -> None:
    for name in FIELDS:
        assert torch.equal(getattr(a, name), getattr(b, name)), name
        assert getattr(a, name).dtype == getattr(b, name).dtype, name
    assert a.symmetric == b.symmetric


@given(graph=graphs(), seed=st.integers(0, 99))
def test_selected_lists_are_those_built_anew(graph, seed):
    n, edge_index = graph
    whole = Neighbors.from_edge_index(edge_index, n)
    keep = torch.rand(whole.num_edges, generator=torch.Generator().manual_seed(seed)) < 0.6
    keep |= whole.source == whole.target
    anew = Neighbors.from_edge_index(whole.edge_index[:, keep], n)
    assert_same_lists(whole.select(keep, anew.symmetric), anew)


@given(graph=graphs(), share=st.sampled_from([0.0, 0.3, 0.9]))
def test_both_directions_of_an_edge_stay_or_go_together(graph, share):
    n, edge_index = graph
    whole = Neighbors.from_edge_index(edge_index, n)
    left = DropEdge(share)(whole)
    before = {(u, v) for u, v in whole.edge_index.t().tolist()}
    after = {(u, v) for u, v in left.edge_index.t().tolist()}
    assert {(v, v) for v in range(n)} <= after <= before
    for u, v in before:
        if (v, u) in before:
            assert ((u, v) in after) == ((v, u) in after)
    anew = Neighbors.from_edge_index(left.edge_index, n)
    assert_same_lists(replace(left, symmetric=anew.symmetric), anew)
    assert anew.symmetric or not left.symmetric  # said to be symmetric only where it is


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_the_edges_kept_are_decided_by_a_hash_of_their_ends(share):
    """Nothing else decides: not the order of the lists, nor which of the edges are at hand."""
    whole = Neighbors.from_edge_index(random_edges(50, 200), 50)
    torch.manual_seed(3)
    seed = int(torch.randint(2**31 - 1, (1,)))
    torch.manual_seed(3)
    left = {tuple(pair) for pair in DropEdge(share)(whole).edge_index.t().tolist()}

    def mix(x: int) -> int:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = ((x ^ (x >> shift)) * factor) % 2**32
        return x ^ (x >> 16)

    for u, v in whole.edge_index.t().tolist():
        draw = mix((mix(seed ^ min(u, v)) + max(u, v)) % 2**32)
        assert ((u, v) in left) == (u == v or draw >= share * 2**32)


def test_the_share_of_dropped_edges_is_the_one_asked_for():
    whole = Neighbors.from_edge_index(random_edges(300, 5000), 300)
    left = DropEdge(0.3)(whole)
    assert (left.num_edges - 300) / (whole.num_edges - 300) == pytest.approx(0.7, abs=0.03)


def test_a_graph_that_pyg_dropped_edges_from():
    """Its edges weighed 0 in our lists give what PyG's layer gives on the edges it left."""
    edge_index = random_edges(20, 60).unique(dim=1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    left, _ = dropout_edge(edge_index, 0.4, force_undirected=True)
    assert 0 < left.size(1) < edge_index.size(1)
    whole = Neighbors.from_edge_index(edge_index, 20)
    kept = {(u, v) for u, v in left.t().tolist()} | {(v, v) for v in range(20)}
    keep = torch.tensor([(u, v) in kept for u, v in whole.edge_index.t().tolist()])
    ours = NeighborAttention(7, 4, score=UniformScore, normalization=Normalization.SYMMETRIC)
    theirs = GCNConv(7, 4).double()
    theirs.lin.weight.data = ours.double().weight.data
    x = torch.randn(20, 7, dtype=torch.double)
    expected = theirs(x, left)
    for near in (whole.masked(~keep), whole.select(keep, symmetric=True)):
        torch.testing.assert_close(ours(x, near), expected, rtol=0, atol=1e-10)


def test_as_many_edges_are_dropped_as_by_pyg():
    edge_index = random_edges(40, 300).unique(dim=1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    whole = Neighbors.from_edge_index(edge_index, 40)
    pairs, draws, p = edge_index.size(1) // 2, 300, 0.3
    ours, theirs = torch.tensor(
        [
            [
                (DropEdge(p)(whole).num_edges - 40) // 2,
                dropout_edge(edge_index, p, force_undirected=True)[0].size(1) // 2,
            ]
            for _ in range(draws)
        ],
        dtype=torch.double,
    ).t()
    error = (pairs * p * (1 - p) / draws) ** 0.5
    assert abs(ours.mean() - theirs.mean()) < 4 * 2**0.5 * error
    assert ours.var() == pytest.approx(theirs.var(), rel=0.5)


def test_every_call_draws_anew_and_a_seed_repeats_it():
    whole = Neighbors.from_edge_index(random_edges(50, 200), 50)
    first, second = DropEdge(0.5)(whole), DropEdge(0.5)(whole)
    assert not torch.equal(first.edge_index, second.edge_index)
    torch.manual_seed(0)
    again = DropEdge(0.5)(whole)
    torch.manual_seed(0)
    assert torch.equal(again.edge_index, DropEdge(0.5)(whole).edge_index)


def test_all_edges_and_none():
    whole = Neighbors.from_edge_index(random_edges(9, 20), 9)
    assert all_edges(whole) is whole
    nothing = torch.empty(2, 0, dtype=torch.long)
    assert_same_lists(no_edges(whole), Neighbors.from_edge_index(nothing, 9))
