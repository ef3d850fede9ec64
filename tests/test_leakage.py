"""Whose labels can reach whose outputs, through the inputs that training prepares.

A node's own training label is kept out of its own z, bit by bit. It is out of its own *output*
only at one layer of the paper's wiring: at two layers it comes back through the neighbours, under
the authors' wiring in what is aggregated, under the paper's in how it is weighed.
"""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from deepgat.data import NodeDataset, propagate_labels
from deepgat.models import SYSTEMS, LayerOutputs, Network
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.ops import Neighbors
from deepgat.training.inputs import GraphInputs, prepare
from networks import ORACLES, PAPER_SCORES, network
from tiny import tiny_dataset

CPU = torch.device("cpu")
HONEST = [(model, score) for model in ("deepgat", "gat") for score in PAPER_SCORES[model]]
PRESETS = ("paper", "authors")


def build(model: str, preset: str, layers: int, score: str | None = None, **choices):
    torch.manual_seed(0)
    choices |= {"unit_features": False} | ({} if score is None else {"score": score})
    sizes = {"num_layers": layers, "hidden_channels": 4, "heads": 2}
    return network(model, 6, 3, preset=preset, **sizes, **choices).eval()


def inputs(model: Network, data: NodeDataset) -> GraphInputs:
    (prepared,) = prepare(model, data, CPU)
    return prepared


def with_labels(data: NodeDataset, y: Tensor) -> NodeDataset:
    graph = copy.copy(data.graph)
    graph.y = y
    return replace(data, graphs=(graph,))


def with_label(data: NodeDataset, node: int) -> NodeDataset:
    """The dataset with another label for one node."""
    y = data.graph.y.clone()
    y[node] = (y[node] + 1) % data.num_classes
    return with_labels(data, y)


def training_nodes(data: NodeDataset) -> list[int]:
    return data.graph.train_mask.nonzero().view(-1).tolist()


def all_outputs(outputs: LayerOutputs) -> list[Tensor]:
    return [*outputs.layer_logits.values(), *outputs.hidden]


# ------------------------------------------------------------------------------- the own label


def test_one_paper_layer_sees_no_label_at_all():
    """z_1 = rm_diag(I) Y is zero whatever the labels are."""
    data = tiny_dataset()
    model = build("deepgat", "paper", layers=1)
    before = inputs(model, data)
    assert before.label_features.shape == (60, 1, 3)
    for node in training_nodes(data):
        after = inputs(model, with_label(data, node))
        assert (after.label_features == 0).all()
        for a, b in zip(all_outputs(before.run(model)), all_outputs(after.run(model)), strict=True):
            assert torch.equal(a, b)


def test_one_paper_layer_would_use_labels_if_it_were_shown_any():
    """So the test above holds because of z_1, not because nothing reads it."""
    data = tiny_dataset()
    model = build("deepgat", "paper", layers=1)
    shown = inputs(model, data)
    z = torch.rand_like(shown.label_features)
    assert not torch.equal(
        shown.run(model).logits, replace(shown, label_features=z).run(model).logits
    )


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("k", [1, 2])
def test_the_own_label_is_out_of_the_own_z_bit_by_bit(k, directed):
    """∂z_v/∂Y_v = 0 exactly: row v of rm_diag(Â^k) Y stays while other rows move."""
    data = tiny_dataset()
    edge_index, mask = data.graph.edge_index, data.graph.train_mask
    if directed:
        edge_index = edge_index[:, torch.rand(edge_index.size(1)) < 0.7]

    def z(y: Tensor) -> Tensor:
        one_hot = torch.nn.functional.one_hot(y, 3).double() * mask.unsqueeze(1)
        return propagate_labels(edge_index, one_hot, 60, hops=3)[:, k]

    before, moved = z(data.graph.y), 0
    for node in training_nodes(data):
        after = z(with_label(data, node).graph.y)
        assert torch.equal(before[node], after[node])
        moved += not torch.equal(before, after)
    assert moved > len(training_nodes(data)) / 2


def reached_own_output(model: Network, data: NodeDataset) -> list[int]:
    """Training nodes whose own label moves their own logits although it does not move their z."""
    before = inputs(model, data)
    logits = before.run(model).logits
    reached = []
    for node in training_nodes(data):
        after = inputs(model, with_label(data, node))
        assert torch.equal(before.label_features[node], after.label_features[node])
        if not torch.equal(logits[node], after.run(model).logits[node]):
            reached.append(node)
    return reached


@pytest.mark.parametrize("preset", PRESETS)
def test_at_two_layers_the_own_label_returns_through_the_neighbours(preset):
    data = tiny_dataset()
    with_neighbours = [v for v in training_nodes(data) if (data.graph.edge_index[1] == v).any()]
    assert with_neighbours
    assert reached_own_output(build("deepgat", preset, layers=2), data) == with_neighbours


@pytest.mark.parametrize("preset", PRESETS)
def test_without_label_hops_the_own_label_reaches_nothing(preset):
    data = tiny_dataset()
    model = build("deepgat", preset, layers=2, label_hops=0)
    before = inputs(model, data).run(model).logits
    for node in training_nodes(data):
        assert torch.equal(before, inputs(model, with_label(data, node)).run(model).logits)


def test_the_way_of_the_own_label_in_gradients():
    """logits_v ← z_u of the neighbours u ≠ v, and z_u ← y_v: both links are there, by authors."""
    data = tiny_dataset()
    model = build("deepgat", "authors", layers=2)
    before = inputs(model, data)
    near = Neighbors.from_edge_index(data.graph.edge_index, 60)
    z = before.label_features.clone().requires_grad_()
    logits = replace(before, label_features=z).run(model).logits
    checked = 0
    for v in training_nodes(data):
        neighbours = [u for u in near.source[near.target == v].tolist() if u != v]
        after = inputs(model, with_label(data, v))
        (gradient,) = torch.autograd.grad(logits[v].square().sum(), z, retain_graph=True)
        for u in neighbours:
            assert gradient[u].abs().max() > 0
            assert not torch.equal(before.label_features[u], after.label_features[u])
            checked += 1
    assert checked > 0


def test_in_the_paper_wiring_the_own_label_only_weighs():
    """Two layers of the paper: the own label moves the attention, not what is aggregated."""
    data = tiny_dataset()
    model = build("deepgat", "paper", layers=2)
    node = next(v for v in training_nodes(data) if (data.graph.edge_index[1] == v).any())
    before, after = inputs(model, data), inputs(model, with_label(data, node))
    first, other = before.run(model, True), after.run(model, True)
    assert torch.equal(first.hidden[0], other.hidden[0])
    assert torch.equal(first.attention[0].weight, other.attention[0].weight)
    own = first.attention[1].edge_index[1] == node
    assert not torch.equal(first.attention[1].weight[own], other.attention[1].weight[own])


# ----------------------------------------------------------------- validation and test labels


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("model", "score"), HONEST)
def test_validation_and_test_labels_reach_no_output(model, score, preset, layers):
    data = tiny_dataset()
    network = build(model, preset, layers, score)
    y = data.graph.y.clone()
    y[~data.graph.train_mask] = torch.randint(3, (int((~data.graph.train_mask).sum()),))
    assert not torch.equal(y, data.graph.y)
    before, after = (inputs(network, each).run(network) for each in (data, with_labels(data, y)))
    for a, b in zip(all_outputs(before), all_outputs(after), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("part", ["val", "test"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("score", PAPER_SCORES["oracle"])
def test_the_oracle_alone_sees_them(score, preset, part):
    data = tiny_dataset()
    network = build("oracle", preset, 2, score)
    mask = data.graph[f"{part}_mask"]
    y = torch.where(mask, (data.graph.y + torch.randint(1, 3, (60,))) % 3, data.graph.y)
    before, after = (inputs(network, each).run(network) for each in (data, with_labels(data, y)))
    assert not torch.equal(before.logits, after.logits)


@pytest.mark.parametrize("right", [1.0, 0.7])
def test_deep_oracle_sees_them_too(right):
    data = tiny_dataset()
    model = network("deep-oracle", 6, 3, num_layers=5, right=right).eval()
    y = torch.where(data.graph.test_mask, (data.graph.y + 1) % 3, data.graph.y)
    before, after = (inputs(model, each).run(model) for each in (data, with_labels(data, y)))
    assert not torch.equal(before.logits, after.logits)


BODIES = [
    *((name, {}) for name in SYSTEMS if name not in (*PAPER_SCORES, *ORACLES, LABEL_PROPAGATION)),
    ("gcnii", {"conv": "deepgat"}),
    ("g2", {"conv": "deepgat"}),
]


@pytest.mark.parametrize(("system", "conv"), BODIES)
def test_no_body_lets_validation_or_test_labels_through(system, conv):
    data = tiny_dataset()
    torch.manual_seed(0)
    model = network(system, 6, 3, num_layers=3, **conv).eval()
    y = data.graph.y.clone()
    y[~data.graph.train_mask] = torch.randint(3, (int((~data.graph.train_mask).sum()),))
    assert not torch.equal(y, data.graph.y)
    before, after = (inputs(model, each).run(model) for each in (data, with_labels(data, y)))
    for a, b in zip(all_outputs(before), all_outputs(after), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("system", "conv"), BODIES)
def test_other_bodies_see_no_label_at_all(system, conv):
    """Class heads outside DeepGAT take no z: no own label comes back."""
    data = tiny_dataset()
    torch.manual_seed(0)
    model = network(system, 6, 3, num_layers=3, **conv).eval()
    assert model.label_hops == 0
    before = inputs(model, data).run(model)
    for node in training_nodes(data)[:3]:
        after = inputs(model, with_label(data, node)).run(model)
        assert torch.equal(before.logits, after.logits)


@pytest.mark.parametrize("preset", PRESETS)
def test_deepgat_does_see_the_labels(preset):
    """So the tests above hold because nothing is fed in, not because nothing would be read."""
    data = tiny_dataset()
    model = build("deepgat", preset, layers=3)
    before = inputs(model, data).run(model)
    after = [inputs(model, with_label(data, v)).run(model) for v in training_nodes(data)]
    assert any(not torch.equal(before.logits, each.logits) for each in after)
