"""The paper's and the authors' models compute what they computed when they were recorded."""

import json

import pytest

from recorded import CHOICES, FILE, compute, name_of, settings_of


@pytest.fixture(scope="module")
def record():
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("case", CHOICES, ids=lambda case: name_of(*case))
def test_nothing_has_changed(case, record):
    """Names and shapes of weights exactly, numbers to rounding: machines sum in other orders."""
    before, now = record[name_of(*case)], compute(settings_of(*case))
    assert now["weights"] == before["weights"]
    for name in ("logits", "loss", "gradients"):
        assert now[name] == pytest.approx(before[name], rel=1e-9, abs=1e-12), name


def test_the_record_can_tell_a_difference(record):
    """Two cases that differ in one choice have different numbers in it."""
    plain, skip = (record[f"deepgat dp paper{end}"]["loss"] for end in ("", " linear-skip"))
    assert plain != pytest.approx(skip, rel=1e-6)
