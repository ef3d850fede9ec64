"""Temperatures, reliability and early exit against the definitions, by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from deepgat.analysis import ExitPolicy, choose_exits, fit_temperature, reliability
from deepgat.errors import UserError


def overconfident(n=400, factor=4.0):
    """Logits that are ``factor`` times too large for how often they are right."""
    torch.manual_seed(0)
    logits = torch.randn(n, 3, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(1), 1).squeeze(1)
    return factor * logits, y


def test_the_temperature_undoes_a_factor_and_lowers_the_loss():
    logits, y = overconfident(4000)
    found = fit_temperature(logits, y)
    assert found == pytest.approx(4.0, rel=0.15)
    best = F.cross_entropy(logits / found, y)
    for other in (0.9 * found, 1.1 * found):
        assert best <= F.cross_entropy(logits / other, y)


def test_reliability_by_hand():
    shares = torch.tensor([[0.95, 0.05], [0.91, 0.09], [0.41, 0.59], [0.55, 0.45]])
    found = reliability(shares, torch.tensor([0, 1, 1, 0]), bins=10)
    # (0.5, 0.6] holds 0.59 and 0.55, both right; (0.9, 1] holds 0.95 (right) and 0.91 (wrong)
    torch.testing.assert_close(found.confidence, torch.tensor([0.57, 0.93]).double())
    assert found.accuracy.tolist() == [1.0, 0.5]
    assert found.count.tolist() == [2.0, 2.0]
    assert found.error == pytest.approx(0.5 * 0.43 + 0.5 * 0.43, abs=1e-6)


def test_calibration_lowers_the_calibration_error_on_other_nodes():
    logits, y = overconfident(4000)
    found = fit_temperature(logits[:2000], y[:2000])
    before = reliability(logits[2000:].softmax(1), y[2000:]).error
    after = reliability((logits[2000:] / found).softmax(1), y[2000:]).error
    assert after < 0.25 * before


def test_a_node_stops_at_the_first_layer_that_is_sure():
    layers = {
        0: torch.tensor([[3.0, 0.0], [0.1, 0.0], [0.0, 0.2]]),
        1: torch.tensor([[0.0, 9.0], [0.0, 4.0], [0.3, 0.0]]),
        2: torch.tensor([[0.0, 9.0], [5.0, 0.0], [0.0, 0.1]]),
    }
    policy = ExitPolicy({0: 1.0, 1: 2.0, 2: 1.0}, 0.85)
    shares, stop = policy.apply(layers)
    assert stop.tolist() == [0, 1, 2]  # the last is never sure
    torch.testing.assert_close(shares[1], (layers[1][1].double() / 2).softmax(0))
    assert shares.argmax(1).tolist() == [0, 1, 1]
    everything = policy.last_only().apply(layers)
    assert everything[1].tolist() == [2, 2, 2]


def test_the_threshold_loses_no_more_than_allowed():
    torch.manual_seed(1)
    y = torch.randint(4, (300,))
    truth = F.one_hot(y, 4).double()
    layers = {layer: (1 + layer) * truth + torch.randn(300, 4) for layer in range(4)}
    exact, loose = (choose_exits(layers, y, tolerance) for tolerance in (0.0, 0.1))
    last = (layers[3].argmax(1) == y).double().mean()
    results = []
    for policy, allowed in ((exact, 0.0), (loose, 0.1)):
        shares, stop = policy.apply(layers)
        assert (shares.argmax(1) == y).double().mean() >= last - allowed - 1e-9
        results.append(float(stop.double().mean()))
    assert loose.threshold < exact.threshold
    assert results[1] < results[0] < 3


def test_mistakes():
    logits, y = torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    with pytest.raises(UserError, match="only the last layer predicts"):
        choose_exits({2: logits}, y)
    with pytest.raises(UserError, match="tolerance is 2"):
        choose_exits({1: logits, 2: logits}, y, 2)
    with pytest.raises(UserError, match="a label is -1"):
        fit_temperature(logits, y - 1)
    with pytest.raises(UserError, match=r"expected \[n, classes\]"):
        reliability(logits, y[:3])
    with pytest.raises(UserError, match="bins is 0"):
        reliability(logits, y, 0)
    with pytest.raises(UserError, match="choose them for this network"):
        ExitPolicy({0: 1.0, 1: 1.0}, math.inf).apply({1: logits})
