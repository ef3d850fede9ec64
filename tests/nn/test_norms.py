"""Batch norm whose running statistics begin with the first step's, beside torch's own."""

import pytest
import torch
from torch import nn

from deepgat.nn import norms
from deepgat.nn.norms import BatchNorm
from deepgat.nn.remembered import remembering


def both(channels: int = 3) -> tuple[BatchNorm, nn.BatchNorm1d]:
    mine, theirs = BatchNorm(channels, 1e-3, from_first=True), nn.BatchNorm1d(channels, 1e-3)
    for parameter, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        parameter.data = torch.randn(channels)
        other.data = parameter.data.clone()
    return mine.double(), theirs.double()


@pytest.mark.parametrize("constant", [False, True])
def test_a_step_of_training_is_torchs(constant):
    mine, theirs = both()
    x = torch.randn(7, 3, dtype=torch.double, requires_grad=not constant)
    one, other = mine(x), theirs(x)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    weight = torch.randn_like(one)
    varied = [] if constant else [x]
    for a, b in zip(
        torch.autograd.grad((one * weight).sum(), [*varied, *mine.parameters()]),
        torch.autograd.grad((other * weight).sum(), [*varied, *theirs.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_the_running_statistics_begin_with_the_first_step_and_then_follow():
    mine, _ = both()
    steps = 1e-3 * torch.randn(3, 7, 3, dtype=torch.double) + 2
    mean, variance = steps[0].mean(0), steps[0].var(0)
    for number, x in enumerate(steps):
        mine(x)
        if number:
            mean, variance = 0.9 * mean + 0.1 * x.mean(0), 0.9 * variance + 0.1 * x.var(0)
        torch.testing.assert_close(mine.running_mean, mean)
        torch.testing.assert_close(mine.running_var, variance)
        assert mine.num_batches_tracked == number + 1
    x = torch.randn(2, 3, dtype=torch.double)
    expected = (x - mean) / (variance + 1e-3).sqrt() * mine.weight + mine.bias
    torch.testing.assert_close(mine.eval()(x), expected)
    assert mine.num_batches_tracked == 3


def test_statistics_of_constant_inputs_are_computed_once_while_training(monkeypatch):
    mine, theirs = both()
    seen = []
    statistics = norms._statistics
    monkeypatch.setattr(norms, "_statistics", lambda x: seen.append(x) or statistics(x))
    x = torch.randn(7, 3, dtype=torch.double)
    with remembering():
        for _ in range(2):
            for _ in range(3):
                torch.testing.assert_close(mine(x), theirs(x), rtol=0, atol=1e-12)
            x *= 3
    assert len(seen) == 2
    mine(x), mine(x)
    assert len(seen) == 4


@pytest.mark.parametrize("training", [True, False])
def test_one_node_alone_changes_nothing(training):
    mine, _ = both()
    mine(torch.randn(7, 3, dtype=torch.double))
    before = mine.running_var.clone()
    assert mine.train(training)(torch.randn(1, 3, dtype=torch.double)).isfinite().all()
    assert torch.equal(mine.running_var, before)
