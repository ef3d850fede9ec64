"""Self-training: the loss is what its equation says, and labels outside training stay unseen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from deepgat.errors import UserError
from deepgat.nn import build_model
from deepgat.training.epoch import TEMPERATURES
from deepgat.training.evaluate import evaluate
from deepgat.training.inputs import FixedInputs, prepare
from deepgat.training.loop import TrainSettings, fit
from deepgat.training.recipes import recipe
from deepgat.training.self_training import EPOCHS_TO_GROW, Teacher
from tiny import tiny_dataset, tiny_labels

SETTINGS = TrainSettings(self_training=0.7, confidence=0.5, self_training_from=2, device="cpu")


def made():
    data = tiny_dataset()
    plan = recipe("deep", layers=2, hidden=4)
    torch.manual_seed(0)
    return data, build_model(plan.model, data.num_features, data.num_classes)


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_loss_is_the_equation_node_by_node(calibrated):
    data, model = made()
    (graph,) = prepare(model, data, torch.device("cpu"))
    teacher = Teacher.wanted(model, FixedInputs([graph]), SETTINGS, None)
    assert teacher is not None
    n, classes = data.graphs[0].num_nodes, data.num_classes
    train = set(graph.nodes["train"].tolist())
    average = [[1 / classes] * classes for _ in range(n)]
    torch.manual_seed(3)
    taught = 0
    for epoch in range(1, 60):
        said = 3 * torch.randn(n, classes)
        teacher.learn(said, torch.tensor([0.6]) if calibrated else None)
        for v in range(n):
            new = (said[v].double() / (0.6 if calibrated else 1)).softmax(-1).tolist()
            average[v] = [0.8 * a + 0.2 * b for a, b in zip(average[v], new, strict=True)]
        logits = torch.randn(n, classes, requires_grad=True)
        chosen = [v for v in range(n) if v not in train and max(average[v]) > 0.5]
        taught = max(taught, len(chosen))
        terms = [
            -math.log(logits[v].double().softmax(-1)[average[v].index(max(average[v]))].item())
            for v in chosen
        ]
        grown = min(max((epoch - 2) / 50, 0), 1)
        expected = 0.7 * grown * sum(terms) / max(len(chosen), 1)
        assert teacher.loss({2: logits}).item() == pytest.approx(expected, abs=1e-5)
    assert taught > 3
    teacher.loss({2: logits}).backward()
    assert logits.grad is not None
    untaught = [v for v in range(n) if v not in chosen]
    assert logits.grad[untaught].abs().max() == 0


def test_soft_targets_and_the_layers_share_node_by_node():
    data, model = made()
    (graph,) = prepare(model, data, torch.device("cpu"))
    settings = replace(SETTINGS, target_temperature=0.5, taught_layers=0.4, self_training_from=1)
    teacher = Teacher(graph, model, settings, None)
    n, classes = data.graphs[0].num_nodes, data.num_classes
    torch.manual_seed(1)
    for _ in range(60):
        teacher.learn(3 * torch.randn(n, classes))
    layers = {layer: torch.randn(n, classes) for layer in range(3)}
    train = set(graph.nodes["train"].tolist())
    terms = []
    for v in range(n):
        average = teacher.average[v].double()
        if v in train or average.max() <= 0.5:
            continue
        target = average**2 / (average**2).sum()
        each = [
            -(target * layers[layer][v].double().log_softmax(-1)).sum().item() for layer in range(3)
        ]
        terms.append(each[2] + 0.4 * (each[0] + each[1]) / 2)
    assert len(terms) > 3
    expected = 0.7 * sum(terms) / len(terms)
    assert teacher.loss(layers).item() == pytest.approx(expected, rel=1e-5)


def test_it_begins_once_patience_has_run_out_from_the_best_weights():
    data, model = made()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    plain = TrainSettings(epochs=400, patience=5, lr=0.05, device="cpu")
    alone = fit(model, data, plain)
    assert alone.stopped == "patience"
    best = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.load_state_dict(start)
    begun = []
    begin = Teacher.begin

    def noted(self, epoch, logits, temperature):
        begin(self, epoch, logits, temperature)
        begun.append(epoch)
        assert all(torch.equal(best[name], w) for name, w in model.state_dict().items())
        assert torch.equal(self.average, logits.softmax(-1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teacher, "begin", noted)
        taught = fit(model, data, replace(plain, self_training=1.0, self_training_from=0))
    count = len(alone.history)
    assert taught.history[:count] == alone.history
    assert begun == [count]
    assert len(taught.history) >= count + plain.patience
    assert taught.best.val_loss <= alone.best.val_loss


def test_targets_are_calibrated_on_the_validation_nodes():
    """By the temperature, of those that are tried, at which their loss is smallest."""
    data, model = made()
    settings = TrainSettings(
        epochs=60,
        patience=5,
        lr=0.05,
        device="cpu",
        monitor="calibrated-loss",
        self_training=1.0,
        self_training_from=0,
        calibrated_targets=True,
    )
    graph = data.graphs[0]
    found = []

    def best_temperature(logits):
        losses = {
            t: F.cross_entropy(logits[graph.val_mask].double() / t, graph.y[graph.val_mask])
            for t in TEMPERATURES
        }
        return min(losses, key=lambda t: losses[t].item())

    begin, learn = Teacher.begin, Teacher.learn

    def begun(self, epoch, logits, temperature):
        begin(self, epoch, logits, temperature)
        found.append(("begin", best_temperature(logits), temperature.item()))
        torch.testing.assert_close(self.average, (logits / temperature).softmax(-1))

    def learnt(self, logits, temperature):
        learn(self, logits, temperature)
        found.append(("learn", best_temperature(logits), temperature.item()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teacher, "begin", begun)
        patch.setattr(Teacher, "learn", learnt)
        taught = fit(model, data, settings)
    assert [name for name, *_ in found].count("begin") == 1
    assert len(found) == len(taught.history) + 1
    assert all(expected == pytest.approx(given) for _, expected, given in found)
    assert len({given for *_, given in found}) > 3, "hardly any other temperature: nothing tested"


def test_calibrated_targets_need_a_monitor_that_calibrates():
    with pytest.raises(UserError, match="calibrated_targets is set, and the monitor val-f1"):
        TrainSettings(calibrated_targets=True, self_training=1.0, monitor="val-f1")
    TrainSettings(calibrated_targets=True, monitor="val-f1")  # without self-training: no targets


def test_a_second_stage_may_keep_its_own_best_epoch():
    data, model = made()
    plain = TrainSettings(epochs=400, patience=5, lr=0.05, device="cpu")
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    alone = fit(model, data, plain)
    count = len(alone.history)
    model.load_state_dict(start)
    settings = replace(plain, self_training=1.0, self_training_from=0, own_best=True)
    taught = fit(model, data, settings)
    full = count + EPOCHS_TO_GROW
    assert {epoch.best_number for epoch in taught.history[count : full - 1]} == {alone.best.number}
    assert taught.history[full - 1].best_number == full
    assert taught.best == min(taught.history[full - 1 :], key=lambda epoch: epoch.val_loss)
    assert taught.history[full - 1].val_loss > alone.best.val_loss, "better anyway: nothing tested"
    assert len(taught.history) == taught.best.number + plain.patience
    assert evaluate(model, data, "cpu").loss["val"] == taught.best.val_loss


def test_ended_while_the_targets_grow_the_first_stages_best_stays():
    data, model = made()
    plain = TrainSettings(epochs=400, patience=5, lr=0.05, device="cpu")
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    alone = fit(model, data, plain)
    model.load_state_dict(start)
    short = replace(plain, epochs=len(alone.history) + 20, self_training=1.0, self_training_from=0)
    taught = fit(model, data, replace(short, own_best=True))
    assert len(taught.history) == short.epochs
    assert replace(taught.best, best_number=0) == replace(alone.best, best_number=0)
    assert evaluate(model, data, "cpu").loss["val"] == alone.best.val_loss


def test_from_an_epoch_on_it_has_no_second_stage():
    data, model = made()
    settings = TrainSettings(
        epochs=400, patience=5, lr=0.05, device="cpu", self_training=1.0, self_training_from=500
    )
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    late = fit(model, data, settings)
    model.load_state_dict(start)
    assert late.history == fit(model, data, replace(settings, self_training=0.0)).history


def test_before_its_first_epoch_nothing_changes():
    data, model = made()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = []
    for extra in ({}, {"self_training": 1.0, "self_training_from": 10}):
        model.load_state_dict(start)
        found.append(fit(model, data, TrainSettings(epochs=6, device="cpu", **extra)).history)
    assert found[0] == found[1]


def test_targets_are_learnt():
    """A node that the teacher is sure of, and that nobody labelled, is pulled to its class."""
    data, model = made()
    (graph,) = prepare(model, data, torch.device("cpu"))
    teacher = Teacher(graph, model, replace(SETTINGS, self_training_from=1), None)
    n = data.graphs[0].num_nodes
    sure = F.one_hot(torch.zeros(n, dtype=torch.long), data.num_classes) * 20.0
    for _ in range(60):
        teacher.learn(sure)
    logits = torch.zeros(n, data.num_classes, requires_grad=True)
    teacher.loss({2: logits}).backward()
    assert logits.grad is not None
    outside = teacher.unlabelled.bool()
    assert (logits.grad[outside, 0] < 0).all()
    assert not logits.grad[~outside].any()


@pytest.mark.parametrize("first", [0, 1])
def test_labels_outside_training_do_not_reach_it(first):
    data, model = made()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    settings = replace(SETTINGS, epochs=15, self_training_from=first, confidence=0.4, patience=3)
    losses = []
    for shift in (0, 1):
        model.load_state_dict(start)
        (graph,) = data.graphs
        y = torch.where(graph.test_mask, (graph.y + shift) % data.num_classes, graph.y)
        changed = graph.clone()
        changed.y = y
        result = fit(model, replace(data, graphs=(changed,)), settings)
        losses.append([(epoch.loss, epoch.val_loss) for epoch in result.history])
    assert losses[0] == losses[1]


def test_what_it_cannot_be_used_for_is_said():
    data = tiny_labels()
    model = build_model(recipe("deep", layers=2).model, data.num_features, data.num_classes, True)
    with pytest.raises(UserError, match="self_training takes one graph with one class per node"):
        fit(model, data, replace(SETTINGS, epochs=1))
    for bad in ({"self_training": -1.0}, {"confidence": 1.0}, {"self_training_from": -1}):
        with pytest.raises(UserError, match=next(iter(bad))):
            TrainSettings(**bad)


def test_runs_without_it_are_signed_as_before_it():
    assert not {"self_training", "own_best", "weight_decay_heads"} & set(TrainSettings().to_dict())
    assert TrainSettings(self_training=0.5).to_dict()["self_training"] == 0.5
    assert "calibrated_targets" not in TrainSettings().to_dict()
    assert TrainSettings(own_best=True).to_dict()["own_best"] is True
