"""Weights and features that travel with the neighbour lists: through layers, samplers, stacks."""

import pytest
import torch

from deepgat.errors import UserError
from deepgat.models import G2, SYSTEMS, DeepGAT
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.nn import AdditiveScore, ClassScore, DotScore, NeighborAttention, UniformScore
from deepgat.nn.drop_edge import DropEdge, no_edges
from deepgat.nn.scores import NeighborMeanScore
from deepgat.ops import Neighbors, Normalization, use_backend
from networks import ORACLES, network

EDGES = torch.tensor([[0, 1, 1, 2, 2, 0, 3, 3], [1, 0, 2, 1, 0, 2, 3, 2]])
UNDIRECTED = EDGES[:, :6]
WEIGHT = torch.tensor([0.5, 2.0, 1.5, 3.0, 0.25, 4.0, 1.0, 2.0], dtype=torch.double)
FEATURES = torch.randn(8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))


def lists(edges: torch.Tensor = EDGES) -> Neighbors:
    m = edges.size(1)
    plain = Neighbors.from_edge_index(edges, 4)
    return plain.with_values(edges, WEIGHT[:m], FEATURES[:m])


@pytest.mark.parametrize("edges", [EDGES, UNDIRECTED])
@pytest.mark.parametrize("score", [AdditiveScore, DotScore, UniformScore, ClassScore])
@pytest.mark.parametrize("normalization", list(Normalization))
def test_the_lists_values_are_those_given_with_the_edges(edges, score, normalization):
    conv = NeighborAttention(
        3, 2, 2, score=score, edge_dim=2, num_classes=3, normalization=normalization
    ).double()
    x = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    m = edges.size(1)
    given = conv(x, edges, edge_weight=WEIGHT[:m], edge_attr=FEATURES[:m])
    listed = conv(x, lists(edges))
    torch.testing.assert_close(listed, given)
    with use_backend("reference"):
        defined = conv(x, lists(edges))
    torch.testing.assert_close(listed, defined)
    upstream = torch.randn_like(given)
    leaves = [x, *conv.parameters()]
    options = {"allow_unused": True, "retain_graph": True}
    for mine, theirs in zip(
        torch.autograd.grad(listed, leaves, upstream, **options),
        torch.autograd.grad(defined, leaves, upstream, **options),
        strict=True,
    ):
        if mine is not None:
            torch.testing.assert_close(mine, theirs)


def test_values_stay_with_their_edges_when_some_are_dropped():
    near = lists(UNDIRECTED)
    torch.manual_seed(1)
    part = DropEdge(0.5)(near)
    assert 4 < part.num_edges < near.num_edges
    place = {pair: i for i, pair in enumerate(map(tuple, near.edge_index.t().tolist()))}
    kept = [place[pair] for pair in map(tuple, part.edge_index.t().tolist())]
    assert torch.equal(part.log_weight, near.log_weight[kept])
    assert torch.equal(part.features, near.features[kept])
    alone = no_edges(near)
    assert alone.log_weight is None
    assert alone.features.shape == (4, 2)


@pytest.mark.parametrize("system", [n for n in SYSTEMS if n not in (*ORACLES, LABEL_PROPAGATION)])
def test_a_network_of_any_system_reads_them(system):
    model = network(system, 3, 2, edge_dim=2).double().eval()
    x = torch.randn(4, 3, dtype=torch.double)
    out = model(x, lists())
    torch.testing.assert_close(model(x, EDGES, WEIGHT, FEATURES), out)
    other = Neighbors.from_edge_index(EDGES, 4).with_values(EDGES, WEIGHT.flip(0), FEATURES)
    same = torch.allclose(out, model(x, other))
    assert same == (system == "mlp")
    if system != "mlp":
        with pytest.raises(UserError, match="pass edge_attr"):
            model(x, EDGES)


def test_others_are_counted_without_edges_of_weight_0():
    edge_index = torch.tensor([[1, 2, 0, 0], [0, 0, 1, 0]])
    near = Neighbors.from_edge_index(edge_index, 4)
    assert near.others.tolist() == [2, 1, 0, 0]
    weighed = near.with_values(edge_index, torch.tensor([0.5, 0.0, 0.0, 0.0]), None)
    assert weighed.others.tolist() == [1, 0, 0, 0]


def test_the_mean_over_neighbours_of_weight_0_is_0():
    edge_index = torch.tensor([[1, 2, 0], [0, 0, 1]])
    near = Neighbors.from_edge_index(edge_index, 3)
    near = near.with_values(edge_index, torch.tensor([1.0, 1.0, 0.0]), None)
    conv = NeighborAttention(2, 2, score=NeighborMeanScore, bias=False)
    x = torch.randn(3, 2)
    h = x @ conv.weight.t()
    expected = torch.stack([(h[1] + h[2]) / 2, torch.zeros(2), torch.zeros(2)])
    torch.testing.assert_close(conv(x, near), expected)


@pytest.mark.parametrize("normalization", list(Normalization))
def test_a_node_whose_edges_all_weigh_0_listens_to_itself(normalization):
    edge_index = torch.tensor([[0, 1, 2, 2], [0, 0, 1, 2]])
    weight = torch.tensor([0.0, 0.0, 1.0, 0.0])
    near = Neighbors.from_edge_index(edge_index, 3).with_values(edge_index, weight, None)
    heard = near.log_weight.exp().view(-1)
    pairs = list(zip(near.target.tolist(), near.source.tolist(), heard.tolist(), strict=True))
    assert pairs == [(0, 0, 1.0), (0, 1, 0.0), (1, 1, 1.0), (1, 2, 1.0), (2, 2, 1.0)]
    for score in (UniformScore, NeighborMeanScore):
        x = torch.randn(3, 2)
        conv = NeighborAttention(2, 2, score=score, bias=False, normalization=normalization)
        out = conv(x, near)
        itself = x[0] @ conv.weight.t()
        torch.testing.assert_close(out[0], itself if score is UniformScore else 0 * itself)


def test_gates_do_not_look_at_neighbours_of_weight_0():
    weight = torch.tensor([1.0, 1.0, 0.0, 0.0, 2.0, 2.0])
    near = Neighbors.from_edge_index(UNDIRECTED, 4).with_values(UNDIRECTED, weight, None)
    kept = UNDIRECTED[:, weight > 0]
    x = 0.3 * torch.randn(4, 3)
    for reduction in ("mean", "sum"):
        gate = G2(3, 3, 1, 2, power=2.0, reduction=reduction).gate
        expected = gate(x, Neighbors.from_edge_index(kept, 4))
        assert 0 < expected[:3].min() < expected.max() < 0.99
        torch.testing.assert_close(gate(x, near), expected)


@pytest.mark.gpu
def test_a_gpu_sees_the_same_values():
    torch.manual_seed(0)
    model = DeepGAT(3, 8, 2, 2, edge_dim=2).double().eval()
    x = torch.randn(4, 3, dtype=torch.double)
    expected = model(x, lists())
    found = model.cuda()(x.cuda(), lists().to("cuda")).cpu()
    torch.testing.assert_close(found, expected)
