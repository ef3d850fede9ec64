"""A graph that a model was not trained on gets the features that it would have had in training."""

import json
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import deepgat
from deepgat import Model, load_graph
from deepgat.data.tables.plan import ColumnPlan, FeaturePlan
from deepgat.errors import UserError
from test_cli import assert_sentence, run  # noqa: F401 - a fixture

TOWNS = ("Ashford", "Birch", "007")
MOTTOS = ("red boats", "blue boats at dawn", "chess")


def write(folder, rows, columns="id,label,age,town,motto,member"):
    """Nodes of these lines on a path."""
    folder.mkdir()
    (folder / "nodes.csv").write_text("\n".join([columns, *rows]) + "\n")
    ids = [row.split(",")[0] for row in rows]
    edges = [f"{a},{b}" for a, b in pairwise(ids)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    return folder


def rows(numbers):
    return [
        f"m{k},{'chess' if k % 2 else 'rowing'},{20 + 7 * k % 31}.5,{TOWNS[k % 3]},"
        f"{MOTTOS[k % 3]},{k % 2}"
        for k in numbers
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("plan")
    data = load_graph(write(place / "all", rows(range(40))), text="motto", missing="mean")
    fitted = deepgat.fit(data, num_layers=2, training={"epochs": 3, "device": "cpu"})
    return fitted.save(place / "model")


def test_a_handful_of_nodes_has_the_features_of_the_training(model, tmp_path):
    """Also where all its categories look like numbers, and where columns change places."""
    known = Model.load(model)
    whole = known.training_data
    for name, numbers in (("some", (3, 4, 5, 8)), ("one town", (2, 5)), ("one", (7,))):
        some = known.data_for(str(write(tmp_path / name, rows(numbers))))
        assert some.feature_names == whole.feature_names
        x = whole.graph.x.to_dense()[list(numbers)]
        assert torch.equal(some.graph.x.to_dense(), x)
        assert some.class_names == whole.class_names
        assert len(known.predict(some).labels) == len(numbers)
    turned = [",".join(reversed(row.split(","))) for row in rows((3, 4))]
    (tmp_path / "some" / "nodes.csv").write_text(
        "\n".join(["member,motto,town,age,label,ID", *turned])
    )
    (tmp_path / "some" / "edges.csv").write_text("source,target\nm3,m4\n")
    other = known.data_for(str(tmp_path / "some"))
    assert torch.equal(other.graph.x.to_dense(), whole.graph.x.to_dense()[[3, 4]])


def test_gaps_and_strange_texts(model, tmp_path):
    """A missing number is the training's mean; an unknown category or word is nothing."""
    known = Model.load(model)
    lines = ["a,,,Paris,green boats,1", "b,,1e9,,,0"]
    data = known.data_for(str(write(tmp_path / "new", lines)))
    ages = [20 + 7 * k % 31 + 0.5 for k in range(40)]
    names = list(data.feature_names)
    x = {name: data.graph.x.to_dense()[:, place] for place, name in enumerate(names)}
    assert abs(x["age"][0]) < 1e-6
    assert x["age"][1] == pytest.approx((1e9 - np.mean(ages)) / np.std(ages))
    assert all(not x[name].any() for name in names if name.startswith("town="))
    assert x["motto:boats"].tolist() == [1, 0]
    assert sum(float(x[name].sum()) for name in names if name.startswith("motto:")) == 1
    assert x["member"].tolist() == [1, 0]
    unknown = "1 cells hold texts that the model was not trained with ('Paris')"
    assert any(unknown in note for note in data.notes)
    assert not data.graph.train_mask.any()
    assert data.graph.y.tolist() == [-1, -1]


def test_nodes_without_a_label_column_are_predicted_by_the_command(run, model, tmp_path):  # noqa: F811
    lines = ["a,30,Birch,chess,1,x", "b,40,Birch,chess,0,y"]
    folder = write(tmp_path / "new", lines, "id,age,town,motto,member,more")
    found = run("predict", model, folder)
    assert [line.split(",")[0] for line in found.out.splitlines()] == ["node", "a", "b"]
    assert {line.split(",")[1] for line in found.out.splitlines()[1:]} <= {"chess", "rowing"}
    assert "ignored 'more', which the model was not trained with" in found.err
    (folder / "nodes.csv").write_text((folder / "nodes.csv").read_text().replace("id,", "who,", 1))
    assert run("predict", model, folder, "--read", "id=who").out == found.out


@pytest.mark.parametrize(
    ("columns", "line", "options", "sentence"),
    [
        ("id,age,motto,member", "a,30,chess,1", (), "nodes.csv has no column 'town', which"),
        ("id,age", "a,30", (), "no column 'town', 'motto', 'member', which the model was trained"),
        ("id,age,town,motto,member", "a,old,Birch,chess,1", (), "'old' is not a number"),
        (
            "id,age,town,motto,member", "a,,Birch,chess,1", ("--read", "missing=refuse"),
            "the number is missing; fill it in, or read with --read missing=mean, which uses the "
            "mean of",
        ),
        (
            "id,age,town,motto,member", "a,3,Birch,chess,1", ("--read", "scale=none"),
            "scale was decided when the model was trained: leave it out",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(run, model, tmp_path, columns, line, options, sentence):  # noqa: F811
    folder = write(tmp_path / "new", [line], columns)
    assert_sentence(run("predict", model, folder, *options), sentence)


def test_the_plan_is_saved_as_plain_values_and_a_damaged_one_is_refused(model, tmp_path):
    card = json.loads((model / "model.json").read_text())
    plan = FeaturePlan.of(card["feature_plan"])
    assert [item.kind for item in plan.columns] == ["number", "category", "words", "number"]
    assert plan.columns[1].terms == ("007", "Ashford", "Birch")
    assert plan.plain() == card["feature_plan"]
    assert plan == FeaturePlan.of(Model.load(model).training_data.feature_plan)
    for wrong in ([{"name": "age"}], [{"name": "age", "kind": "number", "low": "x"}], [3]):
        with pytest.raises(UserError, match="train"):
            FeaturePlan.of(wrong)
    copy = tmp_path / "model"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    card["feature_plan"] = [{"name": "age", "kind": "pickle"}]
    (copy / "model.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match="is damaged"):
        Model.load(copy)
    del card["feature_plan"]
    (copy / "model.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match="lacks or misnames a setting"):
        Model.load(copy)


def test_structure_is_scaled_by_the_training(tmp_path):
    data = load_graph(write(tmp_path / "all", rows(range(40))), structure="degree,spectral")
    fitted = deepgat.fit(data, num_layers=1, training={"epochs": 1, "device": "cpu"})
    small = fitted.data_for(str(write(tmp_path / "small", rows(range(4)))))
    assert small.feature_names == data.feature_names
    place = data.feature_names.index("degree")
    assert torch.equal(small.graph.x[[0, 3], place], data.graph.x[[0, 39], place])  # ends of a path
    assert not small.graph.x[:, -1].any()  # the 16th eigenvector of 4 nodes


@pytest.mark.parametrize("scale", ["standard", "unit", "none"])
def test_numbers_are_scaled_as_the_formula_says(scale):
    numbers = np.array([3.0, np.nan, 5.0, 10.0])
    plan = ColumnPlan.of_numbers("a", "number", numbers, scale)
    low, width = {"standard": (6, np.std([3, 5, 10])), "unit": (3, 7), "none": (0, 1)}[scale]
    np.testing.assert_allclose(plan.scaled(numbers), (numbers - low) / width)
    assert plan.mean == 6
    same = ColumnPlan.of_numbers("a", "number", np.full(4, 7.0), scale)
    assert same.scaled(np.array([7.0, 9.0])).tolist() == ([7, 9] if scale == "none" else [0, 0])


def test_labels_of_several_classes_are_matched_by_name(tmp_path):
    lines = [f"m{k},{'a;b' if k % 2 else 'b;c'},{k}" for k in range(20)]
    data = load_graph(write(tmp_path / "all", lines, "id,label,n"))
    fitted = deepgat.fit(data, "gat", num_layers=1, training={"epochs": 1, "device": "cpu"})
    lines = [f"m{k},{'c;d' if k % 2 else 'b;d'},{k}" for k in range(6)]
    other = fitted.data_for(str(write(tmp_path / "new", lines, "id,label,n")))
    assert other.class_names == ("a", "b", "c")
    assert other.graph.y[:2].tolist() == [[0, 1, 0], [0, 0, 1]]


def test_ready_features_need_no_labels_either(tmp_path):
    def write_npz(name, n, **more):
        ring = np.roll(np.eye(n), 1, axis=0)
        x = np.arange(2.0 * n).reshape(n, 2)
        path = tmp_path / name
        adjacency = sp.csr_matrix(ring)
        parts = {f"adj_{key}": getattr(adjacency, key) for key in ("data", "indices", "indptr")}
        np.savez(path, attr_matrix=x, adj_shape=np.array([n, n]), **parts, **more)
        return path

    data = load_graph(write_npz("all.npz", 20, labels=np.arange(20) % 2))
    fitted = deepgat.fit(data, num_layers=1, training={"epochs": 1, "device": "cpu"})
    other = fitted.data_for(str(write_npz("new.npz", 3)))
    assert torch.equal(other.graph.x.to_dense(), data.graph.x.to_dense()[:3])
    assert fitted.predict(other).labels.shape == (3,)


def test_the_graph_of_the_training_keeps_its_split_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = load_graph(write(tmp_path / "g", rows(range(40))), "fractions:0.3/0.2:7", text="motto")
    fitted = deepgat.fit(data, num_layers=2, training={"epochs": 2, "device": "cpu"})
    known = Model.load(fitted.save(tmp_path / "kept"))
    for graph, reading in (
        (None, {"missing": "mean"}),
        ("g", {}),
        ("./g", {}),
        ("g", {"missing": "zero"}),
    ):
        found = known.data_for(graph, **reading)
        assert found.split == data.split
        assert torch.equal(found.graph.test_mask, data.graph.test_mask)
