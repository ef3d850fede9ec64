"""Parts of neighbour lists: against sets of pairs, and the kernels against their definition."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from deepgat.ops import Neighbors, use_backend
from deepgat.ops.cpu.kernels import available
from deepgat.ops.sampling import no_places, reach, sample_neighbors, sublists

from graphs import AWKWARD, graphs, random_edges

needs_kernels = pytest.mark.skipif(not available(), reason="the native kernels are not built")
LISTS = ("ptr", "source", "target", "source_ptr", "by_source", "target_by_source", "pieces", "hubs",
         "source_pieces", "source_hubs")  # fmt: skip


def lists_of(near: Neighbors) -> list[set[int]]:
    return [set(part.tolist()) for part in near.source.split(near.degree.tolist())]


def chosen_nodes(n: int, choice: int) -> Tensor:
    """Some of n nodes, at least one: the bits of a number."""
    nodes = [v for v in range(n) if choice >> v & 1] or [choice % n]
    return torch.tensor(nodes)


def hubs(directed: bool) -> Neighbors:
    """A graph with lists longer than a piece, its edges with weights and features."""
    edge_index = random_edges(700, 3000, directed=directed)
    to_hub = torch.stack([torch.arange(699), torch.full((699,), 5)])
    edge_index = torch.cat([edge_index, to_hub] + ([] if directed else [to_hub.flip(0)]), 1)
    near = Neighbors.from_edge_index(edge_index, 700)
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(edge_index.size(1), generator=generator)
    return near.with_values(edge_index, weight, torch.rand(weight.numel(), 2, generator=generator))


@given(graphs(), st.integers(0, 2**9 - 1))
@example(AWKWARD["directed"], 0b1010)
@example(AWKWARD["no edges"], 0b1111)
def test_the_lists_among_nodes_are_those_of_the_edges_among_them(graph, choice):
    n, edge_index = graph
    whole, nodes = Neighbors.from_edge_index(edge_index, n), chosen_nodes(n, choice)
    places = no_places(n)
    found = sublists(whole, nodes, places)
    assert (places == -1).all()
    new = {v: i for i, v in enumerate(nodes.tolist())}
    pairs = [(new[u], new[v]) for u, v in edge_index.t().tolist() if u in new and v in new]
    kept = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    expected = Neighbors.from_edge_index(kept, nodes.numel())
    for name in LISTS[:6]:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert getattr(found, name).dtype == getattr(expected, name).dtype, name
    assert found.symmetric == whole.symmetric


@needs_kernels
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_kernels_do_what_is_defined(directed, threads):
    near, before = hubs(directed), torch.get_num_threads()
    places = no_places(near.num_nodes)
    nodes = torch.randperm(700)[:400].sort().values
    torch.set_num_threads(threads)
    try:
        drawn = [sample_neighbors(near, nodes, most, 2**32 - 5) for most in (1, 3, 50, 1000)]
        fast = sublists(near, nodes, places)
        reached = reach(near, nodes[:4], [3, 2, 4], 90, 7, places)
    finally:
        torch.set_num_threads(before)
    with use_backend("reference"):
        slow = sublists(near, nodes, places)
        for most, found in zip((1, 3, 50, 1000), drawn, strict=True):
            expected = sample_neighbors(near, nodes, most, 2**32 - 5)
            assert found.dtype == expected.dtype == torch.int32
            assert torch.equal(found, expected)
        assert torch.equal(reached, reach(near, nodes[:4], [3, 2, 4], 90, 7, places))
    for name in (*LISTS, "log_weight", "features"):
        assert torch.equal(getattr(fast, name), getattr(slow, name)), name
        assert getattr(fast, name).dtype == getattr(slow, name).dtype, name


def test_values_of_edges_stay_with_their_edges():
    near = hubs(directed=True)
    nodes = torch.arange(0, 700, 3)
    found = sublists(near, nodes, no_places(700))
    value = dict(
        zip(map(tuple, near.edge_index.t().tolist()), near.log_weight.view(-1), strict=True)
    )
    inside = nodes[found.edge_index].t().tolist()
    expected = torch.stack([value[u, v] for u, v in inside])
    assert torch.equal(found.log_weight.view(-1), expected)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_neighbours_are_drawn_without_replacement_and_without_preference(backend):
    n = 41
    star = torch.stack([torch.arange(1, n), torch.zeros(n - 1, dtype=torch.long)])
    near = Neighbors.from_edge_index(star, n)
    hub, counts, times = torch.tensor([0]), torch.zeros(n), 2000
    with use_backend(backend):
        for seed in range(times):
            drawn = sample_neighbors(near, hub, 10, seed)
            assert drawn.unique().numel() == 10
            counts[drawn.long()] += 1
        assert torch.equal(sample_neighbors(near, hub, 50, 3), torch.arange(1, n).int())
        assert sample_neighbors(near, torch.arange(1, n), 5, 3).numel() == 0
    assert counts[0] == 0  # the node itself is no neighbour to be drawn
    deviation = (times * 0.25 * 0.75) ** 0.5
    assert (counts[1:] - times * 0.25).abs().max() < 4.5 * deviation


@given(graphs(), st.integers(0, 2**9 - 1), st.integers(1, 4), st.integers(1, 9), st.integers(1, 3))
def test_what_is_reached(graph, choice, fan_out, most, hops):
    n, edge_index = graph
    near, seeds = Neighbors.from_edge_index(edge_index, n), chosen_nodes(n, choice)
    places = no_places(n)
    found = reach(near, seeds, [fan_out] * hops, most, 11, places)
    assert (places == -1).all()
    assert torch.equal(found, found.unique())
    assert set(seeds.tolist()) <= set(found.tolist())
    assert found.numel() <= max(most, seeds.numel())
    around, lists = set(seeds.tolist()), lists_of(near)
    for _ in range(hops):
        around |= set().union(*(lists[v] for v in around))
    assert set(found.tolist()) <= around
    everything = reach(near, seeds, [n] * hops, n, 11, places)
    assert set(everything.tolist()) == around  # nothing is left out where nothing has to be
