"""The benchmark: rivals that compute the same thing, and rows with the figures they promise."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from deepgat.cli import main
from deepgat.data import load_graph
from deepgat.lab.bench import csv_reading, measure, random_graphs, suites
from deepgat.lab.bench.layer_ways import PlainClassAttention, Way, fused_layer, times_alike
from tiny import tiny_dataset

CPU = torch.device("cpu")


def test_the_rivals_compute_what_the_library_computes():
    near = random_graphs.hub_rich(50, 200)
    x = torch.randn(50, 6)
    fused = fused_layer(6, 4, 2, 3)
    for per_edge in (False, True):
        plain = PlainClassAttention(6, 4, 2, 3, per_edge_softmax=per_edge)
        plain.classes.weight.data.copy_(fused.class_weight.data)
        plain.values.weight.data.copy_(fused.weight.data)
        torch.testing.assert_close(plain(x, near.edge_index), fused(x, near))


def test_a_hub_rich_graph_has_hubs_and_is_undirected():
    near = random_graphs.hub_rich(1000, 5000)
    assert near.symmetric
    assert near.degree.max() > 5 * near.degree.float().mean()
    again = random_graphs.hub_rich(1000, 5000)
    assert torch.equal(near.source, again.source)


def test_a_factor_alike_compares_with_the_same_treatment():
    times = {"PyG GATConv": 4.0, "PyG GATConv, compiled": 2.0, "deepgat": 1.0}
    times |= {"deepgat, compiled": 0.5, "deepgat, replayed": 0.1}
    found = {way: measure.Measurement(ms, 0.0) for way, ms in times.items()}
    ways = {way: Way(lambda: None, way.partition(", ")[2] or "eager") for way in times}
    assert times_alike(found, ways, "deepgat") == 4
    assert times_alike(found, ways, "deepgat, compiled") == 4
    assert times_alike(found, ways, "deepgat, replayed") is None


PEAK = """
import torch
from deepgat.lab.bench import measure
step = lambda: torch.ones(40_000_000)
print(measure.measure({"ones": step}, torch.device("cpu"), 1)["ones"].peak_megabytes)
"""


@pytest.mark.slow
def test_peak_memory_sees_what_a_step_allocates():
    """In a process of its own: torch's allocator on ARM reads the variable when it starts."""
    if not measure._resident("VmRSS"):
        pytest.skip("no /proc here")
    there = {**os.environ, "MIMALLOC_PURGE_DELAY": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PEAK], env=there, capture_output=True, text=True, check=True
    )
    assert 100 < float(done.stdout) < 400


def test_a_way_that_runs_out_of_memory_is_left_out():
    def too_much() -> None:
        raise torch.OutOfMemoryError

    found = measure.measure({"fine": lambda: None, "too much": too_much}, CPU, rounds=1)
    assert list(found) == ["fine"]


def run(monkeypatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["deepgat", "bench", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


@pytest.mark.slow
def test_the_command_measures_one_table(monkeypatch, capsys, tmp_path):
    small = random_graphs.hub_rich(60, 200)
    monkeypatch.setattr(suites.random_graphs, "hub_rich", lambda *_, **__: small)
    monkeypatch.setattr(suites.random_graphs, "like_physics", lambda: small)
    out = tmp_path / "rows.json"
    options = ("--quick", "--device", "cpu", "--out", str(out))
    assert not run(monkeypatch, "layer", *options)
    rows = json.loads(out.read_text())["rows"]
    assert {row["suite"] for row in rows} == {"layer"}
    ways = {row["way"]: row for row in rows}
    assert {"deepgat", "deepgat, lists prepared", "PyG GATConv", "PyG GATv2Conv"} <= set(ways)
    assert all(row["treatment"] == "eager" for row in rows)  # --quick compiles nothing
    assert ways["deepgat"]["times_gatconv"] > 0
    assert ways["PyG GATConv"]["times_alike"] == ways["PyG GATConv"]["times_gatconv"] == 1
    assert f"Rows: {out}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.lengthy
def test_the_command_writes_rows_with_the_machine(monkeypatch, tmp_path):
    small = random_graphs.hub_rich(60, 200)
    monkeypatch.setattr(suites.random_graphs, "hub_rich", lambda *_, **__: small)
    monkeypatch.setattr(suites.random_graphs, "like_physics", lambda: small)
    monkeypatch.setattr(suites, "load_graph", lambda name: tiny_dataset())
    out = tmp_path / "new" / "rows.json"
    names = ("step", "epoch", "growth", "depth", "large")  # layer, files: tests of their own
    assert not run(monkeypatch, *names, "--quick", "--device", "cpu", "--out", str(out))
    record = json.loads(out.read_text())
    assert record["machine"]["torch"] == torch.__version__
    assert {row["suite"] for row in record["rows"]} == set(names)
    assert all(row["milliseconds"] > 0 for row in record["rows"] if "milliseconds" in row)
    assert [path.name for path in out.parent.iterdir()] == ["rows.json"]


def test_an_unknown_table_is_refused(monkeypatch, capsys):
    assert run(monkeypatch, "layers") == 2
    assert "did you mean 'layer'" in capsys.readouterr().err
    assert set(suites.SUITES) == {
        "layer",
        "step",
        "epoch",
        "words",
        "growth",
        "depth",
        "large",
        "training",
        "files",
    }


def test_the_rivals_read_the_same_graph(tmp_path):
    pytest.importorskip("pandas")
    csv_reading.write_tables(tmp_path / "g", 300, 900, "user-")
    mine = load_graph(tmp_path / "g").graph
    by_hand = csv_reading.through_pandas(tmp_path / "g")
    networkx = csv_reading.through_networkx(tmp_path / "g")
    order = mine.edge_index.flip(0)  # PyG sorts by source first
    assert torch.equal(by_hand.edge_index, order)
    assert torch.equal(by_hand.y, mine.y)
    loops = int((mine.edge_index[0] == mine.edge_index[1]).sum())
    assert networkx.edge_index.shape[1] in (mine.edge_index.shape[1], order.shape[1] + loops)


@pytest.mark.slow
def test_reading_is_measured_and_networkx_on_small_graphs_only(monkeypatch):
    def ways() -> set[str]:
        return {row["way"] for row in csv_reading.reading_rows(quick=True)}

    theirs = {"pandas by hand", "pandas, NetworkX, PyG"} if find_spec("pandas") else set()
    assert ways() == {"deepgat", *theirs}
    monkeypatch.setattr(csv_reading, "NETWORKX_EDGES", 10)
    assert ways() == {"deepgat", *theirs} - {"pandas, NetworkX, PyG"}


def test_rows_become_tables_and_a_figure(tmp_path):
    from deepgat.figures import save_figure
    from deepgat.lab.report.speed import speed_figure, speed_tables

    row = {"suite": "layer", "graph": "g", "edges": 10, "way": "deepgat", "milliseconds": 1.5}
    slow = row | {"way": "plain", "milliseconds": 30.0}
    deep = row | {"suite": "step", "peak_megabytes": 7.0}
    record = {"machine": {"threads": 2, "processor": "chip"}, "rows": [row, slow, deep]}
    layer, step = speed_tables(record)
    assert layer.rows == [["g", "10", "deepgat", "1.50"], ["g", "10", "plain", "30.00"]]
    assert "2 cores, chip" in step.title
    assert save_figure(speed_figure([record, record]), tmp_path / "speed.png").stat().st_size > 1000
