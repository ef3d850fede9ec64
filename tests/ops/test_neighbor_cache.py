"""Lists of a raw edge_index: built once, never those of another graph."""

import copy
import gc
import os
import pickle
import threading
import weakref

import pytest
import torch
from torch_geometric import EdgeIndex

from deepgat.errors import UserError
from deepgat.models import GCN
from deepgat.nn import NeighborAttention
from deepgat.ops import Neighbors, as_neighbors, neighbor_cache, use_neighbor_cache
from deepgat.ops.list_checks import _IN_RANGE

from graphs import random_edges

N = 12


@pytest.fixture(autouse=True)
def _empty_cache():
    with use_neighbor_cache(False):
        pass


@pytest.fixture
def built(monkeypatch):
    """The graphs whose lists were built, in order."""
    calls = []
    build = Neighbors.from_edge_index

    def counted(edge_index, num_nodes):
        calls.append(num_nodes)
        return build(edge_index, num_nodes)

    monkeypatch.setattr(Neighbors, "from_edge_index", staticmethod(counted))
    return calls


def edges_of(lists):
    return set(map(tuple, lists.edge_index.t().tolist()))


def assert_lists_of(edge_index, n=N):
    """What the cache gives is what building gives."""
    with use_neighbor_cache(False):
        expected = edges_of(as_neighbors(edge_index.clone(), n))
    assert edges_of(as_neighbors(edge_index, n)) == expected


def test_a_second_call_builds_nothing(built):
    conv, x, edges = NeighborAttention(4, 2, 2), torch.randn(N, 4), random_edges(N, 20)
    first = conv(x, edges)
    assert torch.equal(conv(x, edges), first)
    assert torch.equal(NeighborAttention(4, 2, 2)(x, edges) * 0, first * 0)
    model = GCN(4, 8, 3, 3)
    model(x, edges)
    assert built == [N]


def test_values_are_placed_without_searching_again(built, monkeypatch):
    conv, x, edges = NeighborAttention(4, 2, edge_dim=3), torch.randn(N, 4), random_edges(N, 20)
    prepared = Neighbors.from_edge_index(edges, N)
    values = [(torch.rand(40), torch.randn(40, 3)) for _ in range(3)]
    expected = [conv(x, prepared.with_values(edges, *item)) for item in values]
    built.clear()
    searches, search = [], torch.searchsorted
    monkeypatch.setattr(torch, "searchsorted", lambda *a: searches.append(1) or search(*a))
    for (weight, features), right in zip(values, expected, strict=True):
        assert torch.equal(conv(x, edges, features, edge_weight=weight), right)
    assert len(searches) == len(built) == 1


def test_layers_without_self_loops_reuse_their_mask(built, monkeypatch):
    conv, x = NeighborAttention(4, 2, add_self_loops=False), torch.randn(N, 4)
    edges = random_edges(N, 10, directed=True)
    first = conv(x, edges)
    masked = []
    mask = Neighbors.masked
    monkeypatch.setattr(Neighbors, "masked", lambda *a: masked.append(1) or mask(*a))
    assert torch.equal(conv(x, edges), first)
    assert built == [N]
    assert not masked
    weight = torch.rand(10)
    with use_neighbor_cache(False):
        expected = conv(x, edges, edge_weight=weight)
    assert torch.equal(conv(x, edges, edge_weight=weight), expected)


CHANGES = {
    "an entry": lambda e: e.__setitem__((0, 3), (int(e[0, 3]) + 1) % N),
    "copy_": lambda e: e.copy_(random_edges(N, 20, seed=1)),
    "through a view": lambda e: e[1].fill_(2),
    "through detach": lambda e: e.detach().zero_(),
    "in inference mode": lambda e: _in_inference_mode(e),
    "set_": lambda e: e.set_(random_edges(N, 20, seed=1)),
    "other memory": lambda e: setattr(e, "data", random_edges(N, 20, seed=1)),
    "another shape": lambda e: e.resize_(2, 10),
    "transposed in place": lambda e: e.t_().resize_(2, 20),
    "numpy, all": lambda e: e.numpy().__setitem__(slice(None), random_edges(N, 20, 1).numpy()),
    "numpy, one edge": lambda e: e.numpy().__setitem__((0, 13), (int(e[0, 13]) + 1) % N),
    "data, all": lambda e: e.data.copy_(random_edges(N, 20, seed=1)),
}


def _in_inference_mode(edge_index):
    with torch.inference_mode():
        edge_index.zero_()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_place_is_seen(change):
    edges = random_edges(N, 20)
    assert_lists_of(edges)
    CHANGES[change](edges)
    assert_lists_of(edges)


def test_memory_that_comes_back_is_not_mistaken():
    """``edges.data`` moves away, and then to new memory that might have the old address."""
    edges = random_edges(N, 20)
    assert_lists_of(edges)
    for seed in range(1, 20):
        edges.data = random_edges(N, 20, seed=seed)
        assert_lists_of(edges)


def test_another_graph_at_the_same_address():
    addresses = []
    for seed in range(30):
        edges = random_edges(N, 20, seed=seed)
        addresses.append((id(edges), edges.data_ptr()))
        assert_lists_of(edges)
        del edges
    assert len(neighbor_cache._entries) == 0


def test_views_of_one_storage_are_different_graphs(built):
    storage = random_edges(N, 40)
    views = [storage[:, :20], storage[:, 20:40], storage[:, ::2], storage.flip(0)]
    for _ in range(2):
        for view in views:
            assert_lists_of(view)
    storage.zero_()
    for view in views[:3]:
        assert edges_of(as_neighbors(view, N)) == {(i, i) for i in range(N)}


def test_two_graphs_and_two_sizes_in_turn(built):
    one, other = random_edges(N, 20), random_edges(N, 20, seed=1)
    for _ in range(3):
        for edges, n in ((one, N), (other, N), (one, N + 5)):
            assert as_neighbors(edges, n).num_nodes == n
            assert edges_of(as_neighbors(edges, n)) == edges_of(
                Neighbors.from_sorted(*_sorted(edges, n), n)
            )
    assert len(built) == 3


def _sorted(edges, n):
    pairs = sorted({(int(v), int(u)) for u, v in edges.t()} | {(i, i) for i in range(n)})
    target, source = torch.tensor(pairs).t()
    return source, target


def test_lists_are_freed_with_their_tensor():
    gc.disable()
    try:
        edges = random_edges(N, 20)
        lists = weakref.ref(as_neighbors(edges, N).ptr)
        assert lists() is not None
        del edges
        assert lists() is None
        assert not neighbor_cache._entries
    finally:
        gc.enable()


def test_the_number_of_lists_is_bounded(monkeypatch, built):
    monkeypatch.setattr(neighbor_cache, "MOST", 3)
    tensors = [random_edges(N, 20, seed=seed) for seed in range(5)]
    for edges in tensors:
        as_neighbors(edges, N)
        as_neighbors(tensors[0], N)  # used again and again, so it stays
    assert len(neighbor_cache._entries) == 3
    assert len(built) == 5


def test_inference_tensors_are_not_kept(built):
    with torch.inference_mode():
        edges = random_edges(N, 20)
        as_neighbors(edges, N)
        edges.zero_()
        assert as_neighbors(edges, N).num_edges == N
    assert not neighbor_cache._entries


def test_lists_met_in_inference_mode_train_later():
    conv, x = NeighborAttention(4, 2, add_self_loops=False), torch.randn(N, 4)
    edges = random_edges(N, 20)
    weight = torch.rand(40)
    with torch.inference_mode():
        conv(x, edges)
        conv(x, edges, edge_weight=weight)
    conv(x, edges).sum().backward()
    conv(x, edges, edge_weight=weight).sum().backward()


def test_edge_index_of_pyg_is_kept(built):
    edges = EdgeIndex(random_edges(N, 20), sparse_size=(N, N))
    conv, x = NeighborAttention(4, 2), torch.randn(N, 4)
    assert torch.equal(conv(x, edges), conv(x, edges))
    assert built == [N]


def test_switched_off_nothing_is_kept(built):
    edges = random_edges(N, 20)
    with use_neighbor_cache(False):
        as_neighbors(edges, N)
        as_neighbors(edges, N)
    assert len(built) == 2
    assert not neighbor_cache._entries


def test_modules_do_not_carry_lists():
    conv, x, edges = NeighborAttention(4, 2), torch.randn(N, 4), random_edges(N, 20)
    fresh = len(pickle.dumps(conv))
    expected = conv(x, edges)
    assert len(pickle.dumps(conv)) == fresh
    assert torch.equal(copy.deepcopy(conv)(x, edges), expected)


def test_bad_edges_are_refused_every_time():
    edges = torch.tensor([[0, N], [1, 2]])
    for _ in range(2):
        with pytest.raises(UserError, match="names node 0 to 12"):
            as_neighbors(edges, N)
    edges[0, 1] = 0
    as_neighbors(edges, N)
    edges[0, 1] = -1
    with pytest.raises(UserError, match="names node -1"):
        as_neighbors(edges, N)


def test_values_are_read_once_and_again_after_a_change():
    conv, x, edges = NeighborAttention(4, 2), torch.randn(N, 4), random_edges(N, 20)
    weight = torch.rand(40)
    conv(x, edges, edge_weight=weight)
    assert weight in _IN_RANGE["edge_weight"]
    weight[3] = -1.0
    with pytest.raises(UserError, match="edge_weight runs from -1"):
        conv(x, edges, edge_weight=weight)
    count = len(_IN_RANGE["edge_weight"])
    del weight
    assert len(_IN_RANGE["edge_weight"]) == count - 1


def test_threads_share_the_lists():
    graphs = [random_edges(N, 20, seed=seed) for seed in range(8)]
    expected = [edges_of(Neighbors.from_edge_index(edges, N)) for edges in graphs]
    wrong = []

    def work(start):
        for turn in range(60):
            i = (start + turn) % len(graphs)
            if edges_of(as_neighbors(graphs[i], N)) != expected[i]:
                wrong.append(i)
            passing = graphs[i].flip(0)
            as_neighbors(passing, N)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(neighbor_cache._entries) == len(graphs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_has_lists_of_its_own():
    edges = random_edges(N, 20)
    as_neighbors(edges, N)
    pid = os.fork()
    if pid == 0:
        edges.zero_()
        os._exit(0 if as_neighbors(edges, N).num_edges == N else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert_lists_of(edges)
