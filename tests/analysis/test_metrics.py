"""Scores against scikit-learn, intervals against scipy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from deepgat.analysis import confidence_interval, micro_f1, predicted_labels


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
