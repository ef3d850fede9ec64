"""Searches of ``auto`` as runs of the laboratory: their specs, records, tables and command."""

import functools
import json
import sys
from dataclasses import replace

import pytest
import torch

from deepgat.cli import main
from deepgat.errors import UserError
from deepgat.lab.commands import run as run_command
from deepgat.lab.experiments import AnalysisSpec, DataSpec, RunSpec, Store, read_specs, run_all
from deepgat.lab.experiments.spec import specs_of
from deepgat.lab.experiments.store_entry import FORMAT, parse_record, sealed
from deepgat.lab.experiments.work import Made, perform
from deepgat.lab.paper.searches import (
    AUTO,
    BEST,
    FEW,
    MANY,
    SEARCHES,
    SINGLE,
    search_specs,
)
from deepgat.lab.report.families import families, kind_of_split
from deepgat.lab.report.searches import search_tables
from deepgat.training import auto as auto_module
from deepgat.training.auto import train_auto
from deepgat.training.config_file import parse_config
from deepgat.training.evaluate import evaluate
from deepgat.training.judge import Judge
from deepgat.training.search import QUALITIES, Request, SearchSettings
from deepgat.training.settings import TrainSettings

from jobs import record_of

SHORT = TrainSettings(epochs=2, seed=3)


def search(quality="fast", layers=0, training=SHORT, dataset="csbm", split="") -> RunSpec:
    return RunSpec(DataSpec(dataset, split), AUTO, SearchSettings(quality, layers), training)


# --------------------------------------------------------------------------- specs


def test_a_search_as_toml_and_back(tmp_path):
    asked = search("best", 24, replace(SHORT, monitor="roc_auc"))
    (again,) = specs_of(parse_config(asked.to_toml()))
    assert again == asked == RunSpec.from_dict(asked.to_dict())
    assert again.signature == asked.signature
    assert asked.to_dict()["training"] == {"seed": 3, "epochs": 2, "monitor": "roc_auc"}
    path = tmp_path / "search.toml"
    path.write_text('system = "auto"\n[data]\ndataset = "csbm"\n[sweep]\ntraining.seed = [0, 1]\n')
    assert [(s.seed, s.settings) for s in read_specs(path)] == [
        (0, SearchSettings()),
        (1, SearchSettings()),
    ]


def test_what_a_search_is_determined_by():
    others = [
        search("good"),
        search(layers=24),
        search(training=replace(SHORT, seed=4)),
        search(training=replace(SHORT, epochs=3)),
        search(dataset="digits"),
    ]
    assert len({spec.signature for spec in (search(), *others)}) == 1 + len(others)
    elsewhere = search(training=replace(SHORT, device="cpu"))
    assert elsewhere.signature == search().signature


def test_a_search_is_asked_for_as_by_a_user():
    asked = search("best", 24).request("cpu")
    assert asked == Request("best", None, {"epochs": 2, "device": "cpu"}, 24, False)
    assert search().request("cpu").num_layers is None
    saving = replace(search(), settings=SearchSettings(frugal=True))
    assert saving.request("cuda").frugal_on("cuda")
    assert saving.signature != search("good").signature


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"analysis": AnalysisSpec(("layer-scores",))}, "analysis is of one network"),
        ({"training": TrainSettings(lr=0.3)}, "lr is a setting of one recipe"),
    ],
)
def test_searches_that_make_no_sense(change, told):
    with pytest.raises(UserError, match=told):
        replace(search(), **change)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('preset = "paper"\n', "preset is of one system"),
        ("[settings]\nalpha = 0.3\n", "unknown setting 'alpha'"),
        ('[settings]\nquality = "god"\n', "unknown quality 'god'"),
        ("[settings]\nnum_layers = -1\n", "num_layers is -1"),
    ],
)
def test_files_of_searches_that_make_no_sense(lines, told):
    text = f'system = "auto"\n{lines}[data]\ndataset = "csbm"\n'
    with pytest.raises(UserError, match=told):
        specs_of(parse_config(text))


# --------------------------------------------------------------------------- the grid


def test_single_systems_are_run_where_auto_was_not_chosen():
    labelled = search_specs(datasets=["cora", "photo", "minesweeper", "actor"])
    assert set(labelled) == {AUTO, *SINGLE}
    assert {spec.data.dataset for name in SINGLE for spec in labelled[name]} == {"actor"}
    runs = [(s.data.dataset, s.data.split, s.seed) for s in labelled[AUTO]]
    assert [run[1:] for run in runs if run[0] == "cora"] == [("public", k) for k in range(10)]
    few = [(f"random:{k}:20/30", k) for k in range(5)]
    many = [(f"fractions:0.6/0.2:{k}", k) for k in range(5)]
    assert [run[1:] for run in runs if run[0] == "photo"] == few + many
    assert {run[1] for run in runs if run[0] == "actor"} == {f"stored:{k}" for k in range(5)}
    assert {spec.settings for spec in labelled[AUTO]} == {SearchSettings()}


def test_the_grid_takes_rows_seeds_splits_and_depths():
    labelled = search_specs(
        datasets=["minesweeper", "computers"],
        systems=["AUTO, best", " g2"],
        seeds=[0, 7],
        splits=2,
        layers=[16, 64],
        epochs=9,
    )
    assert set(labelled) == {BEST, "g2"}
    assert {spec.settings for spec in labelled[BEST]} == {
        SearchSettings("best", 16),
        SearchSettings("best", 64),
    }
    mines = [s for s in labelled["g2"] if s.data.dataset == "minesweeper"]
    assert [(s.data.split, s.seed) for s in mines] == [
        (f"stored:{k}", seed) for seed in (0, 7) for k in range(2)
    ]
    assert {s.training.monitor for s in mines} == {"roc_auc"}
    assert {s.training.epochs for specs in labelled.values() for s in specs} == {9}
    others = [s for s in labelled["g2"] if s.data.dataset == "computers"]
    assert {kind_of_split(s.data.split) for s in others} == {"random:20/30", "fractions:0.6/0.2"}
    with pytest.raises(UserError, match="unknown system 'gnc': did you mean 'gcn'"):
        search_specs(datasets=["cora"], systems=["gnc"])


def test_graphs_of_your_own_have_few_and_many_labels(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n1,2\n")
    (tmp_path / "nodes.csv").write_text("id,x,label\n0,1,a\n1,2,b\n2,3,a\n")
    labelled = search_specs(datasets=[str(tmp_path)], systems=[AUTO], splits=1)
    assert [spec.data.split for spec in labelled[AUTO]] == [FEW.format(0), MANY.format(0)]


def test_the_rows_are_the_qualities():
    assert set(SEARCHES.values()) == set(QUALITIES)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('monitor = "val-loss"', "training.monitor is 'val-loss', which stands for"),
        ("lr = 0.01", "lr is a setting of one recipe"),
    ],
)
def test_what_a_file_of_a_search_cannot_say(lines, told):
    """A setting that equals the default would be lost."""
    text = f'system = "auto"\n[data]\ndataset = "csbm"\n[training]\n{lines}\n'
    with pytest.raises(UserError, match=told):
        specs_of(parse_config(text))


# --------------------------------------------------------------------------- records


@pytest.mark.parametrize("mean", [False, True])
def test_the_record_of_a_search(mean, monkeypatch):
    monkeypatch.setattr(auto_module, "LONGER", 2)
    monkeypatch.setattr(Judge, "level", lambda _, trial, best: mean or trial is best)
    monkeypatch.setattr(Judge, "worse", lambda *_: False)
    asked = search("good", 2, replace(SHORT, epochs=3), "csbm", "fractions:0.6/0.2:0")
    made = perform(asked, "cpu")
    whole = {**made.record, "format": FORMAT, "arrays": {"sha256": "", "bytes": 0}}
    record = parse_record(json.dumps(sealed(whole)))
    data = asked.data.load()
    run = train_auto(data, asked.request("cpu"), asked.seed)
    assert record["micro_f1"] == run.evaluation.micro_f1
    assert record["system"] == AUTO
    assert record["settings"] == {"quality": "good", "num_layers": 2, "frugal": False}
    assert record["training"] == {"seed": 3, "epochs": 3}
    told = [{k: v for k, v in row.items() if k != "seconds"} for row in run.search.leaderboard]
    kept = record["auto"]["leaderboard"]
    assert [{k: v for k, v in row.items() if k != "seconds"} for row in kept] == told
    assert (run.card.system == "ensemble") == mean
    chosen = run.model.members[0] if mean else run.model
    assert record["alone"]["micro_f1"] == evaluate(chosen, data, "cpu").micro_f1
    assert torch.equal(
        made.arrays["curve.val_f1"], torch.tensor(run.record(True)["curve"]["val_f1"])
    )
    with pytest.warns(UserWarning, match="searches have a table of their own"):
        assert families([record]) == {}


# --------------------------------------------------------------------------- tables


def searched(spec: RunSpec, score: float, names=("deep",), alone: float | None = None) -> dict:
    """A record of a search with a test score, whose leaderboard begins with these names."""
    scores = {"val": 0.5, "test": score}
    mean = len(names) > 1 and names[0] == "ensemble"
    outcome = f"{1 / (len(names) - 1):.0%} of the ensemble" if mean else "chosen"
    rows = [{"name": name, "system": "x", "val": 0.5, "outcome": outcome} for name in names]
    own = {**scores, "test": score if alone is None else alone}
    auto = {"leaderboard": rows}
    return record_of(spec, micro_f1=scores, auto=auto, alone={"micro_f1": own, "metrics": {}})


def test_the_tables_of_searches():
    grid = search_specs(datasets=["actor"], systems=[AUTO, BEST, "gcn", "mlp", "g2"], splits=2)
    good, best = grid[AUTO], grid[BEST]
    labelled = {
        AUTO: [searched(good[0], 0.80), searched(good[1], 0.90, ("ensemble", "wide", "gcn"))],
        BEST: [searched(spec, 0.88, ("ensemble", "deep"), alone=0.82) for spec in best],
        "gcn": [record_of(spec, micro_f1={"val": 0.9, "test": 0.7}) for spec in grid["gcn"]],
        "mlp": [record_of(spec, micro_f1={"val": 0.1, "test": 0.75}) for spec in grid["mlp"]],
        "g2": [record_of(grid["g2"][0], micro_f1={"val": 0.1, "test": 0.99})],  # one of two splits
    }
    table, single = search_tables(labelled)
    assert table.columns == [
        *("graph", "split", "runs", "auto", "auto, best", "chosen alone"),
        *("chosen", "best single system", "difference"),
    ]
    assert table.rows == [
        [
            *("actor", "stored", "2", "85.0 ± 7.1", "88.0 ± 0.0", "82.0 ± 0.0"),
            *("deep 1, wide 1 (1 mean)", "mlp 75.0", "+10.0"),
        ]
    ]
    assert single.rows == [["gcn", "70.0 ± 0.0"], ["mlp", "75.0 ± 0.0"], ["g2", "99.0"]]
    assert table.rows[0][3].runs == tuple(spec.signature for spec in good)


def test_depths_of_deep_have_rows_of_their_own():
    grid = search_specs(datasets=["pubmed"], systems=[AUTO], seeds=[0, 1], layers=[16, 64])
    labelled = {AUTO: [searched(spec, spec.layers / 100) for spec in grid[AUTO]]}
    (table,) = search_tables(labelled)
    assert table.columns == ["graph", "split", "L of deep", "runs", "auto", "chosen"]
    assert [row[2:5] for row in table.rows] == [
        ["16", "2", "16.0 ± 0.0"],
        ["64", "2", "64.0 ± 0.0"],
    ]


def test_graphs_published_in_another_metric_are_scored_by_it():
    grid = search_specs(datasets=["minesweeper"], systems=[AUTO, "gcn"], splits=1)
    found = {"roc_auc": {"val": 0.5, "test": 0.97}}
    ours = searched(grid[AUTO][0], 0.8)
    labelled = {
        AUTO: [{**ours, "metrics": found, "alone": {**ours["alone"], "metrics": found}}],
        "gcn": [record_of(grid["gcn"][0], metrics={"roc_auc": {"val": 0.1, "test": 0.7}})],
    }
    table, _ = search_tables(labelled)
    assert table.rows[0][3] == "97.0"
    assert table.rows[0][-2:] == ["gcn 70.0", "+27.0"]


@pytest.mark.parametrize(
    ("split", "kind"),
    [
        ("public", "public"),
        ("stored:3", "stored"),
        ("random:3:20/30", "random:20/30"),
        ("fractions:0.6/0.2:3", "fractions:0.6/0.2"),
    ],
)
def test_kinds_of_splits(split, kind):
    assert kind_of_split(split) == kind


# --------------------------------------------------------------------------- the command


def job(wanted: RunSpec, device: str) -> Made:
    record = searched(wanted, 0.8) if wanted.system == AUTO else record_of(wanted)
    return Made(record, {"curve.loss": torch.zeros(1)})


def test_the_command_runs_what_is_missing_and_writes_tables(monkeypatch, capsys, tmp_path):
    from deepgat.lab.experiments import processes

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "START_METHOD", "fork")
    monkeypatch.setattr(run_command, "run_all", functools.partial(run_all, perform=job))
    arguments = [
        "reproduce",
        "auto",
        "--datasets",
        "csbm",
        "--systems",
        "auto;gcn",
        "--splits",
        "2",
    ]

    def call(*more: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["deepgat", *arguments, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out + err

    code, told = call()
    assert code == 0
    assert "csbm" in told
    assert "80.0" in told
    csv = (tmp_path / "reproduction" / "auto.csv").read_text().splitlines()
    assert csv[0] == "graph,split,runs,auto,chosen,best single system,difference"
    done = Store(tmp_path / "deepgat-runs").signatures()
    assert len(done) > 0
    files = (tmp_path / "deepgat-runs").rglob("*.json")
    changed = {path: path.stat().st_mtime_ns for path in files}
    assert call()[0] == 0
    assert {path: path.stat().st_mtime_ns for path in changed} == changed  # nothing runs again
    code, told = call("--records", "deepgat-runs", "--device", "cpu")
    assert code == 0
    assert "are not in" not in told
    code, again = call("--records", "reproduction/records.jsonl")
    assert code == 0
    assert "80.0" in again


def test_a_real_search_by_the_command_for_files(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.toml").write_text(search("fast", 2).to_toml())
    monkeypatch.setattr(sys, "argv", ["deepgat", "train", "--config", "search.toml", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == 0
    assert '"quality": "fast"' in capsys.readouterr().out
