"""What ``deepgat check`` finds in graphs that were made to have it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from deepgat.analysis.graph_check import homophily, inspect_graph
from deepgat.cli import main
from deepgat.data import ReadOptions, read_graph


def write(path: Path, columns: dict[str, list], edges: list[tuple[int, int]]) -> Path:
    path.mkdir(exist_ok=True)
    count = len(next(iter(columns.values())))
    rows = ["id," + ",".join(columns)]
    rows += [
        ",".join([f"n{i}", *(str(values[i]) for values in columns.values())]) for i in range(count)
    ]
    (path / "nodes.csv").write_text("\n".join(rows) + "\n")
    pairs = ["source,target"] + [f"n{a},n{b}" for a, b in edges]
    (path / "edges.csv").write_text("\n".join(pairs) + "\n")
    return path


def ring(count: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % count) for i in range(count)]


def report(path: Path, **options):
    return inspect_graph(read_graph(path, ReadOptions(**options)))


def found(path: Path, words: str, **options) -> bool:
    return any(words in sentence for sentence in report(path, **options)["problems"])


def draws(count: int = 60, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).standard_normal(count).round(3).tolist()


def test_homophily_by_hand():
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    assert homophily(edges, np.array([0, 0, 1, 1])) == (0.5, 0.0)  # as often as by chance
    assert homophily(edges[:, [0, 2]], np.array([0, 0, 1, 1])) == (1.0, 1.0)
    unknown = homophily(edges, np.array([0, -1, 1, -1]))
    assert np.isnan(unknown[0])
    several = np.array([[1, 1], [1, 0], [0, 1], [0, 0]])
    assert homophily(np.array([[0, 1, 3], [1, 2, 0]]), several)[0] == pytest.approx(0.25)


def test_numbers_of_a_graph(tmp_path):
    labels = ["a", "b"] * 30
    edges = [*ring(50), (0, 1), (3, 3)]
    made = report(write(tmp_path / "g", {"label": labels, "x": draws()}, edges))
    assert (made["nodes"], made["edges"], made["features"]) == (60, 50, 1)
    assert made["classes"] == {"a": 30, "b": 30}
    assert made["homophily_edge"] == 0.0
    assert made["homophily_adjusted"] == -1.0
    assert made["components"] == 11
    assert made["isolated"] == 10
    assert made["largest_component"] == pytest.approx(50 / 60)
    assert (made["duplicate_edges"], made["self_loops"]) == (1, 1)
    assert made["hubs"][0][1] == 2
    assert made["split"] is None
    assert any("10 of 60 nodes have no neighbours" in sentence for sentence in made["problems"])
    assert "keep a node apart from its neighbours" in made["advice"]["why"]


def test_many_labels_are_told(tmp_path):
    labels = ["a"] * 120 + ["b"] * 120
    made = report(write(tmp_path / "g", {"label": labels, "x": draws(240)}, ring(240)))
    assert made["advice"]["command"] == "deepgat train my-graph/"
    assert "labels are many" in made["advice"]["why"]


def test_a_sound_graph_has_no_problems(tmp_path):
    labels = ["a"] * 30 + ["b"] * 30
    columns = {"label": labels, "x": draws(), "y": draws(seed=1)}
    made = report(write(tmp_path / "g", columns, ring(60)))
    assert made["problems"] == []
    assert "labels are few" in made["advice"]["why"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"number": list(range(60))}, "'number' counts the nodes"),
        ({"number": list(range(7, 607, 10))}, "'number' counts the nodes"),
        ({"leak": [f"is-{i % 3}" for i in range(60)]}, "'leak' alone predicts 99% of the labels"),
        ({"leak": [i % 3 * 2.5 for i in range(60)]}, "'leak' alone predicts 99% of the labels"),
        ({"leak": [i % 3 + 0.5 * abs(np.sin(i)) for i in range(60)]}, "'leak' alone predicts"),
        ({"same": [4] * 60}, "columns are constant, such as 'same'"),
        ({"far": [0.0, 1.0] * 5000 + [1e9]}, "more than 50 deviations"),
    ],
)
def test_suspicious_columns(tmp_path, columns, words):
    count = len(next(iter(columns.values())))
    columns = {"label": [i % 3 for i in range(count)], "x": draws(count), **columns}
    path = write(tmp_path / "g", columns, ring(count))
    assert found(path, words)
    assert not found(path, words, drop=list(columns)[-1])


def test_labels_and_splits(tmp_path):
    labels = ["a"] * 57 + ["b", "b", "c"]
    path = write(tmp_path / "g", {"label": labels, "x": draws()}, ring(60))
    assert found(path, "The class 'c' has one node")
    assert found(path, "The class 'b' has 2 nodes, fewer than 5: its score")
    assert found(path, "95% of the labelled nodes are 'a'")
    parts = ["train"] * 40 + ["test"] * 20
    path = write(tmp_path / "h", {"label": labels, "split": parts, "x": draws()}, ring(60))
    assert found(path, "No node is in the part 'val'")
    assert found(path, "The class 'b' is validated or tested but has no training node")
    one = write(tmp_path / "i", {"label": ["a"] * 60, "x": draws()}, ring(60))
    assert found(one, "only one class")
    none = write(tmp_path / "j", {"x": draws()}, ring(60))
    assert found(none, "no labels")


def test_a_class_that_is_too_small_to_split(tmp_path):
    labels = ["a"] * 50 + ["b"] * 6 + ["c", "c", "d", "d"]
    path = write(tmp_path / "g", {"label": labels, "x": draws()}, ring(60))
    assert found(path, "2 classes have fewer than 5 nodes, such as 'c'")
    assert found(path, "A random split needs 3 nodes of every class")
    assert report(path)["advice"]["command"] == "deepgat train my-graph/ --read rare=unlabel"
    assert not found(path, "A random split needs", rare="unlabel")
    parts = ["train", "val", "test"] * 20
    path = write(tmp_path / "h", {"label": labels, "split": parts, "x": draws()}, ring(60))
    assert not found(path, "A random split needs")


def test_copies_across_splits(tmp_path):
    labels = [i % 2 for i in range(60)]
    parts = ["train"] * 30 + ["val"] * 10 + ["test"] * 20
    columns = {"label": labels, "split": parts}
    columns |= {f"x{k}": draws(30, k) * 2 for k in range(4)}
    path = write(tmp_path / "g", columns, ring(60))
    assert found(path, "20 of 20 test nodes have exactly the features of a training node")
    columns |= {f"x{k}": draws(60, k) for k in range(4)}
    assert not found(write(tmp_path / "h", columns, ring(60)), "exactly the features")


def test_a_hub_that_is_joined_to_everyone(tmp_path):
    edges = [*ring(60), *((0, i) for i in range(2, 50))]
    path = write(tmp_path / "g", {"label": [0, 1] * 30, "x": draws()}, edges)
    assert found(path, "The node 'n0' is joined to")


def test_the_command(tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "my graph", {"label": [0, 1] * 30, "x": draws()}, ring(60))

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["deepgat", "check", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code
        return capsys.readouterr().out

    shown = run(str(path))
    assert "homophily" in shown
    assert f"deepgat train '{path}'" in shown
    record = json.loads(run(str(path), "--json", "--read", "drop=x"))
    assert record["nodes"] == 60
    structure = "--read structure=degree,pagerank"  # or training would be refused
    assert record["advice"]["command"] == f"deepgat train '{path}' --read drop=x {structure}"
    assert record["problems"][0].startswith("The nodes have no features")
    assert json.loads(run("csbm", "--json"))["nodes"] == 2000


@pytest.mark.parametrize(
    ("sizes", "metric"),
    [((30, 30), None), ((40, 20), None), ((49, 11), "roc_auc"), ((40, 16, 4), "balanced_accuracy")],
)
def test_uneven_classes_are_told(tmp_path, sizes, metric, capsys, monkeypatch):
    """Uneven: ten times the smallest, or more than 70% of all."""
    labels = [name for name, size in zip("abc", sizes, strict=False) for _ in range(size)]
    path = write(tmp_path / "g", {"x": draws(), "label": labels}, ring(60))
    told = report(path)["advice"]["uneven"]
    monkeypatch.setattr(sys, "argv", ["deepgat", "check", str(path)])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().out
    if metric is None:
        assert told == ""
        assert "--metric" not in shown
    else:
        assert f"add --metric {metric} to choose" in told
        assert "--class-weight balanced" in told
        assert told in shown
