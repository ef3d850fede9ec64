"""The leakage check against networks whose leaks are known, and against changing labels by hand."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from deepgat.analysis import ModelInputs, check_leakage
from deepgat.data import NodeDataset
from deepgat.errors import UserError
from deepgat.models import DeepGAT, Network
from deepgat.ops import Neighbors
from deepgat.training.loop import prepare
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

    def inputs_of(y: Tensor) -> ModelInputs:
        graph = copy.copy(data.graphs[index])
        graph.y = y
        (found,) = prepare(model, replace(data, graphs=(graph,)), CPU)
        labels = found.y if model.needs_labels else None
        return ModelInputs(found.x, found.neighbors, found.label_features, labels)

    return inputs_of


def check(model: Network, data: NodeDataset, inputs_of=None, nodes: int = 1000):
    inputs_of = as_prepared(model, data) if inputs_of is None else inputs_of
    graph = data.graph
    return check_leakage(model, inputs_of, graph.y, masks_of(graph), nodes=nodes, num_classes=3)


def with_neighbours(data: NodeDataset) -> list[int]:
    train = data.graph.train_mask.nonzero().view(-1).tolist()
    return [v for v in train if (data.graph.edge_index[1] == v).any()]


@pytest.mark.parametrize("sparse", [False, True])
def test_the_authors_wiring_has_a_two_hop_path_from_layer_1(sparse):
    data = tiny_dataset(sparse=sparse)
    model = build(preset="authors", layers=2)
    report = check(model, data)
    assert report.layers == [0, 1, 2]
    assert report.own_label_reaches(0) == 0
    assert report.own_label_reaches(1) == len(with_neighbours(data)) > 0
    assert not report.clean
    assert [path.node for path in report.paths] == with_neighbours(data)
    near = Neighbors.from_edge_index(data.graph.edge_index, 60)
    for path in report.paths:
        assert (path.label, path.layer, path.hops) == ("own", 1, 2)
        assert path.through == "label_features"
        assert path.reaches == path.node != path.carrier
        assert path.carrier in near.source[near.target == path.node].tolist()
        assert abs(path.gradient) > 0
        assert path.change > 0
    assert "own labels leak: from layer 1 on" in report.verdict.lower()
    assert "over 2 hops" in report.verdict
    assert "no prediction depends on a test label" in report.verdict


def test_the_papers_wiring_passes_at_layer_1_and_only_weighs_at_layer_2():
    data = tiny_dataset()
    one = check(build(layers=1), data)
    assert one.clean
    assert one.own_change.eq(0).all()
    assert one.verdict == (
        "No prediction depends on its node's own label (15 of 15 training nodes tried); no "
        "prediction depends on a validation label; no prediction depends on a test label."
    )
    three = check(build(layers=3), data)
    assert [three.own_label_reaches(layer) for layer in (0, 1)] == [0, 0]
    assert three.own_label_reaches(2) == len(with_neighbours(data))
    assert {(path.layer, path.hops) for path in three.paths} == {(2, 2)}


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
    assert report.verdict == (
        "No prediction depends on its node's own label (15 of 15 training nodes tried); no "
        "prediction depends on a validation label; no prediction depends on a test label."
    )


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_sizes_equal_changing_labels_by_hand(preset):
    data = tiny_dataset()
    model = build(preset=preset, layers=3).double().eval()
    seen: list[tuple[Tensor, ModelInputs]] = []
    prepared = as_prepared(model, data)

    def inputs_of(y: Tensor) -> ModelInputs:
        inputs = prepared(y)
        inputs = replace(inputs, x=inputs.x.double(), label_features=inputs.label_features.double())
        seen.append((y, inputs))
        return inputs

    report = check(model, data, inputs_of)

    def run(inputs: ModelInputs, share: float = 1.0) -> dict[int, Tensor]:
        z = base.label_features + share * (inputs.label_features - base.label_features)
        return model.run(inputs.x, inputs.neighbors, z).layer_logits

    y, base = seen[0]
    before = run(base)
    paths = {path.node: path for path in report.paths}
    for row, v in enumerate(report.nodes.tolist()):
        (after,) = (inputs for other, inputs in seen if _differ_only_at(v, y, other))
        moved = [(run(after)[layer] - before[layer])[v].abs().max() for layer in report.layers]
        torch.testing.assert_close(report.own_change[row], torch.stack(moved), atol=1e-11, rtol=0)
        if v in paths:
            layer, step = paths[v].layer, 1e-5
            ahead, back = run(after, step)[layer][v], run(after, -step)[layer][v]
            slopes = (ahead - back) / (2 * step)
            category = (run(after)[layer] - before[layer])[v].abs().argmax()
            assert paths[v].gradient == pytest.approx(slopes[category].item(), rel=1e-5, abs=1e-9)


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

    def inputs_of(y: Tensor) -> ModelInputs:
        inputs = prepared(y)
        if kind == "label_features":
            z = inputs.label_features.clone()
            z[7, 0, int(y[planted])] = 1
            return replace(inputs, label_features=z)
        if kind == "neighbors":
            added = torch.tensor([[int(y[planted])], [7]])
            edges = torch.cat([data.graph.edge_index, added], 1)
            return replace(inputs, neighbors=Neighbors.from_edge_index(edges, 60))
        x = data.graph.x.to_dense().clone()
        x[7, 0] = 1 + y[planted]
        return replace(inputs, x=x.to_sparse_csr() if kind == "sparse" else x)

    report = check(model, data, inputs_of, nodes=2)
    other = "test" if part == "val" else "val"
    assert report.hidden_change[part].any()
    assert not report.hidden_change[other].any()
    (path,) = [path for path in report.paths if path.label == part]
    assert path.node == planted
    assert path.through == ("x" if kind in ("dense", "sparse") else kind)
    assert path.carrier == 7
    assert path.layer == (1 if kind == "neighbors" else 0)
    assert (path.gradient is None) == (kind in ("sparse", "neighbors"))
    name = {"val": "validation", "test": "test"}[part]
    assert f"{name} labels leak: that of node {planted} reaches" in report.verdict


def test_all_hidden_labels_at_once_are_found_too():
    """A mask forgotten: labels of all nodes are propagated, each to its own row as well."""
    data = tiny_dataset()
    model = build(layers=2)
    prepared = as_prepared(model, data)

    def inputs_of(y: Tensor) -> ModelInputs:
        z = torch.nn.functional.one_hot(y, 3).float().unsqueeze(1).expand(-1, 3, -1)
        return replace(prepared(y), label_features=z)

    report = check(model, data, inputs_of, nodes=5)
    assert {path.label for path in report.paths} == {"own", "val", "test"}
    own = [path for path in report.paths if path.label == "own"]
    assert len(own) == 5
    assert {(path.layer, path.hops) for path in own} == {(0, 0)}
    assert {path.carrier for path in own} == set(report.nodes.tolist())


def test_labels_that_matter_only_together_are_told():
    data = tiny_dataset()
    model = build(layers=1)
    prepared = as_prepared(model, data)
    val = data.graph.val_mask
    true = data.graph.y[val]

    def inputs_of(y: Tensor) -> ModelInputs:
        inputs = prepared(y)
        return replace(inputs, x=inputs.x + float((y[val] != true).all()))

    report = check(model, data, inputs_of, nodes=1)
    assert not report.clean
    assert not report.paths
    assert "predictions depend on several validation labels together" in report.verdict


@pytest.mark.parametrize("score", ["sum", "softmax"])
def test_the_oracle_sees_every_label(score):
    data = tiny_dataset()
    report = check(build("oracle", layers=2, score=score), data, nodes=4)
    assert {path.label for path in report.paths} == {"own", "val", "test"}
    for path in report.paths:
        assert path.through == "labels"
        assert path.gradient is None
        assert path.carrier == path.node


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

    def planted(y: Tensor) -> ModelInputs:
        x = graph.x.clone()
        x[3, 0] += y[3, 1] + 2 * y[9, 2]
        return replace(prepared(y), x=x)

    report = check_leakage(model, planted, graph.y, masks)
    assert {(path.label, path.node) for path in report.paths} == {("own", 3), ("val", 9)}

    def counted(y: Tensor) -> ModelInputs:
        x = graph.x.clone()
        x[3, 0] += y[9, :2].sum()  # stays where both labels turn and one of them was set
        return replace(prepared(y), x=x)

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
    assert one.own_label_reaches(1) == 3  # taking the only label away is a change


def test_nonsense_is_refused():
    data = tiny_dataset()
    model = build(layers=1)
    inputs_of = as_prepared(model, data)
    with pytest.raises(UserError, match="part 'validation'"):
        check_leakage(model, inputs_of, data.graph.y, {"validation": data.graph.val_mask})

    def widening(y: Tensor) -> ModelInputs:
        same = torch.equal(y, data.graph.y)
        inputs = inputs_of(y)
        return inputs if same else replace(inputs, x=torch.zeros(60, 7))

    with pytest.raises(UserError, match="returns x with a different shape"):
        check(model, data, widening, nodes=1)
    model.convs[0].weight.data[:] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        check(model, data)
