"""Training disturbed at random instants and resumed, round after round: ``make soak``.

A round starts a command in a process forked from this one, disturbs it, and gives the command again
until it ends by itself. The disturbances: SIGKILL, SIGTERM, a disk that is full from then on, and a
clock set back before the process is killed. They come at a random time, or just before a random one
of the command's file operations, such as between two renames. What was finished before must still
be there, to the byte, and in the end all bits must be those of an undisturbed run.

    python tests/soak.py 200
"""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import scipy.stats  # noqa: F401 - here once, not in every forked process
import torch
from safetensors.torch import load_file

from deepgat.cli import load_command, main
from deepgat.lab.experiments import Store, processes
from deepgat.model_folder import load_run

KINDS = ("SIGKILL", "SIGTERM", "full disk", "clock set back")
MOST_SECONDS = 120
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "open"}
UNEQUAL = {"seconds", "wall_seconds", "peak_memory", "checksum"}
"""What a record says about time and memory: never the same twice."""
SMALL = ("--layers", "2", "--hidden", "8", "--device", "cpu", "--quiet", "--patience", "100")
RUNS = """
system = "deepgat"
[data]
dataset = "{graph}"
[settings]
hidden_channels = 4
heads = 2
num_layers = 2
[training]
epochs = 5
[sweep]
training.seed = [0, 1, 2]
"""


class Train:
    """Two models of ``deepgat train``, whose state is saved as they go."""

    more: tuple[str, ...] = ("--resume", "--save-every", "2", "--seeds", "0,1", "--epochs", "8")

    def prepare(self, folder: Path, graph: Path) -> None:
        pass

    def command(self, folder: Path, graph: Path) -> list[str]:
        return ["train", str(graph), *SMALL, *self.more, "--out", str(folder / "models")]

    def finished(self, folder: Path) -> Iterator[Path]:
        """Folders of finished work."""
        yield from sorted((folder / "models").glob("seed-*/"))

    def result(self, folder: Path) -> Any:
        """What must be the same in the end."""
        found = {}
        for model in self.finished(folder):
            load_run(model)
            metrics = plain(model / "metrics.json")
            files = [(model / name).read_bytes() for name in ("model.safetensors", "model.json")]
            found[model.name] = (metrics, *files, (model / "predictions.csv").read_bytes())
        left = sorted(path.name for path in folder.rglob("*") if "progress" in path.name)
        return found, [name for name in left if not name.startswith(".")]


class Replace(Train):
    """A model in the place of another one, which must stay whole until then."""

    more = ("--epochs", "8")

    def prepare(self, folder: Path, graph: Path) -> None:
        shutil.copytree(graph.parent / "old", folder / "models")

    def finished(self, folder: Path) -> Iterator[Path]:
        yield folder / "models"


class Sweep(Train):
    """Three runs of ``deepgat run`` in a store, made by a worker process."""

    def prepare(self, folder: Path, graph: Path) -> None:
        (folder / "runs.toml").write_text(RUNS.format(graph=graph))

    def command(self, folder: Path, graph: Path) -> list[str]:
        options = ("--workers", "1", "--device", "cpu", "--quiet")
        return ["run", str(folder / "runs.toml"), "--store", str(folder / "store"), *options]

    def finished(self, folder: Path) -> Iterator[Path]:
        if (folder / "store" / "store.json").exists():
            store = Store(folder / "store")
            yield from map(store.path, store.signatures())

    def result(self, folder: Path) -> Any:
        store = Store(folder / "store")
        assert store.verify()[1] == {}
        found = {}
        for entry in self.finished(folder):
            arrays = load_file(entry / "arrays.safetensors")
            bits = {name: x.numpy().tobytes() for name, x in arrays.items()}
            found[entry.name] = (plain(entry / "run.json"), bits)
        return found, store.failures()


WORK = {"train": Train(), "replace": Replace(), "run": Sweep()}


def plain(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text())
    return {name: value for name, value in record.items() if name not in UNEQUAL}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Instant(NamedTuple):
    """When a disturbance comes: some seconds after the start, or before a file operation."""

    seconds: float = math.inf
    operation: int = -1


class Command:
    """A command in a forked process, disturbed once or not at all."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.operations = mmap.mmap(-1, 8)  # shared with the process and its workers
        self.disturbed = mmap.mmap(-1, 1)

    def run(self, kind: str = "", instant: Instant = Instant(), room: int = 0) -> tuple[int, str]:  # noqa: B008
        """(exit code, or the signal that ended it as a negative number; messages)."""
        self.room = room
        reader, writer = os.pipe()  # not a file: a full disk must not take the messages away
        sys.stdout.flush()
        child = os.fork()
        if not child:
            self._child(kind, instant, writer)
        os.close(writer)
        began, status, killed = time.monotonic(), None, False
        while status is None:
            passed = time.monotonic() - began
            if not killed and passed >= instant.seconds:
                killed = True
                self._disturb(kind, [child, *workers(child)])
            if passed > MOST_SECONDS:
                os.kill(child, signal.SIGKILL)
            pid, found = os.waitpid(child, os.WNOHANG)
            status = found if pid else None
            time.sleep(0.002)
        with os.fdopen(reader, errors="replace") as file:
            messages = file.read()  # ends when the last worker does
        assert time.monotonic() - began < MOST_SECONDS, f"it hangs: {messages}"
        return os.waitstatus_to_exitcode(status), messages

    def _disturb(self, kind: str, victims: list[int]) -> None:
        """From outside: one of the processes is killed, or nothing more fits on their disk."""
        for victim in victims if kind == "full disk" else [random.choice(victims)]:
            with suppress(ProcessLookupError):
                self.disturbed[0] = 1  # first: it may be this process
                if kind == "full disk":
                    resource.prlimit(victim, resource.RLIMIT_FSIZE, (self.room, self.room))
                else:
                    os.kill(victim, signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)

    def _child(self, kind: str, instant: Instant, writer: int) -> None:
        code = 70
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(writer, 2)
            os.close(writer)
            tempfile.tempdir = str(self.folder / "tmp")
            if kind == "clock set back":
                real = time.time
                time.time = lambda: real() - 86400 * self.disturbed[0]
            sys.addaudithook(lambda event, given: self._count(event, given, kind, instant))
            sys.argv = ["deepgat", *self.arguments]
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _count(self, event: str, given: tuple[Any, ...], kind: str, instant: Instant) -> None:
        """Before a file operation of the process or of its worker."""
        if event not in WRITES or not str(given[0]).startswith(str(self.folder)):
            return
        if event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR):
            return
        number = int.from_bytes(self.operations[:], "little")
        self.operations[:] = (number + 1).to_bytes(8, "little")
        if number == instant.operation:
            if kind == "clock set back" and not self.disturbed[0]:
                self.disturbed[0] = 1
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                self._disturb(kind, [os.getpid()])


def workers(process: int) -> list[int]:
    with suppress(OSError):
        found = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(word) for word in found.split()]
    return []


class Soak:
    """Rounds of all kinds, each in a folder of its own."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.draw = folder, random.Random(seed)
        self.graph = folder / "graph"
        club = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "club.py"))
        club["write_club"](self.graph, members=40)
        # In this process, so that forked ones find everything imported.
        arguments = [
            "train",
            str(self.graph),
            *SMALL,
            "--epochs",
            "2",
            "--out",
            str(folder / "old"),
        ]
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), suppress(SystemExit):
            sys.argv = ["deepgat", *arguments]
            main()
        self.counts: Counter[str] = Counter()
        self.usual: dict[str, tuple[float, int, Any]] = {}
        for name, work in WORK.items():
            place = self._place(work, f"whole-{name}")
            command = Command(work.command(place, self.graph), place)
            began = time.monotonic()
            code, messages = command.run()
            assert code == 0, messages
            took, count = time.monotonic() - began, int.from_bytes(command.operations[:], "little")
            self.usual[name] = took, count, work.result(place)

    def _place(self, work: Train, name: str) -> Path:
        place = self.folder / name
        (place / "tmp").mkdir(parents=True)
        work.prepare(place, self.graph)
        return place

    def round(self, number: int) -> None:
        """One or two disturbances, then none."""
        kind = KINDS[number % len(KINDS)]
        name = list(WORK)[number // len(KINDS) % len(WORK)]
        work, (usual, operations, expected) = WORK[name], self.usual[name]
        place = self._place(work, f"round-{number}")
        kept: dict[Path, dict[str, bytes]] = {}
        for left in reversed(range(self.draw.choice((2, 3)))):
            seconds = self.draw.uniform(0, usual)
            at = Instant(operation=self.draw.randrange(operations))
            instant = at if self.draw.random() < 0.5 else Instant(seconds)
            room = self.draw.choice((0, self.draw.randrange(4000)))
            command = Command(work.command(place, self.graph), place)
            if kind == "clock set back" and instant.seconds < math.inf:
                command.disturbed[0] = 1  # from the start; then it is killed
            told = (number, name, kind, instant, room)
            code, messages = command.run(*(kind, instant, room) if left else ())
            told = (*told, code, messages)
            self.counts[kind] += command.disturbed[0] if left else 0
            usual_codes = {0, -signal.SIGTERM if kind == "SIGTERM" else -signal.SIGKILL}
            expected_codes = {0, 2} if kind == "full disk" else usual_codes
            assert code in (expected_codes if left else {0}), told
            assert "Traceback" not in messages, told
            for folder, before in kept.items():
                assert isinstance(work, Replace) or content(folder) == before, told
            kept = {folder: content(folder) for folder in work.finished(place)}
            if isinstance(work, Replace):
                load_run(place / "models")
            if kind == "clock set back":  # what is there was written later than now
                for path in place.rglob("*"):
                    os.utime(path, (time.time() + 86400,) * 2)
        assert work.result(place) == expected, told
        shutil.rmtree(place)


def soak(rounds: int, folder: Path, seed: int = 0) -> Counter[str]:
    """The number of disturbances of every kind."""
    torch.set_num_threads(1)
    processes.START_METHOD = "fork"
    load_command("train"), load_command("run")  # also imported once
    random.seed(seed)
    all_rounds = Soak(folder, seed)
    for number in range(rounds):
        all_rounds.round(number)
        if (number + 1) % 10 == 0:
            print(f"{number + 1} of {rounds} rounds passed", flush=True)
    return all_rounds.counts


if __name__ == "__main__":
    began, wanted = time.monotonic(), int(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        os.environ["DEEPGAT_CACHE"] = f"{work}/cache"
        found = soak(wanted, Path(work))
    each = ", ".join(f"{kind} {found[kind]}" for kind in KINDS)
    print(f"{wanted} rounds in {time.monotonic() - began:.0f} s: nothing lost, the same bits")
    print(f"disturbed {found.total()} times while at work: {each}")
