"""Training on large graphs: the planted graph, the runs, and what is made of their rows."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from deepgat.cli import main
from deepgat.errors import UserError
from deepgat.figures import save_figure
from deepgat.lab.bench import large_training
from deepgat.lab.bench.large_training import NO_MEMORY, NO_TIME, REACHED, WAYS, training_rows
from deepgat.lab.bench.planted_graphs import bounds, planted_graph
from deepgat.lab.commands.bench import read_sizes
from deepgat.lab.report.speed import speed_tables, training_figure, training_result

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def graph():
    return planted_graph(40_000, classes=8, homophily=0.5)


def test_classes_are_equally_frequent_and_the_parts_disjoint(graph):
    assert graph.y.numel() == 4_000
    assert graph.y.bincount().tolist() == [500] * 8
    assert graph.train.numel() == 2_000
    assert graph.held_out.numel() == 1_000
    assert torch.cat([graph.train, graph.held_out]).unique().numel() == 3_000


def test_the_asked_share_of_edges_is_within_a_class(graph):
    source, target = graph.neighbors.edge_index
    source, target = source[source != target], target[source != target]
    same = graph.y[source] == graph.y[target]
    assert same.double().mean().item() == pytest.approx(0.5, abs=0.02)
    assert graph.neighbors.symmetric
    drawn = 2 * 40_000  # of which some are loops, or drawn twice
    assert 0.9 * drawn < source.numel() <= drawn


def test_degrees_have_a_power_law_alike_in_every_class(graph):
    degree = graph.neighbors.others.double()
    assert degree.max() > 10 * degree.mean()
    # the expected degree of rank r falls as √(1/r): the top hundredth has a tenth of all ends
    top = degree.sort(descending=True).values[:40].sum() / degree.sum()
    assert 0.07 < top < 0.13
    by_class = torch.stack([degree[graph.y == c].mean() for c in range(8)])
    assert (by_class.max() / by_class.min()) < 1.15


def test_every_rank_of_a_graph_of_millions_can_be_drawn():
    """In single precision two of three low-degree nodes would never be drawn."""
    from deepgat.lab.bench.planted_graphs import _ends

    n = 32_000_000
    ends, _ = _ends(n, 200_000, 16, 0.5, torch.Generator().manual_seed(0))
    high = ends[ends > n // 2]
    shares = (high % 4).bincount(minlength=4) / high.numel()
    assert shares.tolist() == pytest.approx([0.25] * 4, abs=0.01)


def test_the_same_seed_gives_the_same_graph(graph):
    again = planted_graph(40_000, classes=8, homophily=0.5)
    other = planted_graph(40_000, classes=8, homophily=0.5, seed=1)
    for name in ("x", "y", "train", "held_out", "means"):
        assert torch.equal(getattr(graph, name), getattr(again, name))
        assert not torch.equal(getattr(graph, name), getattr(other, name))
    assert torch.equal(graph.neighbors.source, again.neighbors.source)


def test_the_bounds_are_those_of_bayes_rule_node_by_node(graph):
    h, right, right_alone = 0.5, 0, 0
    nodes = graph.held_out[:200]
    for v in nodes.tolist():
        near = graph.neighbors.source[graph.neighbors.ptr[v] : graph.neighbors.ptr[v + 1]].long()
        likelihood = []
        for c in range(8):
            chance = [h if k == c else (1 - h) / 7 for k in graph.y[near[near != v]].tolist()]
            density = -0.5 * (graph.x[v] - graph.means[c]).square().sum().item()
            likelihood.append((sum(map(math.log, chance)) + density, density))
        best, alone = (max(range(8), key=lambda c, i=i: likelihood[c][i]) for i in (0, 1))
        right += best == graph.y[v]
        right_alone += alone == graph.y[v]
    some = replace(graph, held_out=nodes)
    found = bounds(some)
    assert found.reachable == pytest.approx(right / 200)
    assert found.features_alone == pytest.approx(right_alone / 200)
    assert found.features_alone < 0.7 < found.reachable


def test_bad_sizes_are_refused():
    with pytest.raises(UserError, match="pairs is 10 "):
        planted_graph(10)
    with pytest.raises(UserError, match="'many'"):
        read_sizes("1e6,many")
    with pytest.raises(UserError, match="'1e12'"):
        read_sizes("1e12")
    assert read_sizes("1e6, 62e6") == (1_000_000, 62_000_000)


@pytest.fixture
def small(monkeypatch):
    """A fifth of the reachable accuracy, so that a few epochs on a small graph have it."""
    monkeypatch.setattr(large_training, "SHARE", 0.2)
    monkeypatch.setattr(large_training, "WIDTH", 32)


@pytest.mark.slow
def test_every_way_reaches_the_accuracy_and_says_when(small):
    rows = list(training_rows(CPU, [3_000], seconds=60))
    assert [row["way"] for row in rows] == list(WAYS)
    for row in rows:
        assert row["stopped"] == REACHED
        assert row["accuracy"] >= row["target"] == 0.2 * row["reachable"]
        assert row["features_alone"] < row["reachable"] <= 1
        assert len(row["curve"]) == row["epochs"] >= 1
        assert 0 < row["prepare_seconds"] < row["reached_seconds"]
        assert row["reached_seconds"] == pytest.approx(row["curve"][-1][0], abs=1e-3)
        assert row["peak_megabytes"] >= 0
    kept, recomputed = rows[:2]
    assert [a for _, a in kept["curve"]] == [a for _, a in recomputed["curve"]]


@pytest.mark.slow
def test_a_way_out_of_time_is_not_tried_on_larger_graphs(monkeypatch):
    monkeypatch.setattr(large_training, "SHARE", 1.0)
    ways = ("full batch", "neighbours")
    (row, other) = training_rows(CPU, [4_000, 2_000], seconds=0.001, ways=ways)
    assert row["stopped"] == other["stopped"] == NO_TIME
    assert row["pairs"] == other["pairs"] == 2_000
    assert row["reached_seconds"] is None
    assert row["epochs"] == 1


@pytest.mark.slow
def test_a_way_that_gains_nothing_more_ends_and_larger_graphs_are_tried(monkeypatch):
    monkeypatch.setattr(large_training, "SHARE", 1.5)
    monkeypatch.setattr(large_training, "PATIENCE", 1)
    rows = list(training_rows(CPU, [1_000, 1_200], seconds=60, ways=["full batch"]))
    assert [row["stopped"] for row in rows] == ["stays below"] * 2


@pytest.mark.slow
def test_lack_of_memory_is_a_row_and_any_other_error_is_raised(small, monkeypatch):
    run_epochs = large_training.run_epochs

    def full(trainer, on_epoch):
        if trainer.segment == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return run_epochs(trainer, on_epoch)

    monkeypatch.setattr(large_training, "run_epochs", full)
    ways = ("full batch", "full batch, layers recomputed")
    rows = list(training_rows(CPU, [2_000, 3_000], seconds=60, ways=ways))
    assert [(row["pairs"], row["stopped"]) for row in rows] == [
        (2_000, NO_MEMORY), (2_000, REACHED), (3_000, REACHED),
    ]  # fmt: skip

    def broken(trainer, on_epoch):
        raise RuntimeError("a bug")

    monkeypatch.setattr(large_training, "run_epochs", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        list(training_rows(CPU, [2_000], seconds=60))


def test_a_graph_too_large_to_make_ends_the_table(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(large_training, "planted_graph", full)
    rows = list(training_rows(CPU, [2_000, 3_000], ways=["clusters"]))
    assert [row["stopped"] for row in rows] == [f"{NO_MEMORY}, making the graph"]


def test_preparation_that_would_take_too_long_is_not_begun():
    rows = [{"pairs": 10, "prepare_seconds": 2.0}, {"pairs": 20, "prepare_seconds": 3.0}]
    assert large_training._expected_preparation(rows, 50) == pytest.approx(6.0)
    assert large_training._expected_preparation(rows[:1], 50) == 0


def test_ctrl_c_ends_the_measurement(small, monkeypatch):
    def interrupt(run, epoch):
        raise KeyboardInterrupt

    monkeypatch.setattr(large_training._Run, "after_epoch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(training_rows(CPU, [2_000], ways=["full batch"]))


def test_the_command_writes_rows_and_prints_the_table(small, monkeypatch, capsys, tmp_path):
    out = tmp_path / "rows.json"
    command = ["training", "--device", "cpu", "--sizes", "2e3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["deepgat", "bench", *command])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    record = json.loads(out.read_text())
    assert [row["way"] for row in record["rows"]] == list(WAYS)
    printed = capsys.readouterr()
    assert "s to 95%" in printed.out
    assert "layers recomputed: 2,000 edges: reached after" in " ".join(printed.err.split())


def row_of(way: str, pairs: int, stopped: str = REACHED, **more) -> dict:
    row = {"suite": "training", "graph": "planted classes", "pairs": pairs, "way": way}
    row |= {"nodes": pairs // 10, "stopped": stopped, "target": 0.9, "reachable": 0.95}
    reached = pairs / 1e5 if stopped == REACHED else None
    row |= {"reached_seconds": reached, "epochs": 3, "peak_megabytes": 1_500.0, "accuracy": 0.91}
    return row | {"curve": [(pairs / 1e5, 0.91)]} | more


def test_rows_become_a_table_and_a_figure(tmp_path):
    rows = [row_of(way, pairs) for pairs in (10**5, 10**6) for way in WAYS]
    rows.append(row_of("full batch", 10**7, NO_MEMORY, curve=[], accuracy=None, epochs=0))
    rows.append(row_of("clusters", 10**7, f"{NO_TIME}, preparing would take about 99 s"))
    del rows[-1]["curve"], rows[-1]["peak_megabytes"]
    record = {"machine": {"gpu": "chip"}, "rows": rows}
    (table,) = speed_tables(record)
    assert table.title == "Training to 95% of the reachable accuracy, 4 layers of width 64 (chip)"
    assert table.rows[0] == [
        "100,000", "10,000", "full batch", "1.0", "3", "–", "–", "1.50", "91.0%", "95.0%", REACHED,
    ]  # fmt: skip
    assert table.rows[-2][3] == "–"
    assert table.rows[-2][-1] == NO_MEMORY
    figure = training_figure([record, record])
    assert [axes.get_title("left") for axes in figure.axes] == ["chip", "chip"]
    left = figure.axes[0]
    marked = [line for line in left.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in marked] == [[10**7], [10**7]]
    assert left.get_xscale() == left.get_yscale() == "log"
    assert save_figure(figure, tmp_path / "training.png").stat().st_size > 1000


def test_a_row_is_told_in_words():
    assert training_result(row_of("full batch", 10**5)) == (
        "100,000 edges: reached after 1.0 s and 3 epochs"
    )
    slow = row_of("full batch", 10**5, NO_TIME)
    assert training_result(slow) == "100,000 edges: out of time, 91.0% of 90.0%"
