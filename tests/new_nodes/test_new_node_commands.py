"""deepgat train --keep-graph, deepgat predict --new and --nodes."""

import csv
import io
import shutil

import pytest

from deepgat import Model
from test_cli import assert_sentence, run  # noqa: F401 - a fixture

SMALL = ("--layers", 3, "--hidden", 8, "--epochs", 8, "--quiet")
NEW = "id,age,visits,town\nzoe,31,9,Ashford\nyan,44,5,Atlantis\n"
EDGES = "source,target,weight\nzoe,member-004,2\nmember-007,yan,1\nyan,zoe,3\nzoe,yan,3\n"


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def here(my_graph, run):  # noqa: F811
    """A folder with a model that keeps its graph, and tables of new nodes."""
    assert run("train", my_graph, "--out", "model", "--keep-graph", *SMALL).code == 0
    folder = my_graph.parent
    (folder / "new.csv").write_text(NEW)
    (folder / "new-edges.csv").write_text(EDGES)
    return folder


def grow(folder):
    """The training graph's files with the new nodes in them."""
    whole = folder / "whole"
    whole.mkdir()
    nodes = (folder / "my-graph" / "nodes.csv").read_text()
    more = [f"{i},,{rest}" for i, rest in (line.split(",", 1) for line in NEW.splitlines()[1:])]
    (whole / "nodes.csv").write_text("\n".join([*nodes.splitlines(), *more]))
    edges = (folder / "my-graph" / "edges.csv").read_text()
    (whole / "edges.csv").write_text(edges + EDGES.split("\n", 1)[1])
    return whole


def test_new_nodes_without_the_old_graph(run, here):  # noqa: F811
    """What the command predicts for the whole new graph, from the model's folder alone."""
    whole = grow(here)
    truth = rows(run("predict", "model", whole, "--quiet").out)[-2:]
    shutil.rmtree(here / "my-graph")
    result = run("predict", "model", "--new", "new.csv", "--new-edges", "new-edges.csv")
    assert result.code == 0
    found = rows(result.out)
    assert [row["node"] for row in found] == ["zoe", "yan"]
    assert [row["label"] for row in found] == [row["label"] for row in truth]
    for one, other in zip(found, truth, strict=True):
        assert float(one["confidence"]) == pytest.approx(float(other["confidence"]), abs=1e-6)
    assert "2 new nodes" in result.err
    assert "'Atlantis'" in result.err  # a note, as for a graph's own table
    written = run("predict", "model", "--new", "new.csv", "-o", "x.csv", "--hops", 1)
    assert "every new node is predicted from its features alone" in written.err
    assert "cut off after 1 hop, written to x.csv" in written.err
    assert len(rows((here / "x.csv").read_text())) == 2


def test_chosen_nodes(run, here):  # noqa: F811
    every = {row["node"]: row for row in rows(run("predict", "model", "--quiet").out)}
    shutil.rmtree(here / "my-graph")
    found = rows(run("predict", "model", "--nodes", "member-010, member-002").out)
    assert [row["node"] for row in found] == ["member-010", "member-002"]
    for row in found:
        assert row["label"] == every[row["node"]]["label"]
        assert float(row["confidence"]) == pytest.approx(
            float(every[row["node"]]["confidence"]), abs=1e-6
        )


def test_commands_use_the_graph_in_the_folder(run, here):  # noqa: F811
    """What every command says is the same once the graph's files are gone."""
    commands = {
        "predict": ("predict", "model", "--quiet"),
        "early exit": ("predict", "model", "--early-exit", "--tolerance", 0.5, "--quiet"),
        "evaluate": ("evaluate", "model", "--json"),
        "inspect": ("inspect", "model", "member-004", "--json"),
    }
    before = {name: run(*command) for name, command in commands.items()}
    shutil.rmtree(here / "my-graph")
    for name, command in commands.items():
        after = run(*command)
        assert after.code == 0, after.err
        assert after.out == before[name].out, name
    assert run("view", "model", "-o", "model.html", "--quiet").code == 0
    assert "of my-graph" in run("predict", "model", "-o", "x.csv").err
    assert_sentence(run("predict", "model", "my-graph"), "is not there")  # it was named


@pytest.mark.parametrize(
    "command", ["predict bare", "evaluate bare", "inspect bare 1", "view bare"]
)
def test_commands_say_how_to_keep_a_graph(run, shared, command, monkeypatch):  # noqa: F811
    monkeypatch.chdir(shared)
    assert_sentence(run(*command.split()), "--keep-graph on the command line")


def test_a_model_without_its_graph_takes_it_from_where_it_was(run, here):  # noqa: F811
    assert run("train", "my-graph", "--out", "bare", *SMALL).code == 0
    assert not (here / "bare" / "graph").exists()
    asked = ("--new", "new.csv", "--new-edges", "new-edges.csv", "--quiet")
    kept = run("predict", "model", *asked).out
    assert run("predict", "bare", *asked).out == kept
    assert run("predict", "bare", "my-graph", *asked).out == kept
    exits = run("predict", "bare", *asked, "--early-exit", "--tolerance", 0.5)
    assert {"node", "label", "confidence", "layer"} == set(rows(exits.out)[0])
    # the graph is added to a finished model without training it again
    weights = (here / "bare" / "model.safetensors").stat().st_mtime_ns
    resumed = run("train", "my-graph", "--out", "bare", *SMALL, "--resume", "--keep-graph")
    assert resumed.code == 0
    assert (here / "bare" / "model.safetensors").stat().st_mtime_ns == weights
    assert Model.load(here / "bare").kept is not None


@pytest.mark.parametrize(
    ("arguments", "nodes", "edges", "sentence"),
    [
        ("--new new.csv", "id,age,visits\nzoe,3,3\n", "", "new.csv has no column 'town', which"),
        ("--new new.csv", "id,age,visits,town\nmember-001,3,3,A\n", "",
         "new.csv, line 2, column 'id': the id 'member-001' is a node of the graph already"),
        ("--new new.csv", "id,age,visits,town\nz,3,3,A\nz,3,3,A\n", "", "is there a second time"),
        ("--new new.csv", "id,age,visits,town\nz,old,3,A\n", "", "'old' is not a number"),
        ("--new new.csv", "id,age,visits,town\n", "", "new.csv has no nodes"),
        ("--new new.csv --new-edges new-edges.csv", NEW, "source,target,weight\nzoe,bob,1\n",
         "new-edges.csv, line 2, column 'target': the id 'bob' is not among the nodes"),
        ("--new new.csv --new-edges new-edges.csv", NEW,
         "source,target,weight\nmember-001,member-002,1\n", "which are both in the graph already"),
        ("--new new.csv --new-edges new-edges.csv", NEW, "from,to,weight\nzoe,yan,1\n",
         "new-edges.csv has no column 'source' among from, to, weight"),
        ("--new new.csv --new-edges new-edges.csv", NEW, "source,target\nzoe,yan\n",
         "the model was trained with weights of the edges"),
        ("--new new.csv --new-edges new-edges.csv", NEW, "source,target,weight,x\nzoe,yan,1,2\n",
         "the new edges have 1 features each but the model was trained with 0"),
        ("--new new.csv --new-edges new-edges.csv", NEW, "source,target,weight\nzoe,yan,-1\n",
         "is negative"),
        ("--new gone.csv", NEW, "", "gone.csv is not there"),
        ("--new-edges new-edges.csv", NEW, EDGES, "--new-edges needs --new"),
        ("--hops 2", NEW, "", "--hops needs --new or --nodes"),
        ("--new new.csv --nodes member-001", NEW, "", "give one of them"),
        ("--new new.csv --reliability x.png", NEW, "", "--reliability needs labels"),
        ("--nodes nobody", NEW, "", "the graph has no node 'nobody': give one of its ids"),
        ("--nodes ,", NEW, "", "nodes is empty"),
        ("--nodes member-001 --hops -1", NEW, "", "hops is -1"),
        ("--new new.csv --read scale=unit", NEW, "", "scale was decided"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(run, shared, arguments, nodes, edges, sentence, monkeypatch):  # noqa: F811
    monkeypatch.chdir(shared)
    (shared / "new.csv").write_text(nodes)
    (shared / "new-edges.csv").write_text(edges)
    assert_sentence(run("predict", "model", *arguments.split()), sentence)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One trained model for all mistakes."""
    import runpy
    import sys
    from pathlib import Path

    import deepgat

    folder = tmp_path_factory.mktemp("mistakes")
    script = Path(__file__).parents[2] / "examples" / "club.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["club.py", str(folder / "my-graph")])
        runpy.run_path(str(script), run_name="__main__")
    model = deepgat.fit(str(folder / "my-graph"), "gcn", training={"epochs": 2, "device": "cpu"})
    model.save(folder / "model", keep_graph=True)
    model.save(folder / "bare")
    shutil.rmtree(folder / "my-graph")
    return folder


def test_keep_graph_needs_a_folder(run):  # noqa: F811
    assert_sentence(run("train", "csbm", "--keep-graph"), "--keep-graph needs --out")
