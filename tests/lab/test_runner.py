"""The runner: what is missing, several at a time, whatever happens to one of them."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deepgat.errors import UserError
from deepgat.lab.experiments import (
    Event,
    Planned,
    RunSpec,
    Store,
    pool,
    processes,
    read_specs,
    run_all,
)
from deepgat.lab.experiments.work import Made, perform

from jobs import (
    FAILING,
    KILLED,
    LARGE,
    LOG,
    LONG,
    WAITING,
    crowding,
    fake,
    harmful,
    record_of,
    spec,
    told,
)


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Tests that were started in the background of a shell else ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def quick_workers(monkeypatch) -> None:
    """Workers forked from the tests, which are there at once."""
    monkeypatch.setattr(processes, "START_METHOD", "fork")
    monkeypatch.setattr(pool, "SECONDS_BETWEEN_LOOKS", 0.05)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def log(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    return tmp_path / "log"


def wait_until(condition: Callable[[], object]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def signatures(specs: list[RunSpec]) -> set[str]:
    return {item.signature for item in specs}


@pytest.mark.usefixtures("quick_workers")
class TestRunner:
    def test_makes_what_is_missing_and_nothing_else(self, store, log):
        specs = [spec(seed=seed) for seed in range(6)]
        first = run_all(specs[:3], store, workers=2, device="cpu", perform=fake)
        events: list[Event] = []
        again = [*specs, specs[0]]  # named twice, made once
        second = run_all(
            again, store, workers=2, device="cpu", perform=fake, on_event=events.append
        )
        assert set(first.records) == signatures(specs[:3])
        assert second.failed == {}
        assert set(second.records) == signatures(specs)
        assert Counter(told(log)) == Counter(signatures(specs))
        assert events[0] == Planned(total=6, present=3, failed=0)
        kinds = Counter(event.what for event in events[1:])
        assert kinds == {"started": 3, "finished": 3}

    def test_a_failure_is_recorded_and_stops_nothing(self, store, log):
        specs = [spec(seed=seed) for seed in (0, 1, FAILING, KILLED, 2, 3)]
        events: list[Event] = []
        outcome = run_all(
            specs, store, workers=2, device="cpu", perform=fake, on_event=events.append
        )
        bad = {spec(seed=FAILING).signature, spec(seed=KILLED).signature}
        assert set(outcome.records) == signatures(specs) - bad
        assert outcome.failed[spec(seed=FAILING).signature] == "the loss became nan"
        killed = outcome.failed[spec(seed=KILLED).signature]
        assert "signal SIGKILL ended its process: out of memory" in killed
        ends = {(e.spec.seed, e.what) for e in events[1:] if e.error}
        assert ends == {(FAILING, "failed"), (KILLED, "put off"), (KILLED, "failed")}
        assert {name: f["error"] for name, f in store.failures().items()} == outcome.failed

        events.clear()
        later = run_all(specs, store, workers=1, device="cpu", perform=fake, on_event=events.append)
        assert later.failed == outcome.failed  # told again, not tried again
        assert events == [Planned(total=6, present=4, failed=2)]
        healed = run_all(specs, store, workers=1, device="cpu", perform=heal, retry_failed=True)
        assert set(healed.records) == signatures(specs)
        assert healed.failed == {}
        assert store.failures() == {}

    def test_what_a_failure_leaves_behind_does_not_meet_the_next_run(self, store):
        specs = [spec(seed=FAILING), spec(seed=FAILING + 100), spec(seed=FAILING + 101)]
        outcome = run_all(specs, store, workers=1, device="cpu", perform=harmful)
        assert list(outcome.failed) == [specs[0].signature]
        assert len(outcome.records) == 2

    def test_a_run_without_room_beside_others_is_made_after_them(self, store, log):
        specs = [spec(seed=seed) for seed in (LARGE, LONG, 0)]
        events: list[Event] = []
        outcome = run_all(
            specs, store, workers=2, device="cpu", perform=crowding, on_event=events.append
        )
        assert len(outcome.records) == 3
        assert outcome.failed == store.failures() == {}
        large = [event.what for event in events[1:] if event.spec == specs[0]]
        assert large == ["started", "put off", "started", "finished"]
        assert events[-1].spec == specs[0]

    def test_a_run_without_room_of_its_own_has_failed(self, store, log):
        specs = [spec(seed=LARGE), spec(seed=0)]
        outcome = run_all(specs, store, workers=2, device="cpu", perform=crowding)
        assert len(outcome.records) == 1
        assert list(outcome.failed) == [specs[0].signature]
        assert "memory of the GPU is full (18.00 MiB more" in outcome.failed[specs[0].signature]
        assert {name: f["error"] for name, f in store.failures().items()} == outcome.failed

    def test_ctrl_c_keeps_what_finished_and_stops_the_rest(self, store, log, heeds_ctrl_c):
        specs = [spec(seed=0), spec(seed=WAITING)]

        def interrupt(event: Event) -> None:
            if event[:2] == ("started", specs[1]):
                wait_until(lambda: "waiting" in told(log))
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            run_all(specs, store, workers=1, device="cpu", perform=fake, on_event=interrupt)
        assert told(log) == [specs[0].signature, "waiting"]
        assert store.signatures() == [specs[0].signature]
        assert store.failures() == {}
        assert not store.is_claimed(specs[1].signature)  # its worker is gone
        assert store.verify() == (1, {})

    def test_runs_of_another_process_are_waited_for(self, store, log):
        """One is finished elsewhere, one given up and taken over, one fails elsewhere."""
        finished, given_up, fails, free = specs = [spec(seed=seed) for seed in range(4)]
        claims = {item.seed: store.claim(item.signature) for item in specs[:3]}
        events: list[Event] = []

        def elsewhere(event: Event) -> None:
            events.append(event)
            if event[:2] == ("finished", free):
                store.add(claims[0], record_of(finished), {})
                store.fail(claims[2], fails, "it broke there", "")
                for claim in claims.values():
                    fcntl.flock(claim, fcntl.LOCK_UN)  # closing does not: forked workers have it

        outcome = run_all(specs, store, workers=1, device="cpu", perform=fake, on_event=elsewhere)
        assert told(log) == [free.signature, given_up.signature]
        assert set(outcome.records) == signatures([finished, given_up, free])
        assert outcome.failed == {fails.signature: "it broke there"}

    @pytest.mark.slow
    def test_two_runners_share_one_store(self, store, log):
        specs = [spec(seed=seed) for seed in range(30)]
        other = processes.multiprocessing.get_context("fork").Process(
            target=run_all,
            args=(specs, store),
            kwargs={"workers": 2, "device": "cpu", "perform": fake},
        )
        other.start()
        outcome = run_all(specs, store, workers=2, device="cpu", perform=fake)
        other.join()
        assert other.exitcode == 0
        assert set(outcome.records) == signatures(specs)
        assert Counter(told(log)) == Counter(signatures(specs))

    def test_a_worker_that_cannot_begin_is_no_failed_run(self, store, monkeypatch):
        monkeypatch.setattr(processes, "_serve", sys.exit)
        with pytest.raises(RuntimeError, match="a worker process ended at its start"):
            run_all([spec()], store, workers=1, device="cpu", perform=fake)
        assert store.failures() == {}


def heal(wanted: RunSpec, device: str) -> Made:
    """Whatever the seed says, it works now."""
    return Made(record_of(wanted), {})


def test_mistakes(store):
    with pytest.raises(UserError, match="workers is 0: expected 1 or more"):
        run_all([spec()], store, workers=0)
    with pytest.raises(UserError, match="the device 'gpu' cannot be used here"):
        run_all([spec()], store, device="gpu")
    assert run_all([], store).records == {}


def test_a_real_run_is_recorded_in_full(tmp_path):
    wanted = spec(
        layers=2,
        measures=("nearest-neighbor", "layer-scores", "over-smoothing"),
        representations="last",
        attention="all",
    )
    made = perform(wanted, "cpu")
    again = perform(wanted, "cpu")
    record = json.loads(json.dumps(made.record))
    assert RunSpec.from_dict(record) == wanted
    assert record["signature"] == wanted.signature
    assert record["micro_f1"] == again.record["micro_f1"]
    assert record["wall_seconds"] >= record["seconds"] > 0
    assert record["peak_memory"]["bytes"] > 50e6
    assert record["peak_memory"]["of"] == "resident memory of the process"
    assert record["versions"]["torch"]
    assert record["hardware"]
    nearest = record["measures"]["nearest-neighbor"]
    assert 0 <= nearest["train"]["bayes_lower"] <= nearest["train"]["error"] <= 1
    scores = record["measures"]["layer-scores"]
    assert scores["test"]["2"] == pytest.approx(record["micro_f1"]["test"])
    (layers,) = record["measures"]["over-smoothing"]
    assert [row["layer"] for row in layers] == [0, 1, 2]
    assert layers[2]["energy"] > 0
    assert 0 < layers[2]["same_class_attention"] <= 1
    shapes = {name: list(value.shape) for name, value in made.arrays.items()}
    edges = int(made.arrays["attention.ptr"][-1])
    assert shapes == {
        "attention.1": [edges],
        "attention.2": [edges],
        "attention.ptr": [2001],
        "curve.loss": [2],
        "curve.val_f1": [2],
        "curve.val_loss": [2],
        "hidden.2": [2000, 5],
    }
    total = made.arrays["attention.2"].sum()
    assert float(total) == pytest.approx(2000, rel=1e-4)  # weights into every node sum to 1


@pytest.mark.slow
def test_killed_for_real_and_resumed(tmp_path):
    """``deepgat run`` killed with its worker at work: the worker ends, nothing is half there."""
    (tmp_path / "runs.toml").write_text(
        'system = "deepgat"\n[data]\ndataset = "csbm"\n'
        "[settings]\nhidden_channels = 2\nheads = 1\nnum_layers = 1\n"
        "[training]\npatience = 1000000\n[sweep]\ntraining.epochs = [1, 1000000]\n"
    )
    command = [sys.executable, "-m", "deepgat", "run", "runs.toml", "--store", "store"]
    process = subprocess.Popen([*command, "--workers", "1", "--device", "cpu"], cwd=tmp_path)
    try:
        wait_until((tmp_path / "store" / "store.json").exists)
        store = Store(tmp_path / "store")
        wait_until(store.signatures)
        done = store.signatures()
        (other,) = {one.signature for one in read_specs(tmp_path / "runs.toml")} - set(done)
        wait_until((store.folder / "claims" / other).exists)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not store.is_claimed(other))
    assert store.signatures() == done
    assert store.failures() == {}
    assert store.verify() == (1, {})
