"""Temperatures, reliability and early exit against the definitions, by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from deepgat.analysis import (
    Calibration,
    ExitPolicy,
    choose_exits,
    choose_temperature,
    fit_temperature,
    metric,
    reliability,
    risk_coverage,
)
from deepgat.analysis.selective import abstained
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


def test_the_temperature_is_that_of_logistic_regression():
    """With two classes 1/T is the one coefficient on the difference of the logits."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    logits, y = overconfident(1000)
    logits, y = logits[y < 2, :2], y[y < 2]
    difference = (logits[:, 1:] - logits[:, :1]).numpy()
    model = linear_model.LogisticRegression(C=1e12, fit_intercept=False, tol=1e-10)
    model.fit(difference, y.numpy())
    assert fit_temperature(logits, y) == pytest.approx(1 / float(model.coef_[0, 0]), rel=1e-4)
    # of independent labels: the same question, asked of one logit
    labels = fit_temperature(torch.from_numpy(difference), y[:, None].double())
    assert labels == fit_temperature(logits, y)


def test_the_temperature_does_not_depend_on_the_order_of_nodes():
    logits, y = overconfident(3000)
    order = torch.randperm(3000)
    assert fit_temperature(logits, y) == fit_temperature(logits[order], y[order])


def test_where_nodes_cannot_tell_the_temperature_is_1():
    logits, y = overconfident(400)
    assert choose_temperature(logits, y) == fit_temperature(logits, y) != 1
    assert choose_temperature(logits[:49], y[:49]) == 1
    assert choose_temperature(logits[y == 1], y[y == 1]) == 1
    assert choose_temperature(logits, logits.argmax(1)) == 1  # all right: T → 0 fits best
    assert choose_temperature(logits * math.nan, y) == 1
    assert choose_temperature(logits, (logits > 0).double()) == 1
    assert Calibration.fit(logits[:0], y[:0]).temperature == 1
    assert fit_temperature(logits, logits.argmax(1)) == pytest.approx(math.exp(-6), rel=1e-4)
    assert fit_temperature(logits, logits.argmin(1)) == pytest.approx(math.exp(6), rel=1e-4)


def test_reliability_is_scikit_learns_curve():
    calibration = pytest.importorskip("sklearn.calibration")
    logits, y = overconfident(4000)
    shares = logits.softmax(1)
    sure, right = shares.max(1).values.numpy(), (shares.argmax(1) == y).numpy()
    found = reliability(shares, y)
    accuracy, confidence = calibration.calibration_curve(right, sure, n_bins=15)
    assert found.accuracy.tolist() == pytest.approx(accuracy.tolist())
    assert found.confidence.tolist() == pytest.approx(confidence.tolist())
    assert int(found.count.sum()) == 4000
    assert float(found.place[0]) / 15 < found.confidence[0] <= (float(found.place[0]) + 1) / 15
    labels = (logits + torch.randn(4000, 3) > 0).double()
    error = metric("calibration_error", logits, labels, True).item()
    assert reliability(logits.sigmoid(), labels).error == pytest.approx(error)


def test_abstention_by_hand():
    labels, sure = torch.tensor([2, 0, 1, 1]), torch.tensor([0.9, 0.89, 1.0, 0.3])
    assert abstained(labels, sure, 0.9).tolist() == [2, -1, 1, -1]
    right = torch.tensor([True, True, False, False])
    found = risk_coverage(sure, right, [0.0, 0.5, 0.95, 1.1])
    assert [tuple(point) for point in found] == [
        (0.0, 1.0, 0.5),
        (0.5, 0.75, pytest.approx(2 / 3)),
        (0.95, 0.25, 0.0),
        (1.1, 0.0, None),
    ]
    with pytest.raises(UserError, match="abstain is 90"):
        abstained(labels, sure, 90)
    with pytest.raises(UserError, match="one class per node"):
        abstained(torch.ones(2, 3, dtype=torch.bool), sure[:2], 0.9)


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
    everything = ExitPolicy(policy.temperatures, math.inf).apply(layers)
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
