"""deepgat predict, inspect and tune."""

import csv
import importlib
import io
import json
import re
import sys
from dataclasses import replace

import pytest
from matplotlib.image import imread

import deepgat
from deepgat import Model, load_graph
from deepgat.training.config_file import read_config
from test_cli import assert_sentence, run  # noqa: F401 - a fixture

TUNING = importlib.import_module("deepgat.training.tuning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = deepgat.fit("csbm", num_layers=3, training={"epochs": 8, "device": "cpu"})
    return model.save(tmp_path_factory.mktemp("predict") / "model")


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_of_the_command_are_those_of_the_model(run, folder, tmp_path):  # noqa: F811
    out = tmp_path / "labels.csv"
    result = run("predict", folder, "csbm", "-o", out)
    assert result.code == 0
    assert result.out == ""
    found = Model.load(folder).predict(load_graph("csbm"))
    written = rows(out.read_text())
    assert [int(row["label"]) for row in written] == found.labels.tolist()
    assert [row["node"] for row in written[:3]] == ["0", "1", "2"]
    assert float(written[5]["confidence"]) == pytest.approx(float(found.confidence[5]), rel=1e-4)
    assert "% of the test nodes right" in result.err
    assert list(tmp_path.iterdir()) == [out]
    assert rows(run("predict", folder, "--quiet").out) == written


def write_clubs(folder, clubs, count=30):
    """A ring of members, each of the club of its number; every third has not said which."""
    folder.mkdir()
    lines = [
        f"m{k},{'' if k % 3 == 0 else clubs[k % len(clubs)]},{k % len(clubs)}" for k in range(count)
    ]
    (folder / "nodes.csv").write_text("\n".join(["id,label,mark", *lines]))
    ring = [f"m{k},m{(k + len(clubs)) % count}" for k in range(count)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *ring]))
    return folder


def test_another_graph_of_yours(run, tmp_path):  # noqa: F811
    """Features and classes are matched by name, and a graph of other features is refused."""
    first = write_clubs(tmp_path / "first", ("chess", "rowing"))
    model = tmp_path / "model"
    small = ("--layers", 2, "--hidden", 8, "--epochs", 10, "--quiet")
    assert run("train", first, "--out", model, *small).code == 0
    second = write_clubs(tmp_path / "second", ("chess", "archery", "rowing"), 60)
    result = run("predict", model, second, "--quiet")
    found = rows(result.out)
    assert [row["node"] for row in found] == [f"m{k}" for k in range(60)]
    assert {row["label"] for row in found} <= {"chess", "rowing"}
    text = (second / "nodes.csv").read_text()
    (second / "nodes.csv").write_text(text.replace("mark", "sign", 1))
    result = run("predict", model, second)
    assert result.code == 2
    assert "nodes.csv has no column 'mark', which the model was trained with" in result.err


def test_early_exit_tells_the_layers_used(run, folder, tmp_path):  # noqa: F811
    figure = tmp_path / "reliability.png"
    result = run("predict", folder, "--early-exit", "--tolerance", 0.3, "--reliability", figure)
    layers = [int(row["layer"]) for row in rows(result.out)]
    assert min(layers) < 3
    assert re.search(r"of 3 layers used on average, [123] computed", result.err)
    assert "expected calibration error: as trained " in result.err
    assert imread(figure).std() > 0.01


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("predict nowhere", "is not a model folder"),
        ("predict MODEL digits", "64 features per node but the model was trained with 32"),
        ("predict MODEL nonsense", "unknown dataset 'nonsense'"),
        ("predict MODEL -o .", "is a folder"),
        ("predict MODEL --early-exit --tolerance 3", "tolerance is 3"),
        ("predict MODEL -o /dev/null/x.csv", "/dev/null is not a writable folder"),
        ("predict MODEL --reliability x.doc", "x.doc: expected the name of a picture"),
        ("inspect MODEL 1 --out x", "x: expected the name of a picture"),
        ("inspect MODEL 2000", "no node '2000'"),
        ("inspect MODEL x", "numbered from 0 to 1999"),
        ("inspect MODEL 1 --top 0", "--top 0: expected 1 or more"),
        ("tune csbm --depths x", "--depths 'x'"),
        ("tune csbm --depths 2-4 --layers 3", "say the same thing twice"),
    ],
)
def test_mistakes_are_one_sentence(run, folder, arguments, sentence, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    arguments = [str(folder) if part == "MODEL" else part for part in arguments.split()]
    assert_sentence(run(*arguments), sentence)
    assert list(tmp_path.iterdir()) == []


def test_inspect_prints_and_draws(run, folder, tmp_path):  # noqa: F811
    figure = tmp_path / "node.png"
    result = run("inspect", folder, 42, "--top", 3, "--out", figure)
    assert "Node 42, its class is " in result.out
    assert "42 (itself)" in result.out
    assert "more neighbours are not shown" in result.out
    assert "Attention (%) per layer" in result.out
    assert imread(figure).std() > 0.01
    told = json.loads(run("inspect", folder, 42, "--json").out)
    found = Model.load(folder).explain(42)
    assert told["layers"]["3"]["class"] == str(found.classes[3])
    assert told["neighbours"][0]["node"] == "42"
    assert told["neighbours"][0]["attention"] == pytest.approx(found.attention[:, 0].tolist())


def test_inspect_does_not_call_weights_of_the_graph_attention(run, tmp_path):  # noqa: F811
    model = tmp_path / "model"
    run("train", "csbm", "--model", "gcn", "--epochs", 2, "--device", "cpu", "--out", model)
    assert "Weights of the graph (%) per layer" in run("inspect", model, 42).out


def test_without_optuna_the_command_says_how_to_get_it(run, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert_sentence(run("tune", "csbm"), "pip install 'deepgat[tune]'")
    assert list(tmp_path.iterdir()) == []


TUNE = ("tune", "csbm", "--epochs", "4", "--device", "cpu", "--set", "theta=0.4")


@pytest.mark.slow
def test_a_search_goes_on_where_it_stopped(run, tmp_path, monkeypatch):  # noqa: F811
    pytest.importorskip("optuna")
    journal, best = tmp_path / "trials", tmp_path / "best.toml"
    command = (*TUNE, "--storage", journal, "--json", "--out", best)
    seen = []
    real = TUNING.train

    def train(model, dataset, settings, watch):
        seen.append(settings)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(model, dataset, settings, watch)

    monkeypatch.setattr(TUNING, "train", train)
    stopped = run(*command, "--trials", 3)
    assert stopped.code == 130
    assert "the same command goes on" in stopped.err
    assert not best.exists()
    found = json.loads(run(*command, "--trials", 4).out)
    assert len(found["trials"]) == 4  # the interrupted one counts as tried
    assert found["trials"][0]["settings"]["hidden_channels"] == 64  # begins with the recipe's own
    scores = [trial["val_f1"] for trial in found["trials"] if trial["val_f1"] is not None]
    assert found["val_f1"] == max(scores)
    assert "num_layers" not in found["settings"]
    made = read_config(best).recipe()
    assert made.settings.dropout == found["settings"]["dropout"]
    assert made.training.lr == found["settings"]["lr"]
    assert_sentence(run(*TUNE, "--storage", journal, "--layers", 5), "holds a search with another")


def test_the_file_of_a_search_leaves_nothing_to_a_recipe(tmp_path):
    """Values at their plain defaults are named too where the recipe has others."""
    training = {"self_training": 0.0, "ema": 0.0, "decay_nodes": 0, "patience": 100}
    plan = deepgat.recipe("deep", num_layers=3, training=training)
    found = TUNING.Found(plan, 0.9, 1, [], {})
    path = tmp_path / "best.toml"
    path.write_text(TUNING.as_config(found, load_graph("csbm")))
    assert read_config(path).recipe() == plan


def test_a_search_never_reads_a_test_label(tmp_path):
    pytest.importorskip("optuna")
    data = load_graph("csbm")
    changed = data.graph.clone()
    changed.y[changed.test_mask] = -1
    plan = deepgat.recipe(training={"epochs": 4, "device": "cpu"})
    what = TUNING.SearchSpace(plan, depth=(1, 3))
    found = [
        TUNING.tune_settings(replace(data, graphs=(graph,)), what, tmp_path / name, 2)
        for graph, name in ((data.graph, "a"), (changed, "b"))
    ]
    assert found[0].trials == found[1].trials
    assert 1 <= found[0].recipe.settings.num_layers <= 3


def test_a_file_that_is_no_journal_is_refused(run, tmp_path):  # noqa: F811
    pytest.importorskip("optuna")
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    assert_sentence(run(*TUNE, "--storage", path), "is not a journal of trials")
    assert path.read_text() == "dear diary\n"
