"""What the page of a model holds, and that names from a graph stay data."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_encoding import unpacked

import deepgat
from deepgat import Model, UserError, recipe
from deepgat.analysis import neighbor_distance
from deepgat.models.ensemble import EnsembleConfig
from deepgat.models.registry import SYSTEMS, build_network
from deepgat.training.run import ModelCard
from deepgat.view import page
from deepgat.view.contents import page_contents
from deepgat.view.html import html_of
from deepgat.view.sample import sample_graph
from networks import ORACLES
from test_cli import assert_sentence, run  # noqa: F401 - a fixture
from tiny import tiny_dataset, tiny_labels

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)> {{data}} & \u2028"


def untrained(system: str, data=None, **settings) -> Model:
    data = data or tiny_dataset()
    plan = recipe(system, num_layers=3, training={"device": "cpu"}, **settings)
    card = ModelCard.of(data, plan)
    return Model(card.build().eval(), card, dataset=data)


def hostile_data():
    data = tiny_dataset()
    ids = tuple(f"{HOSTILE} {node}" for node in range(60))
    names = tuple(f"{HOSTILE} class {c}" for c in range(3))
    return replace(data, title=f"A graph {HOSTILE}", node_ids=ids, class_names=names)


@pytest.fixture(scope="module")
def model():
    return deepgat.fit(tiny_dataset(), "deepgat", num_layers=4, training={"epochs": 5})


@pytest.fixture(scope="module")
def contents(model):
    return page_contents(model, layout="pca")


def test_predictions_are_the_models(model, contents):
    found, outputs = contents["predictions"], model.outputs(model.training_data)
    assert found["layers"] == [0, 1, 2, 3, 4]
    for layer, classes, sure in zip(
        found["layers"], found["class"], found["confidence"], strict=True
    ):
        shares = model.calibration.probabilities(outputs.layer_logits[layer], False)
        assert unpacked(classes).tolist() == shares.argmax(1).tolist()
        assert np.abs(unpacked(sure) / 255 - shares.max(1).values.numpy()).max() < 1 / 500
    top = unpacked(found["likeliest_class"]).reshape(60, 3)
    assert top[:, 0].tolist() == outputs.logits.argmax(1).tolist()
    confidence = model.predict(model.training_data).confidence.numpy()
    assert np.abs(unpacked(found["confidence"][-1]) / 255 - confidence).max() < 1 / 500


def test_attention_is_the_models(model, contents):
    node, found = 17, model.explain(17)
    ptr, source = unpacked(contents["edges"]["ptr"]), unpacked(contents["edges"]["source"])
    here = slice(ptr[node], ptr[node + 1])
    assert sorted(source[here]) == sorted(found.neighbors.tolist())
    assert contents["attention"]["layers"] == [1, 2, 3, 4]
    assert not contents["attention"]["fixed"]
    for weights, expected in zip(contents["attention"]["weights"], found.attention, strict=True):
        read = weights["scale"] * (unpacked(weights).astype(float) / 255) ** 2
        by_node = dict(zip(source[here].tolist(), read[here], strict=True))
        exact = dict(zip(found.neighbors.tolist(), expected.tolist(), strict=True))
        assert by_node == pytest.approx(exact, abs=0.005)


def test_labels_parts_and_scores(model, contents):
    graph = model.training_data.graph
    assert unpacked(contents["nodes"]["label"]).tolist() == graph.y.tolist()
    part = unpacked(contents["nodes"]["part"])
    assert (part == 3).tolist() == graph.test_mask.tolist()
    assert (part == 1).tolist() == graph.train_mask.tolist()
    assert contents["scores"]["test"]["micro_f1"] == pytest.approx(model.scores["test"])
    assert contents["graph"]["nodes"] == 60


def test_smoothing_is_the_analysis(model, contents):
    outputs, graph = model.outputs(model.training_data), model.training_data.graph
    rows = {row["layer"]: row for row in contents["smoothing"]}
    expected = neighbor_distance(outputs.hidden[-1], graph.edge_index)
    assert rows[4]["neighbor_distance"] == pytest.approx(expected)
    assert rows[4]["micro_f1"] == pytest.approx(model.scores["test"])


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"label-propagation"}))
def test_every_system_has_a_page(system):
    found = page_contents(untrained(system), layout="pca")
    attention = found["attention"]
    assert (attention is None) == (system == "mlp")
    if attention is not None:
        assert attention["of"] == found["layers"]
        assert attention["fixed"] == (system not in ("deepgat", "gat", "deep", *ORACLES))
    assert found["predictions"]["layers"][-1] == found["layers"]


def test_an_ensemble_speaks_by_its_heaviest_member():
    data = tiny_dataset()
    members = [
        {"system": name, "settings": {"num_layers": depth}, "weight": weight, "temperature": 1.0}
        for name, depth, weight in (("mlp", 2, 1.0), ("gat", 3, 3.0))
    ]
    plan = recipe("deep", num_layers=3, training={"device": "cpu"})
    card = replace(ModelCard.of(data, plan), system="ensemble")
    network = build_network("ensemble", EnsembleConfig(3, 64, members), 6, 3)
    found = page_contents(Model(network.eval(), card, dataset=data), layout="pca")
    assert [(m["name"], m["share"], m["speaks"]) for m in found["system"]["members"]] == [
        ("mlp", 0.25, False),
        ("gat", 0.75, True),
    ]
    assert found["attention"]["of"] == 3
    assert not found["attention"]["fixed"]


def test_layers_are_left_out_where_they_are_too_many(model, monkeypatch):
    monkeypatch.setattr("deepgat.view.contents.MOST_WEIGHTS", 1000)
    monkeypatch.setattr("deepgat.view.contents.MOST_PREDICTIONS", 130)
    found = page_contents(model, layout="pca")
    assert found["attention"]["layers"][-1] == 4
    assert len(found["attention"]["layers"]) == len(found["attention"]["weights"]) < 4
    assert found["predictions"]["layers"] == [0, 4]
    assert found["predictions"]["of"] == 5


def test_attention_is_left_out_where_memory_is_scarce(model, monkeypatch):
    monkeypatch.setattr("deepgat.view.contents.free_memory", lambda device: 1000.0)
    found = page_contents(model, layout="pca")
    assert found["attention"] is None
    assert found["attention_missing"]
    assert "did not fit into the memory" in found["notes"][0]


def test_a_large_graph_is_sampled_and_says_so(model, monkeypatch):
    monkeypatch.setattr(
        "deepgat.view.contents.sample_graph", lambda ptr, source: sample_graph(ptr, source, 30)
    )
    found = page_contents(model, layout="pca")
    assert found["nodes"]["count"] <= 30
    assert len(found["nodes"]["ids"]) == found["nodes"]["count"]
    assert re.search(r"The graph has 60 nodes. This page has \d+ of them", found["notes"][0])


def test_an_unlabelled_graph_has_no_scores(model):
    graph = model.training_data.graph.clone()
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        del graph[name]
    found = page_contents(model, model._fitting(graph), layout="pca")
    assert found["scores"] == {}
    assert set(unpacked(found["nodes"]["label"]).tolist()) == {-1}


def test_labels_and_several_graphs_are_refused_in_a_sentence(tmp_path):
    several = deepgat.fit(tiny_labels(), "gat", num_layers=2, training={"epochs": 1})
    with pytest.raises(UserError, match="one class per node"):
        several.view(tmp_path / "page.html")
    data = tiny_dataset()
    two = replace(data, graphs=data.graphs * 2)
    with pytest.raises(UserError, match="has 2 graphs and the page shows one"):
        untrained("gcn", two).view(tmp_path / "page.html")
    with pytest.raises(UserError, match="unknown layout"):
        untrained("gcn").view(tmp_path / "page.html", layout="circle")
    with pytest.raises(UserError, match="is a folder"):
        untrained("gcn").view(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_names_from_a_graph_stay_data():
    text = page(untrained("gat", hostile_data()), layout="pca")
    assert text.count("<script") == text.count("</script>") == 8  # data, 6 libraries, ours
    assert "<img" not in text
    assert "<!--" not in text
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    found = json.loads(held[1])
    assert found["nodes"]["ids"][5] == f"{HOSTILE} 5"
    assert found["classes"][2] == f"{HOSTILE} class 2"
    assert not re.search("[<>&]", held[1])


def test_the_policy_names_every_script_and_nothing_else():
    text = page(untrained("gcn"), layout="pca")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    for script in re.findall(r"<script>(.*?)</script>", text, re.S):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r'(src|href)="(?!data:,|#)', text)


def test_texts_that_are_no_utf8_are_shown():
    data = replace(tiny_dataset(), title="odd \udcff", node_ids=("\ud800",) * 60)
    page(untrained("gcn", data), layout="pca").encode()


def test_libraries_are_small_and_come_with_their_licences():
    folder = Path(deepgat.__file__).parent / "view" / "vendor"
    licences = (folder / "LICENSES.txt").read_text()
    for path in folder.glob("*.js"):
        assert path.stat().st_size < 2**20
        assert re.search(rf"^.*{path.name.split('.')[0]} \d", licences, re.M), path.name
        assert "sourceMappingURL" not in path.read_text()
    assert "Copyright" in licences
    assert html.escape(licences.splitlines()[0]) in html_of(page_contents(untrained("gcn")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = deepgat.fit("csbm", "gat", num_layers=2, training={"epochs": 2, "device": "cpu"})
    return model.save(tmp_path_factory.mktemp("view") / "model")


def test_the_command_writes_the_page_and_says_where(run, folder, tmp_path):  # noqa: F811
    out = tmp_path / "model.html"
    result = run("view", folder, "-o", out, "--layout", "pca")
    assert result.code == 0
    assert str(out) in result.out
    assert "MB" in result.out
    text = out.read_text()
    assert text == page(Model.load(folder), layout="pca")
    assert list(tmp_path.iterdir()) == [out]


def test_mistakes_are_told_before_the_work(run, folder, tmp_path):  # noqa: F811
    assert_sentence(run("view", folder, "-o", tmp_path), "is a folder")
    assert_sentence(run("view", folder, "--layout", "tnse"), "unknown layout")
    assert_sentence(run("view", tmp_path), "not a model folder")
    assert_sentence(run("view", folder, tmp_path / "nothing"), "nothing")
