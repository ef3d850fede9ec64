"""deepgat train --processes, torchrun, deepgat partition; processes that are killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deepgat.cli import main
from deepgat.distributed import Team, launch

DIGITS = ("train", "digits", "--layers", "2", "--hidden", "4", "--device", "cpu")
DEEP = ("--layers", "4", "--hidden", "8", "--device", "cpu", "--quiet")


def start(*arguments: object, module: str = "deepgat") -> subprocess.Popen:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def deepgat(*arguments: object) -> tuple[int, str, str]:
    return finish(start(*arguments))


def record_of(out: str) -> dict:
    (line,) = out.splitlines()
    return json.loads(line)


@pytest.mark.slow
def test_two_processes_from_the_command_line(tmp_path):
    options = ("--epochs", 4, "--json", "--out")
    code, out, err = deepgat(*DIGITS, *options, tmp_path / "two", "--processes", 2)
    assert code == 0, err
    two = record_of(out)
    code, out, err = deepgat(*DIGITS, *options, tmp_path / "one")
    assert code == 0, err
    one = record_of(out)
    assert two["micro_f1"] == pytest.approx(one["micro_f1"], abs=0.01)
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]  # no progress left
    lines = [
        (tmp_path / name / "predictions.csv").read_text().splitlines() for name in ("one", "two")
    ]
    assert len(lines[0]) == len(lines[1]) == 1798
    labels = [[line.split(",")[1:4] for line in each] for each in lines]
    assert labels[0] == labels[1]


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deepgat", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_partition_writes_a_folder_that_wants_as_many_processes(run, tmp_path):
    folder = tmp_path / "parts"
    code, out, _ = run("partition", "digits", "--parts", 3, "--out", folder, "--method", "order")
    assert code == 0
    assert "in 3 parts by order" in " ".join(out.split())
    description = json.loads((folder / "partition.json").read_text())
    assert sum(size["nodes"] for size in description["sizes"]) == 1797
    code, _, err = run("train", folder)
    assert code == 2
    assert "add --processes 3" in " ".join(err.split())
    assert run("partition", "digits", "--parts", 0, "--out", folder)[0] == 2
    assert run("partition", "digits", "--parts", 2, "--out", tmp_path)[0] == 2
    code, _, err = run("train", "digits", "--processes", 0)
    assert code == 2
    assert "expected 1 or more" in err
    code, _, err = run("train", "digits", "--batch-size", -1)
    assert code == 2
    assert "--batch-size is -1: expected 0 or more" in err
    code, _, err = run("train", "digits", "--save-every", 5)
    assert code == 2
    assert "--save-every needs --out" in err


def test_a_verdict_is_given_once(monkeypatch, tmp_path):
    monkeypatch.setenv(launch.VERDICT, str(tmp_path / "verdict"))
    assert launch.give_up(2)
    assert not launch.give_up(2)
    assert (tmp_path / "verdict").read_text() == "2"
    monkeypatch.delenv(launch.VERDICT)
    assert launch.give_up(2)
    assert launch.give_up(2)


@pytest.mark.distributed
def test_a_mistake_is_one_sentence_from_however_many_processes(tmp_path):
    code, out, err = deepgat("train", "digitz", "--processes", 2)
    assert code == 2
    assert out == ""
    assert err.count("error:") == 1
    assert len(err.strip().splitlines()) == 1


OWN = ("--layers", 2, "--hidden", 4, "--device", "cpu", "--epochs", 4, "--json")


def own_graph(folder: Path) -> Path:
    """A ring of named nodes with weighted edges."""
    folder.mkdir()
    names = [f"n{i:02}" for i in range(24)]
    kinds = ["red", "blue"]
    nodes = [f"{name},{kinds[i % 2]},{i % 5}" for i, name in enumerate(names)]
    (folder / "nodes.csv").write_text("\n".join(["id,label,size", *nodes]) + "\n")
    edges = [f"{name},{names[(i + 2) % 24]},{1 + i % 3}" for i, name in enumerate(names)]
    (folder / "edges.csv").write_text("\n".join(["source,target,weight", *edges]) + "\n")
    return folder


@pytest.mark.distributed
@pytest.mark.lengthy
def test_your_graph_in_parts(run, tmp_path):
    graph = own_graph(tmp_path / "graph")
    parts = tmp_path / "parts"
    assert run("partition", graph, "--parts", 2, "--out", parts)[0] == 0
    code, out, err = deepgat("train", parts, *OWN, "--out", tmp_path / "two", "--processes", 2)
    assert code == 0, err
    code, whole, err = run("train", graph, *OWN, "--out", tmp_path / "one")
    assert code == 0, err
    assert record_of(out)["loss"] == pytest.approx(record_of(whole)["loss"], rel=1e-4)
    cards = [json.loads((tmp_path / name / "model.json").read_text()) for name in ("one", "two")]
    assert [card.pop("weights_sha256") != "" for card in cards] == [True, True]
    assert cards[0] == cards[1]
    assert cards[0]["class_names"] == ["blue", "red"]
    line = (tmp_path / "two" / "predictions.csv").read_text().splitlines()[1]
    assert line.startswith("0,n00,")
    assert run("evaluate", tmp_path / "two", "--json")[0] == 0
    code, _, err = deepgat("train", graph, *OWN, "--processes", 2)
    assert err.count("comes without a split") == 1  # told by one process alone
    code, _, err = deepgat("train", parts, "--processes", 3)
    assert code == 2
    assert "start 2" in " ".join(err.split())


def test_what_a_team_does_not_take(run, tmp_path, monkeypatch):
    graph, parts = own_graph(tmp_path / "graph"), tmp_path / "parts"
    assert run("partition", graph, "--parts", 2, "--out", parts)[0] == 0
    monkeypatch.setattr(Team, "launched", lambda: True)
    code, _, err = run("train", parts, "--read", "missing=mean")
    assert code == 2
    assert "leave --read away" in " ".join(err.split())
    code, _, err = run("train", graph, "--model", "label-propagation")
    assert code == 2
    assert "without --processes" in " ".join(err.split())


@pytest.mark.distributed
def test_two_processes_share_the_graphs_of_a_cross_validation(run, tmp_path):
    """Rings of five and paths of five, as the TU collection writes them."""
    edges, nodes = [], 0
    for graph in range(24):
        steps = 5 if graph % 2 else 4
        edges += [(nodes + i, nodes + (i + 1) % 5) for i in range(steps)]
        nodes += 5
    lines = {
        "A": [f"{a + 1}, {b + 1}\n{b + 1}, {a + 1}" for a, b in edges],
        "graph_indicator": [str(node // 5 + 1) for node in range(nodes)],
        "graph_labels": [str(graph % 2) for graph in range(24)],
        "node_labels": [str(node % 2) for node in range(nodes)],
    }
    for name, text in lines.items():
        (tmp_path / f"RINGS_{name}.txt").write_text("\n".join(text) + "\n")
    # layer norm: in single precision a bias before a batch norm follows rounding (docs/scaling.md)
    options = ("--folds", 3, "--epochs", 4, "--batch", 6, "--device", "cpu", "--json",
               "--set", "norm=layer")  # fmt: skip
    code, whole, err = run("crossval", tmp_path, *options)
    assert code == 0, err
    code, shared, err = deepgat("crossval", tmp_path, *options, "--processes", 2)
    assert code == 0, err
    for one, two in zip(record_of(whole)["folds"], record_of(shared)["folds"], strict=True):
        assert two["test"] == pytest.approx(one["test"], abs=1e-6)
        assert two["best_epoch"] == one["best_epoch"]


@pytest.mark.distributed
def test_torchrun_starts_it_too():
    code, out, err = finish(
        start("--standalone", "--nproc-per-node", 2, "-m", "deepgat", *DIGITS, "--epochs", 3,
              "--json", module="torch.distributed.run")
    )  # fmt: skip
    assert code == 0, err
    assert record_of(out)["epochs"] == 3


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def children(process: subprocess.Popen) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.distributed
@pytest.mark.lengthy
def test_a_process_killed_at_any_moment_changes_nothing(tmp_path):
    """Ten kills, three in a run; every second one before anything may have been kept."""
    graph = own_graph(tmp_path / "graph")
    options = ("train", graph, *DEEP, "--epochs", 40, "--save-every", 4, "--processes", 2)
    began = time.monotonic()
    assert deepgat(*options, "--out", tmp_path / "whole")[0] == 0
    usual = time.monotonic() - began
    expected = weights_of(tmp_path / "whole")
    draw, kills = random.Random(0), 0
    while kills < 10:
        process = start(*options, "--out", tmp_path / "killed")
        kept, seen = tmp_path / "killed.progress", set()
        for _ in range(min(launch.MOST_RESTARTS, 10 - kills)):
            while not (team := set(children(process)) - seen) and process.poll() is None:
                time.sleep(0.02)  # until it is started again
            seen |= team
            deadline = time.monotonic() + usual
            while kills % 2 and not kept.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(draw.uniform(0, 0.3 if kills % 2 else 0.6 * usual))
            if alive := team.intersection(children(process)):
                os.kill(draw.choice(sorted(alive)), signal.SIGKILL)
                kills += 1
        code, _, err = finish(process)
        assert code == 0, err
        found = weights_of(tmp_path / "killed")
        assert all(torch.equal(found[name], item) for name, item in expected.items())
        assert not kept.exists()
        shutil.rmtree(tmp_path / "killed")


@pytest.mark.distributed
def test_an_interrupt_keeps_the_best_weights_so_far(tmp_path):
    process = start(
        "train", own_graph(tmp_path / "graph"), *DEEP, "--epochs", 100000, "--patience", 100000,
        "--save-every", 2, "--processes", 2, "--out", tmp_path / "kept",
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (tmp_path / "kept.progress").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, _, err = finish(process)
    assert code == 130, err
    assert weights_of(tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "metrics.json").read_text())["stopped"] == "interrupted"
