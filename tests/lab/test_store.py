"""The store: whole or not there, once and not twice, damage named and set aside."""

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from deepgat.errors import UserError
from deepgat.files import to_json
from deepgat.lab.experiments import RunSpec, Store
from deepgat.lab.experiments.schema import FINISHED, TRAINED, DamagedEntry, check
from deepgat.lab.experiments.store_entry import ARRAYS, RECORD, sealed
from deepgat.lab.experiments.work import Attempt, attempt

from jobs import FAILING, LOG, arrays_of, fake, record_of, spec, told

FORK = multiprocessing.get_context("fork")  # a new process of the tests in a millisecond


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def log(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    return tmp_path / "log"


def keep(store: Store, wanted: RunSpec) -> str:
    with store.claim(wanted.signature) as mine:
        store.add(mine, record_of(wanted), arrays_of(wanted))
    return wanted.signature


def leftovers(store: Store) -> list[str]:
    return [path.name for path in (store.folder / "tmp").iterdir()]


# ------------------------------------------------------------------------------- kept and found


def test_a_run_comes_back_as_it_was_kept(store):
    wanted = spec(seed=3)
    assert store.get(wanted.signature) is None
    signature = keep(store, wanted)
    record = store.get(signature)
    assert RunSpec.from_dict(record) == wanted
    assert record["micro_f1"] == record_of(wanted)["micro_f1"]
    found = store.arrays(signature)
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in arrays_of(wanted).items()
    }
    assert leftovers(store) == []
    assert list(Store(store.folder).records()) == [record]


def test_numbers_that_are_none_do_not_harm_the_seal(store):
    wanted = spec()
    with store.claim(wanted.signature) as mine:
        kept = store.add(mine, record_of(wanted, loss={"val": float("nan")}), {})
    assert kept["loss"] == {"val": None}
    assert store.get(wanted.signature) == kept
    assert store.arrays(wanted.signature) == {}


def test_find_by_the_beginning_of_a_signature(store):
    signature = keep(store, spec())
    assert store.find(signature[:6]) == signature
    with pytest.raises(UserError, match="no run begins with 'x'"):
        store.find("x")
    keep(store, spec(seed=1))
    with pytest.raises(UserError, match="2 runs begin with ''"):
        store.find("")


def test_remove(store):
    signature = keep(store, spec())
    mine = store.claim(signature)
    with pytest.raises(UserError, match="is being made by another process"):
        store.remove(signature)
    mine.close()
    store.remove(signature)
    assert store.get(signature) is None
    assert leftovers(store) == []


def test_only_stores_are_taken_for_stores(tmp_path):
    with pytest.raises(UserError, match=r"is not a store of runs: it has no store\.json"):
        Store(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("x")
    with pytest.raises(UserError, match="letters is not a store of runs"):
        Store(tmp_path / "letters")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        Store(tmp_path / "file")
    Store(tmp_path / "newer").folder.joinpath("store.json").write_text(
        '{"kind": "deepgat store", "format": 99}'
    )
    with pytest.raises(UserError, match=r"store\.json is not what this deepgat writes"):
        Store(tmp_path / "newer")


# ------------------------------------------------------------------------------- claims


def test_a_claim_excludes_everyone_until_released(store):
    mine = store.claim("0" * 16)
    assert store.claim("0" * 16) is None
    assert store.is_claimed("0" * 16)
    assert store.claim("1" * 16) is not None
    mine.close()
    assert not store.is_claimed("0" * 16)
    assert store.claim("0" * 16) is not None


def _claim_and_wait(folder: Path, ready) -> None:
    mine = Store(folder).claim("0" * 16)
    ready.send(mine is not None)
    time.sleep(60)


def test_a_claim_dies_with_its_process(store):
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_claim_and_wait, args=(store.folder, theirs))
    process.start()
    assert ours.recv()
    assert store.claim("0" * 16) is None
    process.kill()
    process.join()
    assert store.claim("0" * 16) is not None


def test_only_one_holds_a_claim_however_many_try(store):
    """Threads take and leave one claim as fast as they can; never two at a time."""
    inside, most, count = [0], [0], [0]
    guard = threading.Lock()

    def take() -> None:
        taken = 0
        while taken < 25:
            mine = store.claim("0" * 16)
            if mine is None:
                time.sleep(0.0005)
                continue
            taken += 1
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                count[0] += 1
            time.sleep(0)
            with guard:
                inside[0] -= 1
            mine.close()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    assert count[0] == 100


# ------------------------------------------------------------------------------- damage


def cut_arrays(entry: Path) -> None:
    path = entry / ARRAYS
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit_of_arrays(entry: Path) -> None:
    content = bytearray((entry / ARRAYS).read_bytes())
    content[-3] ^= 1
    (entry / ARRAYS).write_bytes(content)


def change_a_score(entry: Path) -> None:
    record = json.loads((entry / RECORD).read_text())
    record["micro_f1"]["test"] = 0.99
    (entry / RECORD).write_text(json.dumps(record))


def change_a_setting_and_seal_it(entry: Path) -> None:
    record = json.loads((entry / RECORD).read_text())
    record["settings"]["num_layers"] = 99
    (entry / RECORD).write_text(to_json(sealed(record)))


def cut_record(entry: Path) -> None:
    (entry / RECORD).write_text((entry / RECORD).read_text()[:100])


def other_text(entry: Path) -> None:
    (entry / RECORD).write_text("[]")


def no_text(entry: Path) -> None:
    (entry / RECORD).write_bytes(b"\xff")


def lose(name: str):
    def harm(entry: Path) -> None:
        (entry / name).unlink()

    harm.__name__ = f"lose {name}"
    return harm


def seal(name: str, **changes: object):
    """A record of someone who knows the checksum; None leaves a field out."""

    def harm(entry: Path) -> None:
        record = {**json.loads((entry / RECORD).read_text()), **changes}
        kept = {field: value for field, value in record.items() if value is not None}
        (entry / RECORD).write_text(to_json(sealed(kept)))

    harm.__name__ = name
    return harm


def nested(entry: Path) -> None:
    (entry / RECORD).write_text('{"signature": ' + "[" * 100_000)


def many_digits(entry: Path) -> None:
    (entry / RECORD).write_text('{"signature": ' + "9" * 5000 + "}")


def pipe(name: str):
    """Reading it would never end."""

    def harm(entry: Path) -> None:
        (entry / name).unlink()
        os.mkfifo(entry / name)

    harm.__name__ = f"pipe {name}"
    return harm


def endless(entry: Path) -> None:
    (entry / RECORD).unlink()
    (entry / RECORD).symlink_to("/dev/zero")


def a_file_instead(entry: Path) -> None:
    for path in entry.iterdir():
        path.unlink()
    entry.rmdir()
    entry.touch()


STRANGE = [
    seal("no micro-F1", micro_f1=None),
    seal("no format", format=None),
    seal("no arrays", arrays=None),
    seal("text for a score", micro_f1={"test": "high"}),
    seal("a list for scores", micro_f1=[0.5]),
    seal("text for a seed", seed="0"),
    seal("endless seconds", seconds=10**400),
    seal("wrong measures", measures={"layer-scores": {"test": {"first": 0.5}}}),
    seal("text for memory", peak_memory="much"),
    seal("deep measures", measures={"mine": json.loads("[" * 100 + "]" * 100)}),
    nested,
    many_digits,
    pipe(RECORD),
    pipe(ARRAYS),
    endless,
    a_file_instead,
]
HARMS = [
    *STRANGE,
    cut_arrays,
    flip_a_bit_of_arrays,
    change_a_score,
    change_a_setting_and_seal_it,
    cut_record,
    other_text,
    no_text,
    lose(RECORD),
    lose(ARRAYS),
]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_damage_is_found_named_and_set_aside(store, harm):
    signature, other = keep(store, spec()), keep(store, spec(seed=1))
    harm(store.path(signature))
    good, damaged = store.verify()
    assert good == 1
    assert list(damaged) == [signature]
    assert damaged[signature]
    (moved,) = (store.folder / "damaged").iterdir()
    assert moved.name.startswith(f"{signature}-")
    assert moved.exists()
    assert store.signatures() == [other]
    assert store.verify() == (1, {})


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_damage_is_never_used(store, harm, log):
    signature = keep(store, spec())
    harm(store.path(signature))
    with pytest.warns(UserWarning, match=rf"the run {signature} .* is damaged"):
        assert store.arrays(signature) is None
    assert attempt(store, spec(), "cpu", fake) == Attempt()
    assert told(log) == [signature]  # made again
    assert store.verify() == (1, {})


def test_what_a_stranger_left_in_a_store_is_named_and_spoils_nothing(store):
    good = keep(store, spec())
    for seed, harm in enumerate(STRANGE, start=1):
        harm(store.path(keep(store, spec(seed=seed))))
    os.mkfifo(store.folder / "failed" / f"{'a' * 16}.json")
    (store.folder / "failed" / f"{'b' * 16}.json").write_text('{"error": 3}')
    (store.folder / "failed" / f"{'c' * 16}.json").write_text("[" * 100_000)
    (store.folder / "failed" / "notes.json").write_text("{}")
    for path in ("tmp", "damaged"):
        (store.folder / path).rmdir()
    opened = Store(store.folder, create=False)
    with pytest.warns(UserWarning, match="is damaged") as of_failures:
        assert opened.failures() == {}
    with pytest.warns(UserWarning, match="is damaged") as of_runs:
        assert good in [record["signature"] for record in opened.records()]
    assert len(of_failures) == 3
    assert len(of_runs) == len(STRANGE) - 1  # arrays are not looked at here
    assert opened.verify()[0] == 1
    assert [record["signature"] for record in opened.records()] == [good]


@pytest.mark.parametrize("place", ["store.json", f"claims/{'a' * 16}"])
def test_a_pipe_is_never_opened(store, place):
    path = store.folder / place
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(UserError, match=r"is not what this deepgat writes|is not a regular file"):
        Store(store.folder).claim("a" * 16)


def test_an_attempt_sets_damage_aside(store, log):
    for number in (1, 2):
        signature = keep(store, spec())
        change_a_score(store.path(signature))
        with pytest.warns(UserWarning, match="is damaged"):
            attempt(store, spec(), "cpu", fake)
        assert told(log) == [signature] * number
        assert len(list((store.folder / "damaged").iterdir())) == number
        store.remove(signature)


def test_a_damaged_entry_that_another_process_is_making_stays(store):
    signature = keep(store, spec())
    change_a_score(store.path(signature))
    with store.claim(signature):
        assert store.verify() == (0, {})
        assert store.path(signature).is_dir()


def test_verify_removes_what_dead_processes_left(store):
    wanted, alive = spec(), spec(seed=1)
    process = FORK.Process(target=_half_a_run, args=(store, wanted))
    process.start()
    process.join()
    assert leftovers(store) == [wanted.signature]
    with store.claim(alive.signature) as mine, store.new_entry(mine, alive.signature):
        store.verify()
        assert leftovers(store) == [alive.signature]


def _half_a_run(store: Store, wanted: RunSpec) -> None:
    mine = store.claim(wanted.signature)
    with store.new_entry(mine, wanted.signature) as work:
        (work / ARRAYS).write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)


# ------------------------------------------------------------------------------- attempts


def test_a_failure_is_kept_until_the_run_succeeds(store):
    wanted = spec(seed=FAILING)
    assert not attempt(store, wanted, "cpu", fake).clean
    failure = store.failures()[wanted.signature]
    assert failure["error"] == "the loss became nan"
    assert "UserError" in failure["traceback"]
    assert RunSpec.from_dict(failure) == wanted
    assert store.get(wanted.signature) is None
    keep(store, wanted)
    assert store.failures() == {}


def test_an_unforeseen_error_is_kept_in_a_line(store):
    def perform(*_: object):
        raise ZeroDivisionError("one\ntwo")

    attempt(store, spec(), "cpu", perform)
    assert store.failure(spec().signature)["error"] == "ZeroDivisionError: one two"


def test_a_run_that_ends_its_process_has_failed(store):
    attempt(store, spec(), "cpu", lambda *_: sys.exit(3))
    assert store.failure(spec().signature)["error"] == "SystemExit: 3"


def test_a_full_disk_is_told_and_is_not_the_runs_failure(store, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("deepgat.lab.experiments.store.write_entry", full)
    with pytest.raises(UserError, match=r"cannot be written .No space left on device.: make room"):
        attempt(store, spec(), "cpu", fake)
    assert store.failures() == {}
    assert store.get(spec().signature) is None


def test_verify_goes_on_after_an_entry_of_another_schema(store):
    keep(store, spec(seed=1))
    signature = spec(seed=2).signature
    with store.claim(signature) as mine:
        store.add(mine, {**record_of(spec(seed=2)), "schema": 1}, {})
    good, told = store.verify()
    assert good == 1
    assert "has schema 1" in told[signature]
    assert store.path(signature).exists()


def test_nothing_is_made_twice_nor_by_two(store, log):
    wanted = spec()
    with store.claim(wanted.signature):
        assert attempt(store, wanted, "cpu", fake) == Attempt()
        assert told(log) == []
    for _ in range(2):
        assert attempt(store, wanted, "cpu", fake) == Attempt()
    assert told(log) == [wanted.signature]


# ------------------------------------------------------------------------------- kills


MANY = [spec(seed=seed) for seed in range(300)]


def _make_all(folder: Path, wanted: list[RunSpec], order: int) -> None:
    store = Store(folder)
    random.Random(order).shuffle(wanted)
    for item in wanted:
        attempt(store, item, "cpu", fake)


@pytest.mark.slow
def test_killed_at_any_instant_no_run_is_lost_and_none_is_half_there(tmp_path, log):
    """Two processes at a time work on one store and are killed at random instants."""
    folder = tmp_path / "store"
    instants = random.Random(0)
    kills = 0
    done: set[str] = set()
    for turn in range(40):
        lines = len(told(log))
        processes = [
            FORK.Process(target=_make_all, args=(folder, list(MANY), 2 * turn + which))
            for which in (0, 1)
        ]
        for process in processes:
            process.start()
        time.sleep(instants.uniform(0, 0.03))
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
            kills += process.exitcode == -signal.SIGKILL
        if folder.joinpath("store.json").exists():
            store = Store(folder)
            assert done.isdisjoint(told(log)[lines:])  # nothing is made again once it is there
            assert done <= set(store.signatures())  # and nothing is lost
            done = set(store.signatures())
            for signature in done:  # what is there is whole
                assert store.get(signature) is not None
    assert kills > 40
    assert len(done) > 0
    processes = [FORK.Process(target=_make_all, args=(folder, list(MANY), i)) for i in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    store = Store(folder)
    assert store.verify() == (len(MANY), {})
    assert leftovers(store) == []
    for wanted in MANY:
        assert RunSpec.from_dict(store.get(wanted.signature)) == wanted
        assert torch.equal(
            store.arrays(wanted.signature)["curve.loss"], *arrays_of(wanted).values()
        )


def test_two_processes_share_the_work_and_do_nothing_twice(tmp_path, log):
    processes = [
        FORK.Process(target=_make_all, args=(tmp_path / "store", MANY[:60], i)) for i in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert Counter(told(log)) == {wanted.signature: 1 for wanted in MANY[:60]}
    assert Store(tmp_path / "store").verify() == (60, {})


def test_records_with_and_without_metrics_pass_the_schema():
    old = {"dataset": "csbm", "split": "s", "seed": 0, "micro_f1": {"test": 0.5}, "loss": {},
           "best_epoch": 1, "epochs": 2, "stopped": "patience", "seconds": 0.1, "system": "gcn",
           "settings": {"num_layers": 2}, "training": {}}  # fmt: skip
    stored = old | {"signature": "s", "schema": 2, "data": {"dataset": "csbm", "split": "s"},
                    "analysis": {}, "measures": {}, "versions": {}, "hardware": "x",
                    "wall_seconds": 1.0, "peak_memory": {"bytes": 1, "of": "x"}}  # fmt: skip
    for kind, record in ((TRAINED, old), (FINISHED, stored)):
        check(record, kind)
        check(record | {"metrics": {"roc_auc": {"val": None, "test": 0.5}}}, kind)
        with pytest.raises(DamagedEntry, match=r"metrics.roc_auc.val is 'x'"):
            check(record | {"metrics": {"roc_auc": {"val": "x"}}}, kind)
