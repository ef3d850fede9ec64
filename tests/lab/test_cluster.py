"""Runs on a Ray cluster of this machine: each made once, whoever dies."""

import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from deepgat.errors import UserError
from deepgat.lab.experiments import Store, run_all

from jobs import FAILING, KILLED, KILLED_ONCE, LOG, fake, spec, told


def test_without_ray_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if not installed
    with pytest.raises(UserError, match="pip install"):
        run_all([spec()], Store(tmp_path / "store"), perform=fake, ray="local")


def test_with_a_ray_of_our_own(tmp_path, monkeypatch):
    """The calls of Ray's interface that matter, each run at once in this process."""

    class DeathError(Exception):
        pass

    calls = []

    def remote(function):
        def start(wanted, *arguments):
            calls.append(wanted)
            if wanted.seed == KILLED_ONCE and calls.count(wanted) == 1:
                return lambda: (_ for _ in ()).throw(DeathError)
            answer = function(wanted, *arguments)
            return lambda: answer

        return SimpleNamespace(remote=start)

    ray = SimpleNamespace(
        init=lambda **_: None,
        shutdown=lambda: None,
        remote=lambda **_: remote,
        wait=lambda references, timeout: (references[:1], references[1:]),
        get=lambda reference: reference(),
        exceptions=SimpleNamespace(RayError=DeathError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    store, events = Store(tmp_path / "store"), []
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    (tmp_path / "log").write_text("killed\n")
    specs = [spec(seed=seed) for seed in (0, 1, FAILING, KILLED_ONCE)]
    outcome = run_all(
        specs, store, workers=2, device="cpu", on_event=events.append, perform=fake, ray="auto"
    )
    assert list(outcome.failed) == [spec(seed=FAILING).signature]
    assert set(outcome.records) == {s.signature for s in specs if s.seed != FAILING}
    assert [e.spec.seed for e in events[1:] if e.what == "put off"] == [KILLED_ONCE]


@pytest.mark.distributed
class TestRay:
    @pytest.fixture(autouse=True)
    def importable_jobs(self, monkeypatch, tmp_path):
        pytest.importorskip("ray", reason="Ray is not installed")
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        monkeypatch.setenv(LOG, str(tmp_path / "log"))
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")

    def test_twenty_runs_one_of_whose_workers_is_killed(self, tmp_path):
        store = Store(tmp_path / "store")
        specs = [spec(seed=seed) for seed in (*range(19), KILLED_ONCE)]
        events = []
        outcome = run_all(
            specs, store, workers=2, device="cpu", on_event=events.append, perform=fake, ray="local"
        )
        assert not outcome.failed
        assert {s.signature for s in specs} == set(outcome.records)
        made = Counter(line for line in told(tmp_path / "log") if line != "killed")
        assert made == Counter(s.signature for s in specs)  # each exactly once
        assert all(store.get(s.signature) is not None for s in specs)
        kinds = Counter(event.what for event in events[1:])
        assert kinds == {"started": 21, "put off": 1, "finished": 20}  # one was begun twice

    def test_what_fails_is_kept_and_what_is_there_is_not_made_again(self, tmp_path):
        store = Store(tmp_path / "store")
        specs = [spec(seed=seed) for seed in (0, FAILING, KILLED)]
        run_all(specs[:1], store, workers=1, device="cpu", perform=fake)
        events = []
        outcome = run_all(
            specs, store, workers=2, device="cpu", on_event=events.append, perform=fake, ray="local"
        )
        assert told(tmp_path / "log") == [specs[0].signature]
        assert outcome.failed[specs[1].signature] == "the loss became nan"
        assert "the worker of the cluster" in outcome.failed[specs[2].signature]
        assert set(store.failures()) == {s.signature for s in specs[1:]}
        assert sum(event.what == "failed" for event in events[1:]) == 2

    def test_an_address_where_nobody_answers(self, tmp_path):
        with pytest.raises(UserError, match="no Ray cluster answers"):
            run_all([spec()], Store(tmp_path / "store"), perform=fake, ray="auto")
