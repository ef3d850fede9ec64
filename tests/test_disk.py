"""Full and read-only disks, impossible places: a sentence, nothing half-written, nothing lost."""

import errno
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepgat import files
from deepgat.cli import main
from deepgat.errors import UserError
from deepgat.figures import new_axes, save_figure
from deepgat.files import CannotWrite, check_can_write, new_folder, write_whole, writing
from deepgat.model_folder import MODEL_FOLDER, load_run, save_run
from deepgat.training.recipes import recipe
from deepgat.training.resume import Progress
from deepgat.training.run import Run, train_once
from tiny import tiny_dataset

RUNS = importlib.import_module("deepgat.cli.runs")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def run() -> Run:
    plan = recipe("gcn", hidden_channels=4, training={"epochs": 2, "device": "cpu"})
    return train_once(tiny_dataset(), plan)


@pytest.fixture
def full(monkeypatch) -> None:
    """A disk without room: files can be opened, nothing can be written."""

    def fail(*_: object, **__: object) -> None:
        raise FULL

    monkeypatch.setattr(Path, "write_bytes", fail)
    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.usefixtures("full")
def test_a_full_disk_is_told_and_leaves_the_old_file(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(CannotWrite) as caught:
        write_whole(tmp_path / "a", "new")
    assert str(caught.value) == (
        f"{tmp_path / 'a'} cannot be written (No space left on device): make room there, or choose "
        "another path"
    )
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_full_disk_leaves_the_old_model(tmp_path, run, monkeypatch):
    folder = save_run(tmp_path / "model", run, tiny_dataset())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(FULL))
    with pytest.raises(UserError, match=r"model cannot be written \(No space left"):
        save_run(folder, run, tiny_dataset())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]


def test_an_exchange_leaves_no_instant_without_a_model(tmp_path, run, monkeypatch):
    """A process killed between two renames would have left none under its name."""
    folder = save_run(tmp_path / "model", run, tiny_dataset())
    if files._exchange(folder, save_run(tmp_path / "other", run, tiny_dataset())):
        monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("two steps"))
    save_run(folder, run, tiny_dataset())
    assert load_run(folder)[1] == run.card


def test_errors_of_files_that_are_read_keep_their_names(tmp_path):
    with pytest.raises(FileNotFoundError), new_folder(tmp_path / "a" / "b", MODEL_FOLDER):
        (tmp_path / "input.csv").read_text()


@pytest.mark.parametrize("kind", [None, MODEL_FOLDER], ids=["file", "folder"])
@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("/", "exists and is not a model folder|is a folder: expected the name of a file"),
        ("/proc/x", "/proc is not a writable folder"),
        ("/proc/x/y", "/proc is not a writable folder"),
        ("loop", "loop cannot be read"),
        ("loop/x", "loop/x cannot be read"),
        ("file/x", "file is not a writable folder"),
        ("\0", "cannot be read"),
    ],
)
def test_impossible_places_are_refused_before_any_work(tmp_path, place, sentence, kind):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=sentence):
        check_can_write(tmp_path / place, kind)


def test_a_read_only_disk_is_found_before_any_work(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path))

    monkeypatch.setattr(files.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(UserError, match="is not a writable folder: choose another path"):
        check_can_write(tmp_path / "model", MODEL_FOLDER)


def test_a_device_is_written_to_and_not_replaced():
    write_whole(Path(os.devnull), "x")
    assert not Path(os.devnull).is_file()
    if Path("/dev/full").exists():
        with pytest.raises(CannotWrite, match="/dev/full cannot be written"):
            write_whole(Path("/dev/full"), "x")


@pytest.mark.usefixtures("full")
def test_training_goes_on_where_its_state_cannot_be_saved(tmp_path):
    with pytest.warns(UserWarning, match="cannot be written .*; training goes on without it"):
        Progress(tmp_path / "p", 1).write({}, [], 0.0)


def fails_at(place: Path, monkeypatch) -> None:
    def save(folder: Path, run: Run, data: object, *kept: bool) -> Path:
        if folder == place:
            raise CannotWrite(f"{folder} cannot be written (full): make room")
        return save_run(folder, run, data, *kept)

    monkeypatch.setattr(RUNS, "save_run", save)


def test_a_model_that_cannot_be_saved_is_put_elsewhere(tmp_path, run, monkeypatch):
    fails_at(tmp_path / "model", monkeypatch)
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError, match=r"\(full\): make room; the trained model is in ") as caught:
        RUNS.save_anywhere(tmp_path / "model", run, tiny_dataset())
    copy = Path(str(caught.value).rpartition(" is in ")[2])
    assert load_run(copy)[1] == run.card


def test_in_a_terminal_another_place_is_asked_for(tmp_path, run, monkeypatch, capsys):
    fails_at(tmp_path / "model", monkeypatch)
    monkeypatch.setattr(RUNS.ERR, "_force_terminal", True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(RUNS.typer, "prompt", lambda *_, **__: str(tmp_path / "other"))
    RUNS.save_anywhere(tmp_path / "model", run, tiny_dataset())
    assert load_run(tmp_path / "other")[1] == run.card
    assert "saved to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError(13, "Permission denied", "x/y"), "x/y cannot be used (Permission denied)"),
        (FULL, "the output cannot be written (No space left on device): make room where it "),
        (CannotWrite("x cannot be written (so)"), "x cannot be written (so)"),
    ],
)
def test_the_command_line_tells_what_the_disk_said(error, sentence, monkeypatch, capsys):
    monkeypatch.setattr("deepgat.cli.app", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


def test_other_errors_of_the_system_keep_their_traceback(monkeypatch):
    monkeypatch.setattr("deepgat.cli.app", lambda: (_ for _ in ()).throw(OSError(1, "odd")))
    with pytest.raises(OSError, match="odd"):
        main()


def test_what_was_told_is_not_told_twice(tmp_path):
    with pytest.raises(CannotWrite, match=r"^once$"), writing(tmp_path), writing(tmp_path):
        raise CannotWrite("once")


def test_a_picture_that_does_not_fit_is_told(tmp_path, full):
    """matplotlib's own writer of PDF files fails otherwise where the disk is full."""
    figure, _ = new_axes()
    with pytest.raises(CannotWrite, match=r"a\.pdf cannot be written \(No space left"):
        save_figure(figure, tmp_path / "a.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_behind_the_output_is_told():
    command = [sys.executable, "-m", "deepgat", "--version"]
    with open("/dev/full", "w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "the output cannot be written (No space left on device)" in done.stderr
