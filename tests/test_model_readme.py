"""The model card: every figure from the saved records, every name harmless, nothing required."""

import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from markdown_it import MarkdownIt

import deepgat
from deepgat.analysis import METRICS
from deepgat.cli import main
from deepgat.data import NodeDataset
from deepgat.model import Model
from deepgat.model_folder import keep_graph, save_run
from deepgat.model_readme import text
from deepgat.training.auto import train_auto
from deepgat.training.ensembling import Member, joined
from deepgat.training.recipes import recipe
from deepgat.training.run import Run, train_once
from deepgat.training.search import Request
from tiny import tiny_dataset, tiny_labels

NASTY = (
    "a|b", "`code`", "two\nlines", "<script>alert(1)</script>", "[x](https://example.org)",
    "![i](https://example.org/i.png)", "**bold**", "back\\slash\\", "&lt;b&gt;", "$x^2$", "~~s~~",
    "---", "# head", "'quote\"", "https://example.org", "www.example.org", "a@example.org",
    "\x1b[31mred", "\u202eright to left", "{{ x }}", "- item", "1. item", ": colon", "",
    "x" * 5000,
)  # fmt: skip


def gcn(**training):
    return recipe("gcn", training={"epochs": 3, "device": "cpu", **training}, hidden_channels=4)


@pytest.fixture(scope="module")
def data() -> NodeDataset:
    return tiny_dataset()


@pytest.fixture(scope="module")
def run(data) -> Run:
    return train_once(data, gcn(), seed=4)


def front_matter(card: str) -> dict:
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("\n---\n")[0])


def tables(card: str) -> list[list[list[str]]]:
    """The text of the cells of every table, as a reader of Markdown sees them."""
    found: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(card.split("\n---\n", 1)[1]):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and token.level >= 4:
            found[-1][-1].append("".join(child.content for child in token.children or ()))
    return found


def test_every_score_is_the_one_in_the_record(tmp_path, run, data):
    folder = save_run(tmp_path / "model", run, data)
    card = (folder / "README.md").read_text()
    record = json.loads((folder / "metrics.json").read_text())
    scores = next(table for table in tables(card) if table[0][0] == "in %")
    assert scores[0] == ["in %", "training, 15 nodes", "validation, 15 nodes", "test, 30 nodes"]
    assert [row[0] for row in scores[1 : len(METRICS) + 1]] == list(METRICS)
    for name, *shown in scores[1:]:
        metric = name.removesuffix(", calibrated")
        values = record["calibrated" if metric != name else "metrics"][metric]
        expected = [values[part] for part in ("train", "val", "test")]
        assert shown == ["–" if v is None else f"{100 * v:.1f}" for v in expected]
    front = front_matter(card)
    assert front["library_name"] == "deepgat"
    assert front["tags"][-1] == "gcn"
    assert set(front["metrics"]) >= {"accuracy", "f1", "roc_auc"}
    (index,) = front["model-index"]
    by_split = {result["dataset"]["split"]: result for result in index["results"]}
    assert by_split.keys() == {"validation", "test"}
    for part, split in (("val", "validation"), ("test", "test")):
        told = {each["name"]: each["value"] for each in by_split[split]["metrics"]}
        for metric, value in told.items():
            assert value == pytest.approx(record["metrics"][metric][part], rel=1e-5)
    assert f"Seed 4. Epoch {record['best_epoch']} of 3 was kept" in card


def test_the_data_is_counted(tmp_path, run, data):
    card = (save_run(tmp_path / "model", run, data) / "README.md").read_text()
    facts = {row[0]: row[1] for row in tables(card)[0][1:]}
    assert facts["nodes"] == "60"
    assert facts["edges, each direction counted"] == f"{data.graph.num_edges}"
    assert facts["features per node"] == "6"
    assert facts["split"] == "random:0:5/5"
    rows = tables(card)[1][1:]
    for c, row in enumerate(rows):
        masks = (data.graph[f"{part}_mask"] for part in ("train", "val", "test"))
        assert row == [str(c), *(str(int((data.graph.y[mask] == c).sum())) for mask in masks)]


def test_what_auto_tried(tmp_path, data):
    found = train_auto(data, Request("fast", training={"epochs": 3, "device": "cpu"}))
    card = (save_run(tmp_path / "model", found, data) / "README.md").read_text()
    rows = next(table for table in tables(card) if table[0][0] == "recipe")[1:]
    assert found.search is not None
    assert [row[0] for row in rows] == [row["name"] for row in found.search.leaderboard]
    assert text(found.search.reason) in card


def test_without_test_nodes_there_is_no_test_score(tmp_path, run):
    data = tiny_dataset()
    data.graph.test_mask[:] = False
    run = train_once(data, gcn())
    card = (save_run(tmp_path / "model", run, data) / "README.md").read_text()
    assert "there is no test score" in card
    (index,) = front_matter(card)["model-index"]
    assert [each["dataset"]["split"] for each in index["results"]] == ["validation"]
    scores = next(table for table in tables(card) if table[0][0] == "in %")
    assert len(scores[0]) == 3


def test_several_graphs_of_independent_labels(tmp_path):
    data = tiny_labels()
    card = (save_run(tmp_path / "model", train_once(data, gcn()), data) / "README.md").read_text()
    assert "independent labels" in card
    assert "There are no scores for prediction sets." in card
    facts = {row[0]: row[1] for row in tables(card)[0][1:]}
    assert facts["graphs"] == "4"
    rows = tables(card)[1][1:]
    test = data.graphs[-1]
    assert [row[3] for row in rows] == [str(int(n)) for n in test.y[test.test_mask].sum(0)]


def test_an_ensemble(tmp_path, run, data):
    other = run.card.build()
    members = [Member(run.card, run.model, 0.75, 1.0), Member(run.card, other, 0.25, 1.0)]
    card, network = joined(run.card, members)
    both = replace(run, card=card, model=network)
    shown = tables((save_run(tmp_path / "model", both, data) / "README.md").read_text())
    rows = next(table for table in shown if table[0] == ["system", "layers", "weight"])[1:]
    assert rows == [["gcn", "2", "0.75"], ["gcn", "2", "0.25"]]


@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_names_of_a_stranger_are_shown_as_they_are(tmp_path, run, data, name):
    nasty = replace(
        data, title=f"/home/ann/{name}", name="graph", class_names=(name, "b", "c"),
    )  # fmt: skip
    plan = [{"name": name, "kind": "number"}]
    card = replace(run.card, class_names=[name, "b", "c"], feature_plan=plan)
    written = save_run(tmp_path / "model", replace(run, card=card), nasty) / "README.md"
    whole = written.read_text()
    front, body = whole.split("\n---\n", 1)
    assert yaml.safe_load(front)["library_name"] == "deepgat"
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(body)
    inline = [child for token in tokens for child in token.children or ()]
    kinds = {token.type for token in tokens} | {child.type for child in inline}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "strong_open", "s_open"}
    code = {child.content for child in inline if child.type == "code_inline"}
    assert code <= {"pip install deepgat"}
    for table in tables(whole):
        assert len({len(row) for row in table}) == 1
    shown = tables(whole)[1][1][0]
    if name.isprintable() and len(name) < 80:
        assert shown == name.strip()
    assert len(shown) <= 80
    assert all(char.isprintable() or char == "\n" for char in whole)
    assert "/home/ann" not in body


def test_loading_ignores_the_card(tmp_path, run, data):
    folder = save_run(tmp_path / "model", run, data)
    (folder / "README.md").write_bytes(b"\xff not even text")
    assert torch.equal(
        Model.load(folder).predict(data).labels, Model.of(run, data).predict().labels
    )
    (folder / "README.md").unlink()
    assert Model.load(folder).card == run.card
    save_run(folder, run, data)  # and it is replaced with the rest
    assert (folder / "README.md").read_text().startswith("---\n")


def test_a_graph_that_is_kept_later_is_told(tmp_path, run, data):
    first = save_run(tmp_path / "first", run, data)
    keep_graph(first, data)
    at_once = save_run(tmp_path / "at-once", run, data, keep_graph=True)
    assert (first / "README.md").read_text() == (at_once / "README.md").read_text()
    assert "deepgat serve ." in (first / "README.md").read_text()


def test_a_card_that_somebody_wrote_on_stays(tmp_path, run, data):
    folder = save_run(tmp_path / "model", run, data)
    with (folder / "README.md").open("a") as file:
        file.write("\nAsk Ann before you use it.\n")
    before = (folder / "README.md").read_text()
    keep_graph(folder, data)
    assert (folder / "README.md").read_text() == before


@pytest.mark.parametrize("kept", [False, True], ids=["no graph", "graph kept"])
@pytest.mark.parametrize("graph", ["csbm", "my-graph"])
def test_the_lines_on_the_card_work(graph, kept, my_graph, monkeypatch, capsys):
    model = deepgat.fit(deepgat.load_graph(graph if graph == "csbm" else str(my_graph)), "gcn",
                        num_layers=2, training={"epochs": 2, "device": "cpu"})  # fmt: skip
    folder = model.save(my_graph.parent / "trained", keep_graph=kept)
    moved = my_graph.parent / "elsewhere" / "model"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    monkeypatch.chdir(moved)
    card = (moved / "README.md").read_text().replace("GRAPH", shlex.quote(str(my_graph)))
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "tensor(" in capsys.readouterr().out
    (lines,) = re.findall(r"```bash\n(.*?)```", card, re.DOTALL)
    commands = [shlex.split(line)[1:] for line in lines.splitlines()]
    assert (["serve", "."] in commands) == kept
    for words in commands:
        if words[0] == "serve":
            continue  # it would not end; tests/serving starts it
        monkeypatch.setattr(sys, "argv", ["deepgat", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code, capsys.readouterr().err
    assert Path("../labels.csv").read_text().startswith("node,label,confidence\n")
