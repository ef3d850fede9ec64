"""Self-training: the loss is what its equation says, and labels outside training stay unseen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from deepgat.analysis.calibration import TEMPERATURES
from deepgat.errors import UserError
from deepgat.models import Deep
from deepgat.training.evaluate import evaluate
from deepgat.training.inputs import GraphBatches, prepare
from deepgat.training.loop import train
from deepgat.training.self_training import EPOCHS_TO_GROW, SelfTraining
from deepgat.training.settings import TrainSettings
from tiny import tiny_dataset, tiny_labels

SETTINGS = TrainSettings(self_training=0.7, device="cpu")
PLAIN = TrainSettings(epochs=400, patience=5, lr=0.05, device="cpu")


def made():
    data = tiny_dataset()
    torch.manual_seed(0)
    return data, Deep(data.num_features, 4, 2, data.num_classes)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_loss_is_the_equation_node_by_node(temperature):
    data, model = made()
    (graph,) = prepare(model, data, torch.device("cpu"))
    stage = SelfTraining.wanted(model, GraphBatches([graph], [graph]), SETTINGS, None)
    assert stage is not None
    n, classes = data.graphs[0].num_nodes, data.num_classes
    train = set(graph.nodes["train"].tolist())
    outside = [v for v in range(n) if v not in train]
    torch.manual_seed(3)

    def probabilities(logits, v):
        return (logits[v].double() / temperature).softmax(-1).tolist()

    for _ in range(2):  # the first stage: no loss yet
        stage.learn(torch.randn(n, classes), torch.tensor([temperature]))
        assert stage.loss({2: torch.randn(n, classes)}).item() == 0
    said = 3 * torch.randn(n, classes)
    stage.begin(2, said, torch.tensor([temperature]))
    targets = [probabilities(said, v) for v in range(n)]
    for epoch in range(3, 60):
        said = 3 * torch.randn(n, classes)
        stage.learn(said, torch.tensor([temperature]))
        for v in range(n):
            new = probabilities(said, v)
            targets[v] = [0.8 * a + 0.2 * b for a, b in zip(targets[v], new, strict=True)]
        logits = torch.randn(n, classes, requires_grad=True)
        terms = [
            -sum(t * math.log(p) for t, p in zip(targets[v], shares, strict=True))
            for v in outside
            for shares in [logits[v].double().softmax(-1).tolist()]
        ]
        grown = min((epoch - 2) / 50, 1)
        expected = 0.7 * grown * sum(terms) / len(outside)
        layers = {0: torch.randn(n, classes), 1: torch.randn(n, classes), 2: logits}
        assert stage.loss(layers).item() == pytest.approx(expected, abs=1e-5)
    stage.loss({2: logits}).backward()
    assert logits.grad is not None
    assert logits.grad[sorted(train)].abs().max() == 0
    assert (logits.grad[outside].abs().sum(1) > 0).all()


def test_it_begins_once_patience_has_run_out_from_the_best_weights(monkeypatch):
    data, model = made()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    alone = train(model, data, PLAIN)
    assert alone.stopped == "patience"
    best = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.load_state_dict(start)
    begun = []
    begin = SelfTraining.begin

    def noted(self, epoch, logits, temperature):
        begin(self, epoch, logits, temperature)
        begun.append(epoch)
        assert all(torch.equal(best[name], w) for name, w in model.state_dict().items())
        assert torch.equal(self.targets, (logits / temperature).softmax(-1))

    monkeypatch.setattr(SelfTraining, "begin", noted)
    taught = train(model, data, replace(PLAIN, self_training=1.0))
    count = len(alone.history)
    assert taught.history[:count] == alone.history
    assert begun == [count]
    assert len(taught.history) >= count + PLAIN.patience


@pytest.mark.parametrize("monitor", ["val-loss", "loss-and-errors", "val-f1"])
def test_targets_are_calibrated_on_the_validation_nodes(monitor, monkeypatch):
    """By the temperature, of those that are tried, at which their loss is smallest."""
    data, model = made()
    settings = replace(PLAIN, epochs=60, monitor=monitor, self_training=1.0)
    graph, each = data.graphs[0], torch.tensor(TEMPERATURES, dtype=torch.double)
    found = []

    def best_temperature(logits):
        shares = (logits[graph.val_mask].double() / each[:, None, None]).log_softmax(-1)
        nodes = range(shares.size(1))
        losses = -shares[:, nodes, graph.y[graph.val_mask]].mean(1)
        return TEMPERATURES[int(losses.argmin())]

    begin, learn = SelfTraining.begin, SelfTraining.learn

    def begun(self, epoch, logits, temperature):
        begin(self, epoch, logits, temperature)
        found.append(("begin", best_temperature(logits), temperature.item()))
        torch.testing.assert_close(self.targets, (logits / temperature).softmax(-1))

    def learnt(self, logits, temperature):
        learn(self, logits, temperature)
        found.append(("learn", best_temperature(logits), temperature.item()))

    monkeypatch.setattr(SelfTraining, "begin", begun)
    monkeypatch.setattr(SelfTraining, "learn", learnt)
    taught = train(model, data, settings)
    assert [name for name, *_ in found].count("begin") == 1
    assert len(found) == len(taught.history) + 1
    assert all(expected == pytest.approx(given) for _, expected, given in found)
    assert len({given for *_, given in found}) > 3, "hardly any other temperature: nothing tested"


def test_the_second_stage_keeps_its_own_best_epoch():
    data, model = made()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    alone = train(model, data, PLAIN)
    count = len(alone.history)
    model.load_state_dict(start)
    taught = train(model, data, replace(PLAIN, self_training=1.0))
    full = count + EPOCHS_TO_GROW
    assert {epoch.best_number for epoch in taught.history[count : full - 1]} == {alone.best.number}
    assert taught.history[full - 1].best_number == full
    assert taught.best == min(taught.history[full - 1 :], key=lambda epoch: epoch.val_loss)
    assert taught.history[full - 1].val_loss > alone.best.val_loss, "better anyway: nothing tested"
    assert len(taught.history) == taught.best.number + PLAIN.patience
    assert evaluate(model, data, "cpu").loss["val"] == taught.best.val_loss


def test_ended_while_the_targets_grow_the_first_stages_best_stays():
    data, model = made()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    alone = train(model, data, PLAIN)
    model.load_state_dict(start)
    short = replace(PLAIN, epochs=len(alone.history) + 20, self_training=1.0)
    taught = train(model, data, short)
    assert len(taught.history) == short.epochs
    assert replace(taught.best, best_number=0) == replace(alone.best, best_number=0)
    assert evaluate(model, data, "cpu").loss["val"] == alone.best.val_loss


def test_before_the_second_stage_nothing_changes():
    data, model = made()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = []
    for extra in ({}, {"self_training": 1.0}):
        model.load_state_dict(start)
        found.append(train(model, data, TrainSettings(epochs=6, device="cpu", **extra)).history)
    assert found[0] == found[1]


def test_targets_are_learnt():
    """An unlabelled node with a confident target is pulled to its class."""
    data, model = made()
    (graph,) = prepare(model, data, torch.device("cpu"))
    stage = SelfTraining(graph, model, SETTINGS, None)
    n, one = data.graphs[0].num_nodes, torch.ones(1)
    sure = F.one_hot(torch.zeros(n, dtype=torch.long), data.num_classes) * 20.0
    stage.begin(0, sure, one)
    for _ in range(60):
        stage.learn(sure, one)
    logits = torch.zeros(n, data.num_classes, requires_grad=True)
    stage.loss({2: logits}).backward()
    assert logits.grad is not None
    outside = stage.unlabelled.bool()
    assert (logits.grad[outside, 0] < 0).all()
    assert not logits.grad[~outside].any()


def test_labels_outside_training_do_not_reach_it(monkeypatch):
    data, model = made()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    begun, begin = [], SelfTraining.begin

    def noted(self, epoch, *rest):
        begun.append(epoch)
        begin(self, epoch, *rest)

    monkeypatch.setattr(SelfTraining, "begin", noted)
    losses = []
    for shift in (0, 1):
        model.load_state_dict(start)
        (graph,) = data.graphs
        y = torch.where(graph.test_mask, (graph.y + shift) % data.num_classes, graph.y)
        changed = graph.clone()
        changed.y = y
        settings = replace(PLAIN, lr=0.2, epochs=40, patience=3, self_training=0.7)
        result = train(model, replace(data, graphs=(changed,)), settings)
        losses.append([(epoch.loss, epoch.val_loss) for epoch in result.history])
    assert losses[0] == losses[1]
    assert len(begun) == 2, "no second stage: nothing tested"
    assert begun[0] < 35


def test_what_it_cannot_be_used_for_is_said():
    data = tiny_labels()
    model = Deep(data.num_features, 64, 2, data.num_classes, multi_label=True)
    with pytest.raises(UserError, match="self_training takes one graph with one class per node"):
        train(model, data, replace(SETTINGS, epochs=1))
    with pytest.raises(UserError, match="self_training"):
        TrainSettings(self_training=-1.0)
