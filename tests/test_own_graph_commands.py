"""The commands on a graph of one's own, as docs/own-graph.md shows them."""

import csv
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from deepgat.cli import main
from deepgat.model import Model
from deepgat.model_folder import harmless

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(monkeypatch, capsys):
    def command(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["deepgat", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        shown = capsys.readouterr()
        assert not exit_.value.code, shown.err
        return shown.out, shown.err

    return command


def test_train_says_what_it_did_and_evaluate_finds_the_data_again(my_graph, run, monkeypatch):
    _, said = run("train", "my-graph/", "--out", "model/", "--epochs", "5", "--device", "cpu")
    assert "note: made undirected" in said
    assert "note: my-graph comes without a split" in said
    with (my_graph.parent / "model" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["node"] == "member-000"
    assert {row["prediction"] for row in rows} <= {"chess", "rowing", "theatre"}
    assert all(not row["part"] for row in rows if not row["label"])
    model = my_graph.parent / "model"
    monkeypatch.chdir("/")
    out, _ = run("evaluate", str(model), "--json")
    metrics = json.loads((model / "metrics.json").read_text())
    assert json.loads(out)["micro_f1"] == pytest.approx(metrics["micro_f1"])


def test_the_way_of_reading_is_kept_with_the_model(my_graph, run):
    options = ("--read", "drop=town", "--read", "structure=degree", "--split", "random:1:5/5")
    run("train", "my-graph", *options, "--out", "model", "--epochs", "2", "--device", "cpu")
    card = json.loads((my_graph.parent / "model" / "model.json").read_text())
    assert card["reading"] == {"drop": "town", "structure": "degree"}
    assert card["num_features"] == 4
    run("evaluate", "model")
    run("train", "my-graph", "--model", "label-propagation")


def test_the_guides_commands_work(my_graph, run):
    guide = (ROOT / "docs" / "own-graph.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", guide, re.DOTALL)
    commands = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    tried = 0
    for command in commands:
        words = shlex.split(command)
        if words[0] == "deepgat" and words[1] in ("check", "train", "evaluate"):
            limits = ["--epochs", "2", "--device", "cpu"] if words[1] == "train" else []
            limits += ["--quality", "fast"] if limits and "--model" not in words else []
            run(*words[1:], *limits)
            tried += 1
    assert tried >= 5


def test_cells_that_a_spreadsheet_would_run():
    assert harmless("=1+2") == "'=1+2"
    assert harmless("@sum") == "'@sum"
    assert harmless("-cmd") == "'-cmd"
    assert harmless("+cmd") == "'+cmd"
    assert harmless("-5") == "-5"
    assert harmless("plain") == "plain"


def test_a_changed_graph_is_not_scored_by_a_split_drawn_anew(my_graph, run, capsys, monkeypatch):
    run("train", "my-graph", "--out", "model", "--model", "mlp", "--epochs", "2")
    table = my_graph / "nodes.csv"
    before = table.read_text()
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    next(row for row in rows if not row["label"])["label"] = "chess"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setattr(sys, "argv", ["deepgat", "evaluate", "model"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert "has changed since the model was trained, so its split" in capsys.readouterr().err
    _, said = run("predict", "model", "-o", "found.csv")
    assert "test nodes not scored, because the graph has changed since training" in said
    graph = Model.load("model").training_data.graph
    assert not (graph.val_mask | graph.test_mask).any()  # for whatever else scores them
    table.write_text(before)
    run("evaluate", "model")
    _, said = run("predict", "model", "-o", "found.csv")
    assert "of the test nodes right" in said


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["3", "x"], "line 3 has 'x', correct or empty it"),
        (["4,5", "2"], "line 2 has '4,5', write decimals with a point"),
        (["a", "b"], ""),
    ],
)
def test_check_tells_of_numbers_that_are_none(tmp_path, run, cells, told):
    """Ten cells of which all, nine or none are numbers."""
    more = ["7"] * 8 if told else ["c"] * 8
    rows = [f'{i},{"ab"[i % 2]},"{cell}"' for i, cell in enumerate([*cells, *more])]
    (tmp_path / "nodes.csv").write_text("id,label,size\n" + "\n".join(rows) + "\n")
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n1,2\n")
    out, said = run("check", str(tmp_path))
    shown = " ".join((out + said).split())
    assert ("though nearly all its cells are numbers" in shown) == bool(told)
    assert told in shown


def test_check_tells_of_labels_that_say_missing(tmp_path, run):
    rows = [f"{i},{('a', 'b', 'NA')[i % 3]},{i}" for i in range(30)]
    (tmp_path / "nodes.csv").write_text("id,label,size\n" + "\n".join(rows) + "\n")
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n1,2\n")
    out, said = run("check", str(tmp_path))
    assert "10 nodes are labelled 'NA', which is a class like any other" in " ".join(
        (out + said).split()
    )
