"""Averaged weights: the average is what its equation says, and it is what is kept."""

from __future__ import annotations

import pytest
import torch

from deepgat.models import Deep
from deepgat.training.ema import AveragedWeights
from deepgat.training.evaluate import evaluate
from deepgat.training.loop import train
from deepgat.training.settings import TrainSettings
from tiny import tiny_dataset


def test_the_average_step_by_step():
    model = torch.nn.Linear(3, 2)
    averaged = AveragedWeights(model, 0.6)
    expected = [weight.detach().double().clone() for weight in model.parameters()]
    torch.manual_seed(0)
    for step in range(1, 12):
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randn_like(weight))
        averaged.learn()
        d = min(0.6, (1 + step) / (10 + step))
        expected = [
            d * mean + (1 - d) * weight.detach().double()
            for mean, weight in zip(expected, model.parameters(), strict=True)
        ]
    before = [weight.detach().clone() for weight in model.parameters()]
    with averaged.in_place():
        for weight, mean in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(weight.detach().double(), mean, atol=1e-6, rtol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_an_error_inside_leaves_the_own_weights():
    model = torch.nn.Linear(3, 2)
    averaged = AveragedWeights(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1)
    own = model.weight.detach().clone()
    with pytest.raises(KeyError), averaged.in_place():
        raise KeyError
    assert torch.equal(own, model.weight)


def test_training_ends_with_the_averaged_weights_of_its_best_epoch():
    data = tiny_dataset()
    torch.manual_seed(0)
    model = Deep(data.num_features, 4, 2, data.num_classes)
    settings = TrainSettings(epochs=30, ema=0.9, device="cpu")
    result = train(model, data, settings)
    assert evaluate(model, data, "cpu").loss["val"] == pytest.approx(result.best.val_loss, abs=1e-6)


def test_the_steps_are_those_without_it():
    """Dropout off: the training losses do not know of the average."""
    data = tiny_dataset()
    found = []
    for decay in (0.0, 0.9):
        torch.manual_seed(0)
        model = Deep(data.num_features, 4, 2, data.num_classes, dropout=0.0)
        settings = TrainSettings(epochs=20, ema=decay, device="cpu")
        found.append([epoch.loss for epoch in train(model, data, settings).history])
    assert found[0] == found[1]
