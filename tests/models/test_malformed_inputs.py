"""What a user gives to layers, models and training that cannot be right: one sentence each."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import deepgat
from deepgat import GAT, GCN, DeepGAT, UserError
from deepgat.nn import ClassScore, NeighborAttention, UniformScore
from deepgat.nn.drop_edge import DropEdge
from deepgat.ops import Neighbors
from tiny import tiny_dataset

from graphs import edges, random_edges

EDGES = random_edges(20, 60)
X = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
FEW = {"hidden_channels": 4, "num_layers": 2, "training": {"epochs": 2}}


@pytest.mark.parametrize("share", [-1, 1, 2, math.nan, "0.5"])
def test_shares_to_drop_are_from_0_to_below_1(share):
    with pytest.raises(UserError, match=r"dropout is .*: expected"):
        NeighborAttention(6, 4, dropout=share)
    with pytest.raises(UserError, match="share is"):
        DropEdge(share)
    with pytest.raises(UserError, match="dropout is"):
        GCN(6, 4, 2, 3, dropout=share)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("make", [lambda: NeighborAttention(6, 4), lambda: GCN(6, 4, 2, 3)])
def test_edge_weights_are_finite_and_not_negative(make, bad):
    weight = torch.ones(EDGES.size(1))
    weight[3] = bad
    with pytest.raises(UserError, match=r"edge_weight runs from .*: expected finite numbers of"):
        make()(X, EDGES, edge_weight=weight)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("score", [UniformScore, None])
def test_a_node_whose_edges_all_weigh_0_listens_to_itself(score, prepared):
    near = Neighbors.from_edge_index(edges((0, 1), (1, 0), (1, 2), (0, 0), (1, 1), (2, 2)), 3)
    weight = torch.where(near.target == 1, 0.0, 1.0)
    conv = NeighborAttention(6, 4, score=score)
    given = near if prepared else near.edge_index
    out = conv(X[:3], given, edge_weight=weight)
    alone = conv(X[1:2], torch.empty(2, 0, dtype=torch.long))
    torch.testing.assert_close(out[1:2], alone)


def test_a_self_loop_of_weight_0_is_heard_when_all_other_edges_are_dropped():
    weight = (EDGES[0] != EDGES[1]).float()
    loops = torch.arange(20).repeat(2, 1)
    near = Neighbors.from_edge_index(EDGES, 20).with_values(
        torch.cat([EDGES, loops], 1), torch.cat([weight, torch.zeros(20)]), None
    )
    left = DropEdge(0.9)(near)
    assert bool((left.others == 0).any())
    assert bool(NeighborAttention(6, 4)(X, left).isfinite().all())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float16])
@pytest.mark.parametrize(
    "make",
    [lambda: NeighborAttention(6, 4), lambda: GAT(6, 4, 2, 3), lambda: GCN(6, 4, 2, 3)],
)
def test_features_have_the_type_of_the_weights(make, dtype):
    with pytest.raises(UserError, match=f"x holds {dtype} values.*convert it with x"):
        make()(X.to(dtype), EDGES)


def test_label_features_have_a_row_per_node():
    conv = NeighborAttention(6, 4, score=ClassScore, num_classes=3, label_channels=3)
    for shape in ((1, 3), (19, 3), (20, 2), (20,)):
        with pytest.raises(UserError, match=r"label_features has shape .*: expected \[20, 3\]"):
            conv(X, EDGES, label_features=torch.ones(shape))
    net = DeepGAT(6, 4, 2, 3, label_hops=2)
    for shape in ((1, 2, 3), (20, 1, 3), (20, 2, 1), (20, 3)):
        with pytest.raises(UserError, match=r"label_features has shape .*: expected \[20, at"):
            net(X, EDGES, label_features=torch.ones(shape))


def changed(**values):
    data = tiny_dataset()
    graph = data.graph.clone()
    for name, value in values.items():
        graph[name] = value(graph) if callable(value) else value
    return replace(data, graphs=(graph,))


MISTAKES = {
    "the masks of Tiny overlap in": {"val_mask": lambda g: g.train_mask},
    "train_mask of Tiny is torch.int64": {"train_mask": torch.tensor([0, 1, 2])},
    r"val_mask of Tiny is torch.bool \[59\]": {"val_mask": lambda g: g.val_mask[:-1]},
    "train_mask of Tiny has nodes with the classes -1": {"y": torch.full((60,), -1)},
    "classes 7 to 7: expected 0 to 2": {"y": torch.full((60,), 7)},
    "y of Tiny has shape .* torch.float32": {"y": lambda g: g.y.float()},
    r"y of Tiny has shape \[59\]": {"y": lambda g: g.y[1:]},
    "x of Tiny holds NaN": {"x": lambda g: g.x.masked_fill(g.x > 2, math.nan)},
    "edge_weight has shape": {"edge_weight": torch.ones(3)},
    "edge_index names node 0 to 60": {"edge_index": torch.tensor([[0, 60], [1, 2]])},
    "x of Tiny holds torch.int64": {"x": lambda g: g.x.long()},
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_graphs_that_cannot_be_trained_on(sentence):
    with pytest.raises(UserError, match=sentence):
        deepgat.fit(changed(**MISTAKES[sentence]), "gcn", **FEW)
    with pytest.raises(UserError, match=sentence):
        deepgat.fit(changed(**MISTAKES[sentence]), training={"epochs": 2})


def test_graphs_that_cannot_be_predicted():
    model = deepgat.fit(tiny_dataset(), "gcn", **FEW)
    nowhere = changed(x=lambda g: g.x.masked_fill(g.x > 2, math.nan))
    with pytest.raises(UserError, match="x of Tiny holds NaN"):
        model.predict(nowhere)
    weighted = changed(edge_weight=lambda g: torch.ones(g.num_edges))
    with pytest.raises(UserError, match="trained without"):
        model.predict(weighted)


def test_small_integers_are_classes_too():
    small = deepgat.fit(changed(y=lambda g: g.y.int()), "gcn", **FEW)
    assert small.scores == deepgat.fit(tiny_dataset(), "gcn", **FEW).scores


def test_training_in_threads_gives_the_numbers_of_training_alone():
    data = tiny_dataset()

    def losses(seed: int) -> list[float]:
        run = deepgat.fit(data, "gcn", seed=seed, **FEW).run
        return [epoch.loss for epoch in run.fitted.history]

    alone = [losses(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(losses, range(3))) == alone
