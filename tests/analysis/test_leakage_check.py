"""The leakage check against networks whose leaks are known, and against changing labels by hand."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from deepgat.analysis import check_leakage
from deepgat.data import NodeDataset
from deepgat.errors import UserError
from deepgat.models import DeepGAT, Network
from deepgat.ops import Neighbors
from deepgat.training.inputs import prepare
from deepgat.training.recipes import recipe
from deepgat.training.run import train_once
from networks import network
from tiny import tiny_dataset, tiny_labels

CPU = torch.device("cpu")


def build(model: str = "deepgat", preset: str = "paper", layers: int = 2, **choices):
    torch.manual_seed(0)
    heads = {} if model == "gcn" else {"preset": preset, "heads": 2, "unit_features": False}
    return network(model, 6, 3, num_layers=layers, hidden_channels=4, **heads, **choices)


def masks_of(graph) -> dict[str, Tensor]:
    return {part: graph[f"{part}_mask"] for part in ("train", "val", "test")}


def as_prepared(model: Network, data: NodeDataset, index: int = 0):
    """The inputs as training prepares them, for any labels of one graph."""

    def inputs_of(y: Tensor) -> tuple:
        graph = copy.copy(data.graphs[index])
        graph.y = y
        (found,) = prepare(model, replace(data, graphs=(graph,)), CPU)
        labels = found.y if model.needs_labels else None
        return found.x, found.neighbors, found.label_features, labels

    return inputs_of


def check(model: Network, data: NodeDataset, inputs_of=None, nodes: int = 1000):
    inputs_of = as_prepared(model, data) if inputs_of is None else inputs_of
    graph = data.graph
    return check_leakage(model, inputs_of, graph.y, masks_of(graph), nodes=nodes, num_classes=3)


def with_neighbours(data: NodeDataset) -> list[int]:
    train = data.graph.train_mask.nonzero().view(-1).tolist()
    return [v for v in train if (data.graph.edge_index[1] == v).any()]


@pytest.mark.parametrize("sparse", [False, True])
def test_the_authors_wiring_leaks_own_labels_from_layer_1(sparse):
    data = tiny_dataset(sparse=sparse)
    report = check(build(preset="authors", layers=2), data)
    assert report.layers == [0, 1, 2]
    assert report.own_change[:, 0].eq(0).all()
    assert report.nodes[report.own_change[:, 1] > 0].tolist() == with_neighbours(data) != []
    assert not report.clean
    assert not any(change.any() for change in report.hidden_change.values())


def test_the_papers_wiring_passes_at_layer_1_and_only_weighs_at_layer_2():
    data = tiny_dataset()
    one = check(build(layers=1), data)
    assert one.clean
    assert one.own_change.eq(0).all()
    three = check(build(layers=3), data)
    assert (three.own_change > 0).sum(0).tolist()[:3] == [0, 0, len(with_neighbours(data))]


@pytest.mark.slow
def test_the_deep_preset_is_clean_when_it_is_trained():
    """All of it: 16 layers, both stages of its training."""
    data = tiny_dataset()
    plan = recipe(
        "deep", hidden_channels=4, training={"patience": 3, "epochs": 60, "device": "cpu"}
    )
    assert plan.training.self_training
    assert plan.settings.num_layers == 16
    run = train_once(data, plan)
    report = check(run.model, data)
    assert report.layers == list(range(17))
    assert report.clean
    assert report.own_change.eq(0).all()


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_sizes_equal_changing_labels_by_hand(preset):
    data = tiny_dataset()
    model = build(preset=preset, layers=3).double().eval()
    seen: list[tuple[Tensor, tuple]] = []
    prepared = as_prepared(model, data)

    def inputs_of(y: Tensor) -> tuple:
        x, near, z, _ = prepared(y)
        seen.append((y, (x.double(), near, z.double())))
        return seen[-1][1]

    report = check(model, data, inputs_of)

    def run(inputs: tuple) -> dict[int, Tensor]:
        return model.run(*inputs).layer_logits

    y, base = seen[0]
    before = run(base)
    for row, v in enumerate(report.nodes.tolist()):
        (after,) = (inputs for other, inputs in seen if _differ_only_at(v, y, other))
        moved = [(run(after)[layer] - before[layer])[v].abs().max() for layer in report.layers]
        torch.testing.assert_close(report.own_change[row], torch.stack(moved), atol=1e-11, rtol=0)


def _differ_only_at(v: int, y: Tensor, other: Tensor) -> bool:
    return (y != other).nonzero().view(-1).tolist() == [v]


@pytest.mark.parametrize("part", ["val", "test"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "label_features", "neighbors"])
def test_a_planted_hidden_label_is_found(part, kind):
    """One node's validation (or test) label, in one number of another node's input."""
    data = tiny_dataset(sparse=kind == "sparse")
    model = build(layers=2)
    prepared = as_prepared(model, data)
    planted = int(data.graph[f"{part}_mask"].nonzero()[3])

    def inputs_of(y: Tensor) -> tuple:
        x, near, z, _ = prepared(y)
        if kind == "label_features":
            z = z.clone()
            z[7, 0, int(y[planted])] = 1
            return x, near, z
        if kind == "neighbors":
            added = torch.tensor([[int(y[planted])], [7]])
            edges = torch.cat([data.graph.edge_index, added], 1)
            return x, Neighbors.from_edge_index(edges, 60), z
        x = data.graph.x.to_dense().clone()
        x[7, 0] = 1 + y[planted]
        return x.to_sparse_csr() if kind == "sparse" else x, near, z

    report = check(model, data, inputs_of, nodes=2)
    other = "test" if part == "val" else "val"
    assert report.hidden_change[part].any()
    assert not report.hidden_change[other].any()
    first = report.layers[int(report.hidden_change[part].nonzero()[0])]
    assert first == (1 if kind == "neighbors" else 0)


def test_all_hidden_labels_at_once_are_found_too():
    """A mask forgotten: labels of all nodes are propagated, each to its own row as well."""
    data = tiny_dataset()
    model = build(layers=2)
    prepared = as_prepared(model, data)

    def inputs_of(y: Tensor) -> tuple:
        z = torch.nn.functional.one_hot(y, 3).float().unsqueeze(1).expand(-1, 3, -1)
        x, near, _, _ = prepared(y)
        return x, near, z

    report = check(model, data, inputs_of, nodes=5)
    assert (report.own_change[:, 0] > 0).all()
    assert all(change.any() for change in report.hidden_change.values())


@pytest.mark.parametrize("score", ["sum", "softmax"])
def test_the_oracle_sees_every_label(score):
    data = tiny_dataset()
    report = check(build("oracle", layers=2, score=score), data, nodes=4)
    assert report.own_change.any()
    assert all(change.any() for change in report.hidden_change.values())


@pytest.mark.parametrize("model", ["gat", "gcn"])
def test_models_without_labels_are_clean(model):
    report = check(build(model, layers=2), tiny_dataset())
    assert report.layers == [2]
    assert report.clean


def test_independent_labels():
    data = tiny_labels()
    model = DeepGAT(5, 4, 2, 4, heads=2, multi_label=True)
    graph = data.graphs[0]
    masks = {"train": torch.arange(12) < 6, "val": torch.arange(12) >= 6}
    prepared = as_prepared(model, data)
    assert check_leakage(model, prepared, graph.y, masks).clean

    def planted(y: Tensor) -> tuple:
        x = graph.x.clone()
        x[3, 0] += y[3, 1] + 2 * y[9, 2]
        return x, *prepared(y)[1:]

    report = check_leakage(model, planted, graph.y, masks)
    assert report.nodes[report.own_change.any(1)].tolist() == [3]
    assert report.hidden_change["val"].any()

    def counted(y: Tensor) -> tuple:
        x = graph.x.clone()
        x[3, 0] += y[9, :2].sum()  # stays where both labels turn and one of them was set
        return x, *prepared(y)[1:]

    y = graph.y.clone()
    y[9, :2] = torch.tensor([1.0, 0.0])
    seeds = [check_leakage(model, counted, y, masks, seed=seed) for seed in range(8)]
    assert any(not report.clean for report in seeds)


def test_the_model_is_left_as_it_was():
    data = tiny_dataset()
    model = build(preset="authors", layers=2, norm="batch").train()
    before = copy.deepcopy(model.state_dict())
    first, again = check(model, data, nodes=3), check(model, data, nodes=3)
    assert model.training
    assert torch.equal(first.own_change, again.own_change)
    assert len(first.nodes) == 3
    assert first.training_nodes == 15
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype
    assert all(parameter.grad is None for parameter in model.parameters())


def test_one_class_and_no_nodes():
    data = tiny_dataset()
    model = build(preset="authors", layers=2)
    inputs_of = as_prepared(model, data)
    empty = check_leakage(model, inputs_of, data.graph.y, {}, num_classes=3)
    assert empty.clean
    assert empty.own_change.shape == (0, 3)
    y = torch.zeros(60).long()
    one = check_leakage(model, inputs_of, y, masks_of(data.graph), nodes=3)
    assert (one.own_change[:, 1] > 0).all()  # taking the only label away is a change


def test_nonsense_is_refused():
    data = tiny_dataset()
    model = build(layers=1)
    inputs_of = as_prepared(model, data)
    with pytest.raises(UserError, match="part 'validation'"):
        check_leakage(model, inputs_of, data.graph.y, {"validation": data.graph.val_mask})
    model.convs[0].weight.data[:] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        check(model, data)
