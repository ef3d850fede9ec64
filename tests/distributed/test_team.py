"""Sums, swaps and gradients between processes; parts and their halo."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from deepgat.distributed import Team, cut, has_metis, owners, partition
from deepgat.errors import UserError

from graphs import graphs, random_edges
from together import together


def sums(team: Team) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(team.rank)
    small, large = (torch.randn(k, generator=generator) for k in (7, 10_001))
    parameters = [torch.nn.Parameter(torch.zeros(3, 2)) for _ in range(3)]
    for number, parameter in enumerate(parameters[:2]):  # the third has no gradient
        parameter.grad = torch.full((3, 2), float(team.rank + number))
    team.sum_gradients(parameters)
    assert parameters[2].grad is None
    mine = torch.full((team.rank,), float(team.rank))
    return {
        "small": team.sum(small),
        "large": team.sum(large),
        "gradients": torch.stack([p.grad for p in parameters[:2]]),
        "highest": torch.tensor(team.all_max(float(-team.rank))),
        "first": team.broadcast(torch.tensor([team.rank + 5])),
        "all": torch.cat([torch.empty(0), *team.gather_to_first(mine)]),
    }


def test_sums_have_the_same_bits_in_every_process_and_ranks_in_order():
    found = together(3, sums)
    for name in ("small", "large", "gradients", "highest", "first"):
        assert torch.equal(found[0][name], found[1][name])
        assert torch.equal(found[0][name], found[2][name])
    expected = {}
    for rank in range(3):
        generator = torch.Generator().manual_seed(rank)
        for name, k in (("small", 7), ("large", 10_001)):
            drawn = torch.randn(k, generator=generator)
            expected[name] = expected[name] + drawn if rank else drawn
    for name, total in expected.items():
        assert torch.equal(found[0][name], total)
    assert found[0]["gradients"][:, 0, 0].tolist() == [3.0, 6.0]
    assert found[0]["highest"] == 0
    assert found[2]["first"].tolist() == [5]
    assert found[0]["all"].tolist() == [1.0, 2.0, 2.0]
    assert found[1]["all"].numel() == 0


@given(graph=graphs(), parts=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_parts_hold_every_node_once_and_every_edge_at_its_target(graph, parts, seed):
    n, edge_index = graph
    owner = torch.randint(parts, (n,), generator=torch.Generator().manual_seed(seed))
    x = torch.arange(n).view(n, 1).double()
    mask = torch.arange(n) % 2 == 0
    data = Data(x=x, edge_index=edge_index, y=torch.arange(n),
                train_mask=mask, val_mask=~mask, test_mask=mask)  # fmt: skip
    found = [cut(data, owner, number, parts) for number in range(parts)]
    assert sorted(torch.cat([p.ids[: p.own] for p in found]).tolist()) == list(range(n))
    edges = torch.cat([p.ids[p.edge_index] for p in found], 1)
    assert sorted(edges.t().tolist()) == sorted(edge_index.t().tolist())
    for number, p in enumerate(found):
        assert (p.edge_index[1] < p.own).all()
        assert torch.equal(p.x.view(-1), p.ids[: p.own].double())
        assert torch.equal(p.y, p.ids[: p.own])
        halo = p.ids[p.own :]
        assert torch.equal(owner[halo], owner[halo].sort().values)
        assert number not in owner[halo].tolist()
        assert p.halo_counts.tolist() == torch.bincount(owner[halo], minlength=parts).tolist()


METHODS = ["order", "stream", pytest.param("metis", marks=pytest.mark.skipif(
    not has_metis(), reason="pymetis is not installed"))]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_have_about_the_same_work_every_time(method, parts):
    edge_index = random_edges(200, 500)
    found = owners(edge_index, 200, parts, method)
    assert torch.equal(found, owners(edge_index, 200, parts, method))
    degree = torch.bincount(edge_index[1], minlength=200) + partition.NODE_WORK
    work = torch.zeros(parts).index_add(0, found, degree.float())
    assert work.max() <= 1.3 * work.mean()


@pytest.mark.parametrize("method", METHODS)
def test_two_clusters_become_two_parts(method):
    ring = torch.stack([torch.arange(30), (torch.arange(30) + 1) % 30])
    found = owners(torch.cat([ring, ring + 30], 1), 60, 2, method)
    assert len(set(found[:30].tolist())) == 1
    assert len(set(found[30:].tolist())) == 1
    assert found[0] != found[30]


def test_graphs_without_nodes_or_edges_and_wrong_names(monkeypatch):
    nothing = torch.empty(2, 0, dtype=torch.long)
    assert owners(nothing, 0, 3).numel() == 0
    assert sorted(owners(nothing, 3, 3).tolist()) == [0, 1, 2]
    with pytest.raises(UserError, match="order"):
        owners(nothing, 3, 2, "orde")
    with pytest.raises(UserError, match="expected 1 or more"):
        owners(nothing, 3, 0)
    monkeypatch.setattr(partition, "has_metis", lambda: False)
    with pytest.raises(UserError, match="install it"):
        owners(nothing, 3, 2, "metis")
