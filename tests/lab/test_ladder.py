"""The ladder: its runs, its tables and figure, and the command from runs to files."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from deepgat.cli import main
from deepgat.errors import UserError
from deepgat.lab.experiments import write_records
from deepgat.lab.experiments.measures import GraphOutputs, layer_accuracy
from deepgat.lab.experiments.store_entry import FORMAT, parse_record, sealed
from deepgat.lab.paper.depths import FEW
from deepgat.lab.paper.ladder import (
    DEEP,
    LADDER_DATASETS,
    MEASURE,
    NO_ATTENTION,
    RIGHT,
    ROWS,
    RUNGS,
    ladder_specs,
)
from deepgat.lab.report.ladder import (
    ABOVE,
    BELOW,
    EQUAL,
    ladder_figures,
    ladder_tables,
    share_of_equal_accuracy,
)
from deepgat.models import LayerOutputs
from tiny import tiny_dataset, tiny_labels

from jobs import record_of

DEEP_SCORE, PLAIN_SCORE = 0.75, 0.65


def graded_record(spec, missing_measure=False):
    """At p: p; deep: .75; without attention .65; in q of layer l + 1, (50 + l)% are right."""
    right = spec.settings.to_dict().get("right")
    own = DEEP_SCORE if spec.settings.sharpness else PLAIN_SCORE
    score = (own if right is None else right) + 0.01 * (spec.seed - 1)
    shares = {str(layer): 0.5 + 0.01 * layer for layer in range(spec.layers + 1)}
    measured = right is None and spec.settings.sharpness and not missing_measure
    scores = {"train": 1.0, "val": score, "test": score}
    return record_of(spec, micro_f1=scores, measures={MEASURE: shares} if measured else {})


def graded(labelled):
    return {label: [graded_record(spec) for spec in specs] for label, specs in labelled.items()}


# --------------------------------------------------------------------------- the runs


def test_the_rows_differ_in_the_attention_alone():
    labelled = ladder_specs()
    assert list(labelled) == [NO_ATTENTION, DEEP, *RUNGS] == list(ROWS)
    assert {len(specs) for specs in labelled.values()} == {3 * len(LADDER_DATASETS)}
    assert sum(map(len, labelled.values())) == 144
    assert FEW.public == FEW.splits == 3
    for runs in zip(*labelled.values(), strict=True):
        plain, deep, *rungs = runs
        assert plain.settings == replace(deep.settings, sharpness=0.0)
        assert [spec.settings.right for spec in rungs] == list(RIGHT)
        assert deep.analysis.measures == (MEASURE,)
        assert deep.layers == 16
        for spec in rungs:
            settings = spec.settings.to_dict()
            del settings["right"]
            assert settings == deep.settings.to_dict()
        assert len({(spec.data, spec.training) for spec in runs}) == 1
    splits = {(s.data.dataset, s.data.split) for s in labelled[DEEP]}
    assert ("cora", "public") in splits
    assert {split for name, split in splits if name == "photo"} == {
        f"random:{k}:20/30" for k in range(3)
    }


def test_the_grid_can_be_chosen():
    labelled = ladder_specs(
        datasets=["cora", "cs"], layers=[8, 32], seeds=[4], splits=2, systems=["deep", "p = 50%"]
    )
    assert list(labelled) == [DEEP, "p = 50%"]
    assert [(s.data.dataset, s.layers, s.seed) for s in labelled[DEEP]] == [
        ("cora", 8, 4), ("cora", 32, 4), *[("cs", 8, 4)] * 2, *[("cs", 32, 4)] * 2,
    ]  # fmt: skip
    quick = ladder_specs(quick=True)
    assert {(s.data.dataset, s.layers) for own in quick.values() for s in own} == {("csbm", 8)}
    with pytest.raises(UserError, match="a node of ppi has several labels: leave it out"):
        ladder_specs(datasets=["cora", "ppi"])


def test_the_measure_counts_labelled_nodes_outside_the_training_set():
    y = torch.tensor([0, 1, 1, 0, -1])
    train = torch.tensor([True, False, False, False, False])
    right = torch.eye(2)[[0, 1, 1, 0, 0]]
    wrong_once = torch.eye(2)[[1, 1, 0, 0, 0]]
    data = Data(y=y, train_mask=train)
    outputs = LayerOutputs(right, {0: wrong_once, 1: right}, [])
    found = layer_accuracy(tiny_dataset(), [GraphOutputs(data, outputs, None)])
    assert found == {"0": pytest.approx(2 / 3), "1": 1.0}
    assert layer_accuracy(tiny_labels(), [GraphOutputs(data, outputs, None)]) is None
    alone = LayerOutputs(right, {1: right}, [])
    assert layer_accuracy(tiny_dataset(), [GraphOutputs(data, alone, None)]) is None


# --------------------------------------------------------------------------- the tables


@pytest.mark.parametrize(
    ("line", "score", "expected"),
    [
        ({0.5: 70.0, 0.6: 80.0}, 75.0, 0.55),
        ({0.5: 70.0, 0.6: 80.0, 0.7: 84.0}, 81.0, 0.625),
        ({0.5: 70.0, 0.6: 80.0}, 70.0, 0.5),
        ({0.5: 70.0, 0.6: 80.0}, 80.0, 0.6),
        ({0.5: 70.0, 0.6: 80.0, 0.7: 60.0}, 75.0, 0.55),  # the smallest of two
        ({0.5: 80.0, 0.6: 70.0}, 75.0, 0.55),
        ({0.5: 70.0, 0.6: 70.0}, 70.0, 0.5),
        ({0.5: 70.0, 0.6: 80.0}, 69.9, BELOW),
        ({0.5: 70.0, 0.6: 80.0}, 80.1, ABOVE),
    ],
)
def test_the_share_of_equal_accuracy(line, score, expected):
    found = share_of_equal_accuracy(line, score)
    assert found == (expected if isinstance(expected, str) else pytest.approx(expected))


def test_the_tables_of_a_ladder():
    scores, layers = ladder_tables(graded(ladder_specs(datasets=["cora", "cs"])), {})
    assert scores.columns == ["attention", "cora", "cs"]
    rows = {label: cells for label, *cells in scores.rows}
    assert rows[NO_ATTENTION] == ["65.0 ± 1.0", "64.0 ± 0.0"]  # cs: three splits of seed 0
    assert rows[DEEP] == ["75.0 ± 1.0", "74.0 ± 0.0"]
    assert rows["p = 60%"] == ["60.0 ± 1.0", "59.0 ± 0.0"]
    assert len(rows["p = 60%"][0].runs) == 3
    assert [row[0] for row in layers.rows] == [
        *(f"q, layer {n}" for n in range(4, 17)),
        "output",
        EQUAL,
    ]
    cells = {label: row[0] for label, *row in layers.rows}
    assert (cells["q, layer 4"], cells["q, layer 16"], cells["output"]) == ("53.0", "65.0", "66.0")
    assert cells[EQUAL] == "75.0"


def test_deep_networks_count_attending_layers_on_their_scale():
    _, layers = ladder_tables(graded(ladder_specs(datasets=["cora"], layers=[32])), {})
    assert layers.rows[0][0] == "q, layer 7"  # ⌈7/2⌉ = 4


def test_what_is_missing_or_diverged_is_told():
    labelled = ladder_specs(datasets=["cora", "cs"])
    found = graded(labelled)
    found["p = 50%"] = found["p = 50%"][:2]
    found["p = 60%"] = [r for r in found["p = 60%"] if r["dataset"] == "cs"]
    found["p = 70%"] = found["p = 70%"][3:]
    found[DEEP] = [graded_record(spec, missing_measure=True) for spec in labelled[DEEP]]
    scores, layers = ladder_tables(found, {"p = 60%": {("cora", 16)}})
    rows = {label: cells for label, *cells in scores.rows}
    assert rows["p = 50%"] == ["49.5 ± 0.7 (2/3)", "–"]
    assert rows["p = 60%"][0] == "diverged"
    assert rows["p = 70%"][0] == "–"
    assert [row[0] for row in layers.rows] == [EQUAL]
    del found[DEEP]
    (alone,) = ladder_tables(found, {})
    assert DEEP not in [row[0] for row in alone.rows]


def test_the_figure_has_a_panel_per_dataset():
    found = graded(ladder_specs(datasets=["cora", "cs", "photo", "physics"]))
    (figure,) = ladder_figures(found).values()
    panels = [axes for axes in figure.axes if axes.get_visible()]
    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles == [f"{name}, L = 16" for name in ("cora", "cs", "photo", "physics")]
    line, *others = panels[0].get_lines()
    assert list(line.get_xdata()) == pytest.approx([100 * p for p in RIGHT])
    assert list(line.get_ydata()) == pytest.approx([100 * p for p in RIGHT])
    levels = {line.get_label(): list(line.get_ydata()) for line in others}
    assert levels[DEEP] == pytest.approx([75.0, 75.0])
    assert levels[NO_ATTENTION] == pytest.approx([65.0, 65.0])
    (marks,) = [line for line in others if "own q" in str(line.get_label())]
    assert list(marks.get_xdata()) == pytest.approx([53 + k for k in range(13)])
    one = {label: runs for label, runs in found.items() if label in (DEEP, "p = 50%")}
    assert ladder_figures(one) == {}  # a point is no line


# --------------------------------------------------------------------------- the command


def reproduce(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["deepgat", "reproduce", "ladder", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    return stopped.value.code or 0, out, err


def test_tables_from_records(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    labelled = ladder_specs(datasets=["cora"])
    runs = [graded_record(spec) for specs in labelled.values() for spec in specs]
    arrays = {"format": FORMAT, "arrays": {"sha256": "", "bytes": 0}}
    write_records(tmp_path / "runs.jsonl", [sealed({**run, **arrays}) for run in runs[:-1]])
    grid = ("--datasets", "cora", "--records", "runs.jsonl")
    code, _, err = reproduce(monkeypatch, capsys, *grid)
    assert code == 0
    assert "1 of 24 runs are not in runs.jsonl" in err
    text = Path("reproduction/ladder.md").read_text()
    assert "| p = 90% | 90.0 ± 1.0 |" in text
    assert "| p = 100% | 99.5 ± 0.7 (2/3) |" in text
    assert f"| {EQUAL} | 75.0 |" in text
    assert {path.name for path in Path("reproduction").iterdir()} == {
        "ladder.md", "ladder-16.csv", "ladder-16-layers.csv", "ladder-16.png", "records.jsonl",
    }  # fmt: skip
    assert not Path("deepgat-runs").exists()  # nothing was run


def test_the_whole_ladder_on_a_small_graph(monkeypatch, capsys, tmp_path):
    """Trained for real, by this process: two rungs and both references."""
    from deepgat.lab.commands import run as run_command
    from deepgat.lab.experiments import Outcome
    from deepgat.lab.experiments.work import attempt, perform

    def here(specs, store, *rest, **options):
        for spec in specs:
            attempt(store, spec, "cpu", perform)
        return Outcome({spec.signature: store.get(spec.signature) for spec in specs})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command, "run_all", here)
    rows = "deep;deep, no class attention;p = 50%;p = 100%"
    grid = ("--quick", "--layers", 5, "--epochs", 4, "--systems", rows, "--device", "cpu")
    code, out, err = reproduce(monkeypatch, capsys, *grid)
    assert code == 0, err
    text = Path("reproduction/ladder.md").read_text()
    for row in ("| p = 50% | ", "| p = 100% | ", f"| {NO_ATTENTION} | ", "| q, layer 4 | ", EQUAL):
        assert row in text
    assert "not to be compared with the paper" in text
    lines = Path("reproduction/records.jsonl").read_text().splitlines()
    records = [parse_record(line) for line in lines]
    assert {r["settings"].get("right") for r in records} == {None, 0.5, 1.0}
    (deep,) = [r for r in records if r["measures"]]
    assert set(deep["measures"][MEASURE]) == {"0", "1", "2", "3", "4", "5"}
    assert reproduce(monkeypatch, capsys, *grid, "--records", "deepgat-runs")[1] == out
