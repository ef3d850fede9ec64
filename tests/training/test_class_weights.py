"""Weights of classes in the loss, and metrics that pick the best epoch."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

import deepgat
from deepgat import DeepGATClassifier, UserError, recipe, train_once
from deepgat.analysis import METRICS, score
from deepgat.models import SYSTEMS
from deepgat.nn.losses import LayerwiseLoss, OutputAndLayersLoss, OutputLoss
from deepgat.training.class_weights import class_weights, counts_of, of_nodes
from deepgat.training.inputs import prepare
from deepgat.training.resume import Epoch
from deepgat.training.self_training import EPOCHS_TO_GROW, SelfTraining
from deepgat.training.settings import TrainSettings
from deepgat.training.trainer import monitored
from tiny import tiny_dataset, tiny_labels

QUICK = {"epochs": 4, "device": "cpu"}


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_balanced_weights_are_those_of_scikit_learn(labels):
    y, held = torch.tensor(labels), sorted(set(labels))
    found = class_weights("balanced", counts_of(y, 5))
    expected = compute_class_weight("balanced", classes=np.array(held), y=y.numpy())
    assert found[held].tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_balanced_weights_of_labels():
    y = torch.tensor([[1.0, 0], [0, 0], [0, 1], [0, 1]])
    weights = class_weights("balanced", counts_of(y, 2))
    for c in range(2):
        expected = compute_class_weight("balanced", classes=np.array([0.0, 1]), y=y[:, c].numpy())
        assert weights[:, c].tolist() == pytest.approx(expected.tolist(), rel=1e-6)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ("1, 2,3", [1, 2, 3]),
        ("b=5", [1, 5, 1]),
        ({"b": 5, "a=,": 2}, [1, 5, 2]),
        ({2: 4}, [1, 1, 4]),
        (np.array([0.5, 1, 1]), [0.5, 1, 1]),
    ],
)
def test_weights_by_place_name_and_number(given, expected):
    settings = TrainSettings(class_weight=given)
    assert isinstance(settings.class_weight, str)
    assert TrainSettings(**json.loads(json.dumps(settings.to_dict()))) == settings
    found = class_weights(settings.class_weight, torch.ones(3), ["a", "b", "a=,"])
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "wrong", ["", "bal", "1,-2", "a=0", "a=x", [], {}, [float("nan")], 3, "{", [None], {"a": "b"}]
)
def test_wrong_weights_are_told(wrong):
    with pytest.raises(UserError, match=r"class_weight is .*: expected balanced, a number above 0"):
        TrainSettings(class_weight=wrong)


def test_weights_that_do_not_fit_the_data_are_told():
    with pytest.raises(UserError, match="has 2 weights, but the data has 3 classes"):
        class_weights("1,2", torch.ones(3))
    with pytest.raises(UserError, match="unknown class of class_weight 'd': choose one of a, b, c"):
        class_weights("d=2", torch.ones(3), ["a", "b", "c"])


def transcribed(logits: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Σ w CE / Σ w, one node (and label) after the other."""
    above, below = 0.0, 0.0
    for v in range(len(y)):
        if y.dim() == 1:
            w = weights[y[v]]
            above = above - w * torch.log(logits[v].exp()[y[v]] / logits[v].exp().sum())
            below = below + w
            continue
        for c in range(y.size(1)):
            has = bool(y[v, c] > 0)
            p = 1 / (1 + torch.exp(-logits[v, c]))
            w = weights[int(has), c]
            above = above - w * torch.log(p if has else 1 - p)
            below = below + w
    return above / below


@pytest.mark.parametrize("several", [False, True])
def test_the_weighted_loss_is_its_equation(several):
    """Of every kind of loss, with all gradients, in double precision."""
    torch.manual_seed(0)
    layers = {n: torch.randn(7, 3, dtype=torch.double, requires_grad=True) for n in range(4)}
    y = (torch.rand(7, 3) < 0.4).double() if several else torch.randint(3, (7,))
    nodes = torch.tensor([0, 2, 3, 6])
    weights = torch.tensor([[0.5, 2, 3], [1, 4, 0.1]]).double()
    weights = weights if several else weights[0]
    each = {n: transcribed(x[nodes], y[nodes], weights) for n, x in layers.items()}

    def gamma(n: int) -> float:
        return 0.4 / (n + 0.4) + 1

    total = sum(gamma(n) for n in range(3))
    for loss, expected in (
        (OutputLoss(), each[3]),
        (LayerwiseLoss(0.4), sum(gamma(n) * each[n] for n in (1, 2, 3))),
        (
            OutputAndLayersLoss(0.4, 0.3),
            each[3] + 0.3 * sum(gamma(n) / total * each[n] for n in range(3)),
        ),
    ):
        found = loss(layers, y, nodes, of_nodes(weights, y[nodes]))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        wanted = torch.autograd.grad(expected, list(layers.values()), retain_graph=True,
                                     allow_unused=True)  # fmt: skip
        got = torch.autograd.grad(found, list(layers.values()), allow_unused=True)
        for a, b in zip(got, wanted, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_self_training_weighs_classes_too():
    data = tiny_dataset()
    plan = recipe("gcn", num_layers=2, training={**QUICK, "self_training": 0.7})
    network = train_once(data, plan).model.double()
    (graph,) = prepare(network, data, torch.device("cpu"))
    stage = SelfTraining(graph, network, plan.training, None)
    logits = torch.randn(60, 3, dtype=torch.double, requires_grad=True)
    stage.begin(0, torch.randn(60, 3, dtype=torch.double), torch.ones(1))
    stage.epoch.fill_(EPOCHS_TO_GROW)
    weights = torch.tensor([0.5, 2, 3]).double()
    above, below = 0.0, 0.0
    for v in range(60):
        if not data.graph.train_mask[v]:
            for c in range(3):
                w = weights[c] * stage.targets[v, c]
                above = above - w * torch.log(logits[v].exp()[c] / logits[v].exp().sum())
                below = below + w
    expected, found = 0.7 * above / below, stage.loss({2: logits}, weights)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    (wanted,) = torch.autograd.grad(expected, logits, retain_graph=True)
    (got,) = torch.autograd.grad(found, logits)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
    even = stage.loss({2: logits}, torch.ones(3, dtype=torch.double))
    torch.testing.assert_close(even, stage.loss({2: logits}), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != "label-propagation"])
def test_every_system_trains_with_weights_and_a_metric(system):
    training = {**QUICK, "epochs": 2, "class_weight": "balanced", "monitor": "macro_f1"}
    run = train_once(tiny_dataset(), recipe(system, num_layers=2, training=training))
    assert run.fitted.best.val_score == pytest.approx(run.evaluation.metrics["macro_f1"]["val"])


@pytest.mark.parametrize("batches", ["none", "clusters", "neighbours"])
def test_equal_weights_change_nothing_but_rounding(batches):
    data = tiny_dataset()
    training = {"epochs": 2, "device": "cpu", "batches": batches, "clusters": 4, "batch_size": 2}

    def train_with(**weights):
        plan = recipe("deepgat", num_layers=2, heads=2, training={**training, **weights})
        return train_once(data, plan).fitted.history

    plain, even = train_with(), train_with(class_weight="2,2,2")
    for a, b in zip(plain, even, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4)
        assert a.val_loss == pytest.approx(b.val_loss, rel=1e-4)
    assert train_with(class_weight="9,1,1")[-1].loss != pytest.approx(plain[-1].loss, rel=1e-4)


def uneven(share: float = 0.06) -> deepgat.NodeDataset:
    """Two classes that overlap, one of them rare."""
    generator = torch.Generator().manual_seed(0)
    n = 600
    graph = tiny_dataset(n).graph.clone()
    graph.y = (torch.rand(n, generator=generator) < share).long()
    graph.x = torch.randn(n, 2, generator=generator) + 1.2 * graph.y[:, None]
    graph.edge_index = torch.empty(2, 0, dtype=torch.long)
    place = torch.arange(n) % 3
    for number, part in enumerate(("train", "val", "test")):
        graph[f"{part}_mask"] = place == number
    return replace(tiny_dataset(), graphs=(graph,), num_features=2, num_classes=2)


def test_balanced_weights_raise_balanced_accuracy():
    data, found = uneven(), {}
    for weight in (None, "balanced"):
        training = {"epochs": 60, "device": "cpu", "class_weight": weight}
        run = train_once(data, recipe("mlp", num_layers=2, training=training))
        found[weight] = run.evaluation.metrics
    assert found[None]["balanced_accuracy"]["test"] < 0.6
    assert found["balanced"]["balanced_accuracy"]["test"] > 0.7


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("several", [False, True])
def test_the_best_epoch_has_the_best_metric(name, several):
    data = tiny_labels() if several else tiny_dataset()
    training = {"epochs": 12, "patience": 12, "device": "cpu", "lr": 0.05, "monitor": name}
    run = train_once(data, recipe("gcn", num_layers=2, training=training))
    history, best = run.fitted.history, run.fitted.best
    first = min(history, key=lambda epoch: (-epoch.val_score, epoch.val_loss))
    assert (best.number, best.val_score) == (first.number, first.val_score)
    pairs = zip(run.evaluation.logits, data.graphs, strict=True)
    logits = torch.cat([x[graph.val_mask] for x, graph in pairs])
    y = torch.cat([graph.y[graph.val_mask] for graph in data.graphs])
    assert best.val_score == pytest.approx(score(name, logits, y, several), abs=1e-9)
    assert run.evaluation.metrics[name]["val"] == pytest.approx(abs(best.val_score), abs=1e-9)


def test_equal_metrics_are_decided_by_the_loss():
    early, late = Epoch(1, 1.0, 0.5, 0.9, 1, 0.9), Epoch(2, 1.0, 0.4, 0.9, 1, 0.9)
    assert monitored(late, "accuracy") < monitored(early, "accuracy")
    assert monitored(replace(late, val_score=0.8), "accuracy") > monitored(early, "accuracy")


def test_a_metric_that_the_validation_nodes_do_not_define():
    data = tiny_dataset()
    graph = data.graph.clone()
    graph.val_mask = graph.val_mask & (graph.y == 1)
    data = replace(data, graphs=(graph,))
    with pytest.raises(UserError, match="roc_auc is not defined on the validation nodes"):
        train_once(data, recipe("gcn", training={**QUICK, "monitor": "roc_auc"}))
    run = train_once(data, recipe("gcn", training=QUICK))
    assert run.evaluation.metrics["roc_auc"]["val"] is None
    assert run.evaluation.metrics["roc_auc"]["test"] > 0
    assert "roc_auc (val) is not defined: no class has both" in run.evaluation.notes[0]
    record = json.loads(json.dumps(run.record(), allow_nan=False))
    assert record["metrics"]["roc_auc"]["val"] is None


def test_an_empty_part_has_no_scores():
    data = tiny_dataset()
    graph = data.graph.clone()
    graph.test_mask = torch.zeros_like(graph.test_mask)
    run = train_once(replace(data, graphs=(graph,)), recipe("gcn", training=QUICK))
    assert all(set(parts) == {"train", "val"} for parts in run.evaluation.metrics.values())


def test_fit_and_the_model_have_all_metrics():
    model = deepgat.fit(tiny_dataset(), "deep", training={**QUICK, "monitor": "roc_auc"})
    assert list(model.metrics) == list(METRICS)
    assert model.metrics["micro_f1"] == model.scores == model.metrics["accuracy"]


def test_the_classifier_takes_both():
    graph = uneven().graph
    y = np.where(graph.test_mask, "", np.array(["often", "seldom"])[graph.y])
    y = np.where(y == "", None, y)

    def fitted(**settings):
        made = DeepGATClassifier("mlp", num_layers=2, epochs=30, random_state=0, device="cpu",
                                 **settings)  # fmt: skip
        return made.fit(graph.x.numpy(), y, validation=graph.val_mask.numpy())

    balanced = fitted(metric="average_precision", class_weight="balanced")
    assert balanced.run_.card.training.monitor == "average_precision"
    named = fitted(class_weight={"seldom": 1000.0})
    assert (named.transduction_ == "seldom").mean() > 0.9
    with pytest.raises(UserError, match="metric and monitor both pick"):
        fitted(metric="roc_auc", monitor="val-loss")
    with pytest.raises(UserError, match="unknown metric 'auc': did you mean 'roc_auc'"):
        fitted(metric="auc")
    with pytest.raises(UserError, match="unknown class of class_weight 'x'"):
        fitted(class_weight={"x": 2})
