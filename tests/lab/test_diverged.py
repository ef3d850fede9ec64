"""Runs that diverged, beside records and in stores."""

import json
from dataclasses import replace

import pytest

from deepgat.errors import UserError
from deepgat.lab.experiments import Store
from deepgat.lab.experiments.transfer import diverged_beside, read_diverged, write_diverged
from deepgat.lab.experiments.work import attempt
from deepgat.models import GAT

from jobs import DIVERGING, FAILING, fake, spec

LOST = replace(spec(), system="gat", settings=GAT.Config(num_layers=DIVERGING))


@pytest.fixture
def store(tmp_path) -> Store:
    """With a run that diverged, and one that failed for a reason of the machine."""
    made = Store(tmp_path / "store")
    for wanted in (LOST, spec(seed=FAILING)):
        attempt(made, wanted, "cpu", fake)
    return made


def test_what_diverged_is_told_from_what_failed(store, tmp_path):
    signature = LOST.signature
    found = read_diverged(store.folder)
    assert list(found) == [signature]
    path = tmp_path / "runs.jsonl.gz"
    assert read_diverged(path) == {}
    write_diverged(path, found.values())
    again = read_diverged(path)
    assert list(again) == [signature]
    assert again[signature]["error"] == "the loss became nan at epoch 3"
    assert "traceback" not in again[signature]
    write_diverged(path, [])
    assert not diverged_beside(path).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"signature": "0" * 16},
        {"system": "gcn"},
        {"settings": {"num_layers": "many"}},
        {"training": None},
    ],
)
def test_a_line_that_is_no_such_run_is_refused(store, tmp_path, change):
    path = tmp_path / "runs.jsonl"
    write_diverged(path, read_diverged(store.folder).values())
    beside = tmp_path / "runs.diverged.jsonl"
    good = beside.read_text()
    beside.write_text(good + json.dumps({**json.loads(good), **change}))
    with pytest.raises(UserError, match=r"runs\.diverged\.jsonl, line 2, is not a run that div"):
        read_diverged(path)
    beside.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"runs\.diverged\.jsonl cannot be read: expected"):
        read_diverged(path)
