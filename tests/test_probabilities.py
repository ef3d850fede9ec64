"""Calibrated probabilities, prediction sets and abstention of models, files and commands."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix

import deepgat
from deepgat import DeepGATClassifier, Model, UserError, load_graph
from deepgat.analysis import Calibration, fit_temperature, metric, set_coverage
from deepgat.cli.probabilities import LONGEST, print_confusion
from deepgat.cli.show import OUT
from deepgat.model_folder import read_calibration, save_run
from deepgat.training.evaluate import evaluate
from test_cli import assert_sentence, run  # noqa: F401 - a fixture
from tiny import tiny_dataset, tiny_labels

QUICK = {"epochs": 12, "device": "cpu"}


@pytest.fixture(scope="module")
def data():
    return load_graph("csbm")


@pytest.fixture(scope="module")
def model(data):
    return deepgat.fit(data, "gcn", training=QUICK)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return model.save(tmp_path_factory.mktemp("probabilities") / "model")


@pytest.fixture(scope="module")
def of_labels():
    """A model of independent labels, with enough validation nodes for a temperature."""
    parts = tiny_labels()
    graphs = []
    for graph in parts.graphs:
        whole = graph.clone()
        whole.x, whole.y = graph.x.repeat(6, 1), graph.y.repeat(6, 1)
        whole.y[::5] = 1 - whole.y[::5]  # which no network can know
        for part in ("train", "val", "test"):
            whole[f"{part}_mask"] = graph[f"{part}_mask"].repeat(6)
        graphs.append(whole)
    several = replace(parts, graphs=tuple(graphs))
    return deepgat.fit(
        several, "mlp", training={"epochs": 60, "lr": 0.05, "device": "cpu"}
    ), several


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def tables(text):
    """{the title's first word: rows of cells} of what is printed through a pipe."""
    found = {}
    for block in text.split("# ")[1:]:
        title, *lines = block.splitlines()
        found[title.split()[0]] = [line.split("\t") for line in lines]
    return found


# --------------------------------------------------------------------------------- temperatures


def test_the_temperature_is_that_of_the_validation_nodes(model, data):
    logits = model.run.evaluation.logits[0]
    val = data.graph.val_mask
    temperature = fit_temperature(logits[val], data.graph.y[val])
    assert model.calibration.temperature == temperature != 1
    found = model.predict(data)
    torch.testing.assert_close(found.probabilities, (logits / temperature).softmax(1))
    assert torch.equal(found.labels, logits.argmax(1))


def test_test_labels_do_not_change_the_calibration(model, data):
    hidden = data.graph.clone()
    hidden.y = torch.where(hidden.test_mask, 0, hidden.y)
    blind = deepgat.fit(replace(data, graphs=(hidden,)), "gcn", training=QUICK)
    assert blind.calibration.to_dict() == model.calibration.to_dict()


def test_a_loaded_model_has_the_calibration_of_the_saved_one(model, folder, data):
    again = Model.load(folder)
    assert again.calibration.to_dict() == model.calibration.to_dict()
    for own_class in (False, True):
        mine, theirs = (
            each.predict(data, coverage=0.9, class_conditional=own_class) for each in (model, again)
        )
        assert torch.equal(mine.sets, theirs.sets)
        assert torch.equal(mine.probabilities, theirs.probabilities)


def test_raw_and_calibrated_errors_are_told(model, data):
    evaluation = model.run.evaluation
    temperature, logits = model.calibration.temperature, evaluation.logits[0]
    for part in ("val", "test"):
        mask = data.graph[f"{part}_mask"]
        for name in ("brier", "calibration_error"):
            raw, scaled = (
                metric(name, z[mask], data.graph.y[mask], False).item()
                for z in (logits, logits / temperature)
            )
            assert evaluation.metrics[name][part] == pytest.approx(raw, abs=1e-6)
            assert evaluation.calibrated[name][part] == pytest.approx(scaled, abs=1e-6)
    assert evaluation.calibrated["brier"]["test"] < evaluation.metrics["brier"]["test"]
    record = model.run.record()
    assert record["temperature"] == temperature
    assert record["calibrated"] == evaluation.calibrated


def test_predictions_on_disk_and_explanations_are_calibrated(model, folder, data):
    written = rows((folder / "predictions.csv").read_text())
    shares = model.predict(data).probabilities
    assert float(written[3]["p0"]) == pytest.approx(float(shares[3, 0]), rel=1e-4)
    found = model.explain(7)
    torch.testing.assert_close(found.layers[2][0], shares[7])


def test_the_classifier_is_calibrated(data):
    graph = data.graph
    y = torch.where(graph.train_mask | graph.val_mask, graph.y, -1).numpy()
    made = DeepGATClassifier("gcn", epochs=12, random_state=0, device="cpu")
    edges = graph.edge_index.numpy()
    made.fit(graph.x.numpy(), y, edge_index=edges, validation=graph.val_mask.numpy())
    calibration, logits = made.run_.evaluation.calibration, made.run_.evaluation.logits[0]
    assert calibration.temperature != 1
    shares = made.predict_proba(graph.x.numpy(), edge_index=edges)
    np.testing.assert_allclose(shares, (logits / calibration.temperature).softmax(1), rtol=1e-5)
    assert (made.predict(graph.x.numpy(), edge_index=edges) == logits.argmax(1).numpy()).all()


def test_few_validation_nodes_leave_the_probabilities_as_they_are():
    tiny = tiny_dataset()  # 15 of them
    found = deepgat.fit(tiny, "gcn", training=QUICK)
    assert found.calibration.temperature == 1
    assert [len(each) for each in found.calibration.scores] == [5, 5, 5]


def test_independent_labels_have_one_temperature(of_labels):
    model, several = of_labels
    graph = several.graphs[2]
    logits = model.run.evaluation.logits[2]
    assert model.calibration.temperature == fit_temperature(logits, graph.y) != 1
    found = model.predict(graph)
    expected = (logits / model.calibration.temperature).sigmoid()
    torch.testing.assert_close(found.probabilities, expected)
    assert torch.equal(found.labels, logits > 0)
    with pytest.raises(UserError, match="one class per node"):
        model.predict(graph, coverage=0.9)
    with pytest.raises(UserError, match="one class per node"):
        model.predict(graph, abstain=0.9)


def test_evaluation_of_a_saved_model_uses_its_calibration(model, data):
    other = Calibration(3.0, model.calibration.scores)
    found = evaluate(model.network, data, "cpu", calibration=other)
    assert found.calibration is other
    test = data.graph.test_mask
    value = metric("brier", found.logits[0][test] / 3, data.graph.y[test], False).item()
    assert found.calibrated["brier"]["test"] == pytest.approx(value, abs=1e-6)


# -------------------------------------------------------------------------- sets and abstention


def test_sets_cover_the_test_nodes(model, data):
    test = data.graph.test_mask
    for own_class in (False, True):
        found = model.predict(data, coverage=0.9, class_conditional=own_class)
        assert torch.equal(found.labels, model.predict(data).labels)
        got = set_coverage(found.sets[test], data.graph.y[test])
        assert got.coverage > 0.85  # 0.9 up to the chance of one split
        assert got.size < data.num_classes
    assert model.predict(data).sets is None


def test_other_nodes_can_calibrate(model, data, tmp_path):
    fresh = data.graph.test_mask.nonzero().squeeze(1)
    logits = model.run.evaluation.logits[0]
    again = model.calibrate(data, fresh)
    expected = Calibration.fit(logits[fresh], data.graph.y[fresh])
    assert again.calibration.to_dict() == expected.to_dict() != model.calibration.to_dict()
    found = again.predict(data, coverage=0.9)
    assert set_coverage(found.sets[fresh], data.graph.y[fresh]).coverage >= 0.9
    assert again.calibrate(data, data.graph.val_mask).calibration.to_dict() == (
        model.calibration.to_dict()
    )
    loaded = Model.load(again.save(tmp_path / "m"))
    assert loaded.calibration.to_dict() == expected.to_dict()
    record = json.loads((tmp_path / "m" / "metrics.json").read_text())
    assert record["temperature"] == expected.temperature
    assert record["calibrated"] != model.run.evaluation.calibrated
    assert loaded.calibrate(data, data.graph.val_mask).calibration.to_dict() == (
        model.calibration.to_dict()
    )
    unlabelled = data.graph.clone()
    unlabelled.y = unlabelled.y.index_fill(0, fresh[:1], -1)
    for graph, nodes in ((unlabelled, fresh), (data, fresh[:0])):
        with pytest.raises(UserError, match="expected one or more, all of them labelled"):
            model.calibrate(graph, nodes)


def test_abstaining_takes_labels_away_and_nothing_else(model, data):
    whole, found = model.predict(data), model.predict(data, abstain=0.8)
    silent = whole.confidence < 0.8
    assert 0 < int(silent.sum()) < len(silent)
    assert torch.equal(found.labels, torch.where(silent, -1, whole.labels))
    assert torch.equal(found.probabilities, whole.probabilities)


def test_mistakes(model, data):
    deep = deepgat.fit(data, "deepgat", num_layers=2, training={"epochs": 2, "device": "cpu"})
    with pytest.raises(UserError, match="leave early_exit out"):
        deep.predict(data, deep.exit_policy(), coverage=0.9)
    with pytest.raises(UserError, match="give coverage too"):
        model.predict(data, class_conditional=True)
    with pytest.raises(UserError, match="coverage is 90"):
        model.predict(data, coverage=90)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"temperature": 1e999, "scores": []}'])
def test_a_damaged_calibration_is_told(model, data, tmp_path, text):
    folder = save_run(tmp_path / "m", model.run, data)
    if text is None:
        (folder / "calibration.json").unlink()
    else:
        (folder / "calibration.json").write_text(text)
    with pytest.raises(UserError, match=r"is damaged: calibration.json cannot be read"):
        read_calibration(folder, 4)
    with pytest.raises(UserError, match=r"is damaged: calibration.json cannot be read"):
        Model.load(folder)


# ------------------------------------------------------------------------------------- commands


def test_predict_writes_sets_and_leaves_labels_empty(run, folder, model, data):  # noqa: F811
    asked = ("--coverage", 0.9, "--class-conditional", "--abstain", 0.8)
    result = run("predict", folder, *asked)
    found = model.predict(data, coverage=0.9, class_conditional=True, abstain=0.8)
    written = rows(result.out)
    assert list(written[0]) == ["node", "label", "confidence", "set"]
    assert [row["label"] for row in written] == [
        "" if label < 0 else str(label) for label in found.labels.tolist()
    ]
    assert [row["set"] for row in written] == [
        ";".join(map(str, each.nonzero().view(-1).tolist())) for each in found.sets
    ]
    assert f"{int((found.labels < 0).sum()):,} nodes get no label, " in result.err
    covered = set_coverage(found.sets[data.graph.test_mask], data.graph.y[data.graph.test_mask])
    assert f"hold the class of {100 * covered.coverage:.2f}% of the test nodes" in result.err
    assert "every set holds" not in result.err
    result = run("predict", folder, "--coverage", 0.9999)
    assert "every set holds all classes: validation nodes are too few" in result.err


def test_evaluate_prints_reliability_confusion_and_sets(run, folder, model, data, tmp_path):  # noqa: F811
    pictures = tmp_path / "reliability.png", tmp_path / "confusion.svg"
    drawn = ("--reliability", pictures[0], "--confusion", pictures[1])
    asked = ("--coverage", 0.9, "--abstain", 0.77)
    found = tables(run("evaluate", folder, *asked, *drawn, "--device", "cpu").out)
    test = data.graph.test_mask
    predicted, y = model.predict(data, coverage=0.9), data.graph.y[test]
    matrix = confusion_matrix(y, predicted.labels[test])
    assert [list(map(int, row[1:-1])) for row in found["confusion"][1:]] == matrix.tolist()
    head, *bins = found["reliability"]
    assert len(head) == 7
    assert len(set(head)) == 7
    for column in (1, 4):
        assert sum(int(row[column]) for row in bins if row[column] != "–") == len(y)
    *_, whole = found["prediction"]
    got = set_coverage(predicted.sets[test], y)
    assert whole == ["all", str(len(y)), f"{100 * got.coverage:.2f}", f"{got.size:.2f}"]
    kept = predicted.confidence[test] >= 0.77
    right = (predicted.labels[test] == y)[kept].double().mean()
    row = next(row for row in found["abstention"] if row[0] == "0.77")
    assert row[1:] == [f"{100 * kept.double().mean():.2f}", f"{100 * right:.2f}"]
    assert imread(pictures[0]).std() > 0.01
    assert "<svg" in pictures[1].read_text()


def test_evaluate_gives_all_as_json(run, folder, model, data):  # noqa: F811
    options = ("--coverage", 0.9, "--class-conditional", "--abstain", 0.9)
    (told,) = run("evaluate", folder, "--json", "--device", "cpu", *options).records
    assert told["temperature"] == model.calibration.temperature
    assert told["calibrated"]["brier"]["test"] < told["metrics"]["brier"]["test"]
    count = int(data.graph.test_mask.sum())
    assert sum(map(sum, told["confusion"])) == count
    for name, key in (("as trained", "metrics"), ("calibrated", "calibrated")):
        bins = told["reliability"][name]
        error = sum(b["nodes"] * abs(b["accuracy"] - b["confidence"]) for b in bins) / count
        assert error == pytest.approx(told[key]["calibration_error"]["test"], abs=1e-6)
    covered = told["coverage"]
    assert covered["wanted"] == 0.9
    assert covered["class_conditional"]
    shares = [each["coverage"] * each["nodes"] for each in covered["classes"]]
    assert sum(shares) / count == pytest.approx(covered["coverage"])
    assert told["abstention"][0]["threshold"] == 0.0
    json.dumps(told, allow_nan=False)


def test_independent_labels_are_tabled_by_label(run, of_labels, monkeypatch, tmp_path):  # noqa: F811
    model, several = of_labels
    folder = model.save(tmp_path / "m")
    monkeypatch.setattr("deepgat.training.run.ModelCard.load_data", lambda _: several)
    found = tables(run("evaluate", folder, "--device", "cpu").out)
    graph = several.graphs[3]
    expected = multilabel_confusion_matrix(graph.y, model.predict(graph).labels)
    for row, ((neither, only_predicted), (only_true, both)) in zip(
        found["predictions"][1:], expected.tolist(), strict=True
    ):
        assert list(map(int, row[1:])) == [both, only_predicted, only_true, neither]
    result = run("evaluate", folder, "--confusion", tmp_path / "c.png", "--device", "cpu")
    assert result.code == 2
    assert "needs one class per node" in result.err


@pytest.mark.parametrize("count", [3, 15, 40])
def test_the_whole_matrix_is_shown_on_a_narrow_terminal(count, monkeypatch, capsys):
    matrix = np.arange(count * count).reshape(count, count) + 1000
    names = [f"class {'x' * (place % 30)}{place}" for place in range(count)]
    monkeypatch.setattr(OUT, "_force_terminal", True)
    monkeypatch.setattr(OUT, "width", 80)
    monkeypatch.setenv("NO_COLOR", "1")
    print_confusion(matrix, names, "here")
    lines = capsys.readouterr().out.splitlines()
    tabled = [line for line in lines if "confusion matrix" not in line]
    assert max(map(len, tabled)) <= 80
    words = {word for line in tabled for word in line[LONGEST:].split()}
    assert {str(number) for number in matrix.flat} <= words


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("predict MODEL --coverage 2", "coverage is 2.0: expected a share between 0 and 1"),
        ("predict MODEL --class-conditional", "is a kind of --coverage"),
        ("predict MODEL --abstain 7", "abstain is 7"),
        ("evaluate MODEL --coverage 0", "coverage is 0.0: expected a share between 0 and 1"),
        ("evaluate MODEL --class-conditional", "is a kind of --coverage"),
        ("evaluate MODEL --abstain -1", "--abstain -1.0: expected a confidence"),
        ("evaluate MODEL --confusion x.doc", "x.doc: expected the name of a picture"),
        ("evaluate MODEL --reliability x", "x: expected the name of a picture"),
    ],
)
def test_mistakes_are_one_sentence(run, folder, arguments, sentence):  # noqa: F811
    arguments = [str(folder) if part == "MODEL" else part for part in arguments.split()]
    assert_sentence(run(*arguments), sentence)
