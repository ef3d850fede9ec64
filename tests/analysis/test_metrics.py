"""Scores against scikit-learn, intervals against scipy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    f1_score,
    recall_score,
    roc_auc_score,
)

from deepgat.analysis import (
    METRICS,
    confidence_interval,
    metric,
    micro_f1,
    predicted_labels,
    reliability,
    score,
)
from deepgat.analysis.metrics import error_of_difference
from deepgat.errors import UserError


@st.composite
def scored(draw: st.DrawFn, multi_label: bool):
    """(logits [n, C], y): ties, absent classes and empty label sets included."""
    n, classes = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = torch.randint(-3, 4, (n, classes), generator=generator).float()
    if multi_label:
        share = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
        return logits, (torch.rand(n, classes, generator=generator) < share).float()
    return logits, torch.randint(classes, (n,), generator=generator)


@given(scored(multi_label=False))
def test_micro_f1_of_classes_equals_sklearn(case):
    logits, y = case
    expected = f1_score(y, logits.argmax(1), average="micro")
    assert micro_f1(logits, y).item() == pytest.approx(expected, abs=1e-12)


@given(scored(multi_label=True))
@example((torch.tensor([[-1.0, -1.0]]), torch.zeros(1, 2)))
@example((torch.tensor([[1.0, 0.0]]), torch.ones(1, 2)))
def test_micro_f1_of_labels_equals_sklearn(case):
    logits, y = case
    predicted = (logits > 0).int().numpy()
    expected = f1_score(y.int().numpy(), predicted, average="micro", zero_division=0)
    assert micro_f1(logits, y).item() == pytest.approx(expected, abs=1e-12)


def test_predicted_labels():
    logits = torch.tensor([[0.0, 2.0, -1.0], [-3.0, -2.0, -1.0]])
    assert predicted_labels(logits, multi_label=False).tolist() == [1, 2]
    assert predicted_labels(logits, multi_label=True).tolist() == [
        [False, True, False],
        [False, False, False],
    ]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.sampled_from([0.5, 0.95, 0.99]))
def test_interval_equals_scipy(values, level):
    mean, half_width = confidence_interval(values, level)
    assert mean == pytest.approx(np.mean(values), abs=1e-12)
    expected = stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values)
    assert half_width == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_interval_by_hand():
    """Mean 2, standard deviation 1, n = 3; t(0.975, 2) = 4.30265 as printed in tables."""
    mean, half_width = confidence_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half_width == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)


def test_one_value_has_no_interval():
    mean, half_width = confidence_interval([0.25])
    assert mean == 0.25
    assert math.isnan(half_width)


def by_sklearn(name: str, logits: torch.Tensor, y: torch.Tensor, multi_label: bool) -> float:
    """NaN where the metric is not defined."""
    n, classes = logits.shape
    logits = logits.double()
    if multi_label:
        true, predicted, shares = y.int().numpy(), (logits > 0).int().numpy(), logits.sigmoid()
        columns = true
    else:
        true, predicted, shares = y.numpy(), logits.argmax(1).numpy(), logits.softmax(1)
        columns = np.eye(classes, dtype=int)[true]
    shares = shares.numpy()
    match name:
        case "accuracy":
            return accuracy_score(true, predicted)
        case "micro_f1" | "macro_f1":
            return f1_score(true, predicted, average=name[:5], zero_division=0)
        case "balanced_accuracy":
            held = [c for c in range(classes) if columns[:, c].any()]
            if multi_label:
                recalls = [recall_score(true[:, c], predicted[:, c]) for c in held]
                return np.mean(recalls) if held else math.nan
            return recall_score(true, predicted, labels=held, average="macro")
        case "roc_auc" | "average_precision":
            function = roc_auc_score if name == "roc_auc" else average_precision_score
            if classes == 2 and not multi_label:
                columns, shares = columns[:, 1:], shares[:, 1:]
            both = [c for c in range(columns.shape[1]) if 0 < columns[:, c].sum() < n]
            return np.mean([function(columns[:, c], shares[:, c]) for c in both] or math.nan)
        case "brier":
            if multi_label:
                return np.mean([brier_score_loss(true[:, c], shares[:, c]) for c in range(classes)])
            if classes == 2:
                return brier_score_loss(true, shares[:, 1], pos_label=1)
            return brier_score_loss(true, shares, labels=range(classes))
    if multi_label:
        two = torch.stack([1 - logits.sigmoid(), logits.sigmoid()], -1).view(-1, 2)
        return reliability(two, y.long().view(-1)).error
    return reliability(logits.softmax(1), y).error


@given(st.booleans().flatmap(scored), st.sampled_from(METRICS))
@example((torch.tensor([[1.0, 0.0]]), torch.zeros(1, dtype=torch.long)), "roc_auc")
@example((torch.tensor([[1.0, 0.0], [0.5, 2.0]]), torch.tensor([0, 1])), "average_precision")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_metrics_equal_sklearn(case, name):
    logits, y = case
    multi_label = y.dim() == 2
    expected = by_sklearn(name, logits, y, multi_label)
    found = metric(name, logits, y, multi_label).item()
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)
    if math.isnan(expected):
        with pytest.raises(UserError, match=f"{name} is not defined here: no "):
            score(name, logits, y, multi_label)
    else:
        sign = -1 if name in ("brier", "calibration_error") else 1
        assert score(name, logits, y, multi_label) == sign * found


@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_nothing_and_of_no_numbers(name):
    with pytest.raises(UserError, match="there is no labelled node"):
        score(name, torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), False)
    if name not in ("accuracy", "micro_f1"):
        with pytest.raises(UserError, match="an output of the model is not finite"):
            score(name, torch.tensor([[math.nan, 1.0]] * 2), torch.tensor([0, 1]), False)


def test_unknown_metric():
    with pytest.raises(UserError, match="metric 'auc'"):
        score("auc", torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), False)


def test_the_error_of_a_difference_is_that_of_a_paired_comparison():
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(400, 3, generator=draw) for _ in range(2))
    y = torch.randint(3, (400,), generator=draw)
    each = (a.argmax(1) == y).double() - (b.argmax(1) == y).double()
    found = error_of_difference("accuracy", a, b, y, False)
    assert found == pytest.approx(float(each.std()) / 20)
    drawn = error_of_difference("balanced_accuracy", a, b, y, False)
    assert drawn == pytest.approx(found, rel=0.5)
    assert error_of_difference("accuracy", a, a, y, False) == 0
    assert error_of_difference("accuracy", a[:1], b[:1], y[:1], False) == 1
