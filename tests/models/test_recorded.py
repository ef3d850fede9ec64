"""The models compute what they computed when they were recorded."""

import json

import pytest

from recorded import CHOICES, FILE, compute, made


@pytest.fixture(scope="module")
def record():
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("name", CHOICES)
def test_nothing_has_changed(name, record):
    """Names and shapes of weights exactly, numbers to rounding: machines sum in other orders."""
    before, now = record[name], compute(made(name))
    assert now["weights"] == before["weights"]
    for part in ("logits", "loss", "gradients"):
        assert now[part] == pytest.approx(before[part], rel=1e-9, abs=1e-12), part


def test_the_record_can_tell_a_difference(record):
    """Two cases that differ in one choice have different numbers in it."""
    plain, skip = (record[f"deepgat dp paper {end}"]["loss"] for end in ("none", "linear"))
    assert plain != pytest.approx(skip, rel=1e-6)
