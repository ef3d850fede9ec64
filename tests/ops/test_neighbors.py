"""Neighbour lists against sets of pairs."""

import pytest
import torch
from hypothesis import example, given
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops import Neighbors, as_neighbors

from graphs import AWKWARD, edges, graphs, random_edges, undirected


def literal_lists(n: int, edge_index: Tensor) -> list[list[int]]:
    """N_v of every node: the sources of the edges into v, and v, each once, in order."""
    lists = [{v} for v in range(n)]
    for u, v in edge_index.t().tolist():
        lists[v].add(u)
    return [sorted(list_) for list_ in lists]


def slices(values: Tensor, ptr: Tensor) -> list[list[int]]:
    return [part.tolist() for part in values.split(ptr.diff().tolist())]


@given(graphs())
@example(AWKWARD["one node"])
@example(AWKWARD["no edges"])
@example(AWKWARD["self-loops"])
@example(AWKWARD["duplicates"])
@example(AWKWARD["directed"])
def test_lists_are_the_sets_in_order(graph):
    n, edge_index = graph
    lists = literal_lists(n, edge_index)
    near = Neighbors.from_edge_index(edge_index, n)
    assert near.num_nodes == n
    assert near.num_edges == sum(map(len, lists))
    assert slices(near.source, near.ptr) == lists
    assert near.target.tolist() == [v for v in range(n) for _ in lists[v]]
    assert near.degree.tolist() == [len(list_) for list_ in lists]
    assert near.edge_index.tolist() == [near.source.tolist(), near.target.tolist()]


@given(graphs())
def test_by_source_lists_every_edge_under_its_source(graph):
    n, edge_index = graph
    lists = literal_lists(n, edge_index)
    near = Neighbors.from_edge_index(edge_index, n)
    assert sorted(near.by_source.tolist()) == list(range(near.num_edges))
    assert near.source[near.by_source].tolist() == sorted(near.source.tolist())
    listeners = [[v for v in range(n) if u in lists[v]] for u in range(n)]
    assert slices(near.target[near.by_source], near.source_ptr) == listeners


@given(graphs())
def test_symmetric_says_whether_listening_is_mutual(graph):
    n, edge_index = graph
    lists = literal_lists(n, edge_index)
    mutual = all(v in lists[u] for v in range(n) for u in lists[v])
    assert Neighbors.from_edge_index(edge_index, n).symmetric is mutual
    assert Neighbors.from_edge_index(undirected(edge_index), n).symmetric is True


def test_an_edge_one_way_is_not_symmetric_and_row_1_listens():
    near = Neighbors.from_edge_index(edges((0, 1)), 2)
    assert not near.symmetric
    assert slices(near.source, near.ptr) == [[0], [0, 1]]


def test_the_order_and_number_of_the_given_edges_do_not_matter():
    edge_index = random_edges(10, 30)
    wanted = Neighbors.from_edge_index(edge_index, 10)
    shuffled = torch.cat([edge_index, edge_index], 1)[:, torch.randperm(120)]
    given_so = Neighbors.from_edge_index(shuffled, 10)
    for name in ("ptr", "source", "target", "source_ptr", "by_source"):
        assert torch.equal(getattr(wanted, name), getattr(given_so, name)), name


def test_small_integers_are_taken_and_pygs_int64_comes_out():
    near = Neighbors.from_edge_index(edges((0, 1), (1, 2)).int(), 3)
    assert near.edge_index.dtype == near.ptr.dtype == torch.int64
    assert near.edge_index.tolist() == [[0, 0, 1, 1, 2], [0, 1, 1, 2, 2]]


def test_no_nodes():
    near = Neighbors.from_edge_index(edges(), 0)
    assert (near.num_nodes, near.num_edges) == (0, 0)
    assert near.symmetric


def test_moving_keeps_everything():
    near = Neighbors.from_edge_index(edges((0, 1), (2, 0)), 3)
    moved = near.to("cpu")
    assert moved.device == torch.device("cpu")
    assert moved.symmetric == near.symmetric
    assert torch.equal(moved.by_source, near.by_source)


def test_as_neighbors_passes_lists_through_and_builds_the_rest():
    near = Neighbors.from_edge_index(edges((0, 1)), 2)
    assert as_neighbors(near, 2) is near
    assert torch.equal(as_neighbors(edges((0, 1)), 2).source, near.source)


@pytest.mark.parametrize(
    ("edge_index", "sentence"),
    [
        (torch.zeros(3, 2, dtype=torch.long), r"has shape \[3, 2\]"),
        (torch.zeros(2, dtype=torch.long), r"has shape \[2\]"),
        (torch.zeros(2, 1), "torch.float32 values: expected integers"),
        (torch.zeros(2, 1, dtype=torch.bool), "torch.bool values: expected integers"),
        (edges((0, 3)), "node 0 to 3 but there are 3 nodes"),
        (edges((-1, 0)), "node -1 to 0"),
    ],
)
def test_nonsense_is_refused(edge_index, sentence):
    with pytest.raises(UserError, match=sentence):
        Neighbors.from_edge_index(edge_index, 3)


def test_lists_of_another_graph_are_refused():
    near = Neighbors.from_edge_index(edges(), 2)
    with pytest.raises(UserError, match="are for 2 nodes but x has 5 rows"):
        as_neighbors(near, 5)
