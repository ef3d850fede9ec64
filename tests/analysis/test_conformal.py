"""Prediction sets against a literal transcription, and what they promise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepgat.analysis import Calibration, conformal_quantile, set_coverage
from deepgat.analysis.conformal import conformal_scores
from deepgat.errors import UserError

COVERAGES = st.sampled_from([0.05, 0.5, 0.8, 0.9, 0.95, 0.99])


@st.composite
def predictions(draw, most=40):
    """(logits [n, 3], y [n]): of a few values, so that scores are often equal, or of many."""
    n = draw(st.integers(1, most))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    logits = 2 * torch.randn(n, 3, generator=generator, dtype=torch.double)
    if draw(st.booleans()):
        logits = logits.round()
    return logits, torch.randint(3, (n,), generator=generator)


def literal_set(shares, calibration_shares, calibration_y, coverage, own_class):
    """The set of one node, in the words of the paper and plain Python."""
    chosen = set()
    for c in range(len(shares)):
        scores = sorted(
            1 - row[y]
            for row, y in zip(calibration_shares, calibration_y, strict=True)
            if not own_class or y == c
        )
        k = math.ceil(round((len(scores) + 1) * coverage, 9))
        limit = scores[k - 1] if k <= len(scores) else math.inf
        if 1 - shares[c] <= limit + 1e-8:  # saved scores have eight digits, rounded up
            chosen.add(c)
    return chosen | {max(range(len(shares)), key=shares.__getitem__)}


@settings(max_examples=40)
@given(predictions(), COVERAGES, st.booleans())
def test_sets_are_those_of_the_definition(found, coverage, own_class):
    logits, y = found
    half = len(y) // 2
    calibration = Calibration(1.5, conformal_scores((logits[:half] / 1.5).softmax(1), y[:half]))
    sets = calibration.sets(logits[half:], coverage, own_class)
    shares = (logits / 1.5).softmax(1).tolist()
    for row, members in zip(shares[half:], sets, strict=True):
        expected = literal_set(row, shares[:half], y[:half].tolist(), coverage, own_class)
        assert set(members.nonzero().view(-1).tolist()) == expected


@given(st.lists(st.floats(0, 1), max_size=60), COVERAGES)
def test_the_quantile_is_numpys(scores, coverage):
    n = len(scores)
    level = math.ceil(round((n + 1) * coverage, 9)) / n if n else 2.0
    expected = np.quantile(scores, level, method="inverted_cdf") if level <= 1 else math.inf
    assert conformal_quantile(torch.tensor(scores, dtype=torch.double), coverage) == expected


@settings(max_examples=40)
@given(predictions(), COVERAGES)
def test_exchangeable_nodes_are_covered(found, coverage):
    """Leaving out each of n + 1 nodes in turn averages over all orders: an exact guarantee."""
    logits, y = found
    hit = []
    for v in range(len(y)):
        rest = torch.arange(len(y)) != v
        calibration = Calibration(1.0, conformal_scores(logits[rest].softmax(1), y[rest]))
        hit.append(bool(calibration.sets(logits[v : v + 1], coverage)[0, y[v]]))
    assert sum(hit) >= coverage * len(y) - 1e-9


@settings(max_examples=40)
@given(predictions(), COVERAGES)
def test_each_class_is_covered_by_itself(found, coverage):
    logits, y = found
    hit = {0: [], 1: [], 2: []}
    for v in range(len(y)):
        rest = torch.arange(len(y)) != v
        calibration = Calibration(1.0, conformal_scores(logits[rest].softmax(1), y[rest]))
        own = calibration.sets(logits[v : v + 1], coverage, class_conditional=True)
        hit[int(y[v])].append(bool(own[0, y[v]]))
    for each in hit.values():
        assert sum(each) >= coverage * len(each) - 1e-9


@given(predictions(), st.booleans())
def test_sets_grow_with_the_coverage_and_are_never_empty(found, own_class):
    logits, y = found
    calibration = Calibration(1.0, conformal_scores(logits.softmax(1), y))
    before = torch.zeros(len(y), 3, dtype=torch.bool)
    for coverage in (0.01, 0.5, 0.8, 0.9, 0.99):
        sets = calibration.sets(logits, coverage, own_class)
        assert bool(sets.gather(1, logits.argmax(1, keepdim=True)).all())
        assert bool((sets | ~before).all())
        before = sets


def test_sets_are_not_larger_than_they_need_to_be():
    """Coverage on many new nodes of the same kind is near what was asked, in every class."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(60_000, 3, generator=generator) + torch.tensor([0.0, 0.5, 1.0])
    y = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    logits = 3 * logits  # overconfident: coverage does not depend on right probabilities
    calibration = Calibration.fit(logits[:20_000], y[:20_000])
    assert calibration.temperature == pytest.approx(3, rel=0.05)
    sets = calibration.sets(logits[20_000:], 0.9)
    assert set_coverage(sets, y[20_000:]).coverage == pytest.approx(0.9, abs=0.01)
    own = calibration.sets(logits[20_000:], 0.9, class_conditional=True)
    assert set_coverage(own, y[20_000:]).by_class == pytest.approx([0.9] * 3, abs=0.02)


@pytest.mark.parametrize(("nodes", "always"), [(8, True), (9, False)])
def test_a_class_of_too_few_nodes_is_in_every_set(nodes, always):
    y = torch.tensor([0] * 30 + [1] * nodes)
    logits = torch.nn.functional.one_hot(y, 2) * 20.0
    calibration = Calibration(1.0, conformal_scores(logits.softmax(1), y))
    limits = calibration.limits(0.9, class_conditional=True)
    assert limits.isinf().tolist() == [False, always]
    assert bool(calibration.sets(logits, 0.9, True)[:30, 1].all()) == always
    assert not bool(calibration.limits(0.9).isinf().any())  # all together are enough
    assert bool(calibration.sets(logits, 0.99).all())  # 38 or 39 of the 99 nodes that this needs


def test_a_calibration_comes_back_from_plain_values():
    logits, y = torch.randn(80, 3), torch.randint(3, (80,))
    made = Calibration.fit(logits, y)
    again = Calibration.of(made.to_dict(), 3)
    assert again.temperature == made.temperature
    for mine, theirs in zip(made.scores, again.scores, strict=True):
        assert torch.equal(mine, theirs)
    assert sum(map(len, made.scores)) == 80


@pytest.mark.parametrize(
    ("plain", "what"),
    [
        ([], "expected temperature and scores"),
        ({"temperature": 1.0}, "expected temperature and scores"),
        ({"temperature": 0, "scores": []}, "the temperature is '0'"),
        ({"temperature": True, "scores": []}, "the temperature is 'True'"),
        ({"temperature": math.nan, "scores": []}, "the temperature is 'nan'"),
        ({"temperature": 1.0, "scores": [[]]}, "for each of 2 classes"),
        ({"temperature": 1.0, "scores": [[], ["x"]]}, "not lists of numbers"),
        ({"temperature": 1.0, "scores": [[], [0.1, math.nan, 0.2]]}, "not ascending"),
        ({"temperature": 1.0, "scores": [[0.3, 0.2], []]}, "not ascending"),
        ({"temperature": 1.0, "scores": [[0.3, 1.2], []]}, "not ascending"),
    ],
)
def test_what_is_no_calibration_is_refused(plain, what):
    with pytest.raises(ValueError, match=what):
        Calibration.of(plain, 2)


def test_mistakes():
    calibration = Calibration.fit(torch.randn(80, 3), torch.randint(3, (80,)))
    for coverage in (0.0, 1.0, -1, math.nan, 90):
        with pytest.raises(UserError, match="expected a share between 0 and 1"):
            calibration.sets(torch.randn(2, 3), coverage)
    with pytest.raises(UserError, match="this model has none"):
        Calibration().sets(torch.randn(2, 3), 0.9)
