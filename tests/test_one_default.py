"""Naming a default changes nothing: every way to train a graph gives the same model."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import deepgat
from deepgat import DeepGATClassifier, Run, load_graph, recipe
from deepgat.training.auto import train_auto
from deepgat.training.recipes import drop_unsuited_self_training
from deepgat.training.search import Request
from test_cli import run as command  # noqa: F401 - a fixture

EPOCHS = 2
TRAINING = {"epochs": EPOCHS, "device": "cpu"}


def fit(folder: Path, **chosen: object) -> Run:
    run = deepgat.fit(str(folder), training=TRAINING, **chosen).run
    assert run is not None
    return run


def classify(folder: Path, **chosen: object) -> Run:
    graph = load_graph(str(folder)).graph
    y = np.where(graph.train_mask | graph.val_mask, graph.y, -1)
    classifier = DeepGATClassifier(**chosen, epochs=EPOCHS, random_state=0, device="cpu")
    edges = {"edge_index": graph.edge_index, "edge_weight": graph.edge_weight}
    return classifier.fit(graph.x, y, validation=graph.val_mask, **edges).run_


WAYS: dict[str, Callable[[Path], Run]] = {
    "fit(G)": fit,
    'fit(G, "auto", quality="good")': lambda folder: fit(folder, model="auto", quality="good"),
    "DeepGATClassifier()": classify,
    'DeepGATClassifier("auto")': lambda folder: classify(folder, model="auto"),
}
"""Beside them ``deepgat train G``, which names it or does not."""


def assert_same(found: Run, expected: Run) -> None:
    assert found.card.system == expected.card.system
    assert found.card.settings == expected.card.settings
    assert found.card.training == expected.card.training
    assert found.fitted.history == expected.fitted.history
    assert torch.equal(found.evaluation.logits[0], expected.evaluation.logits[0])


def without_times(rows: list[dict]) -> list[dict]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_the_library_the_estimator_and_the_command_line(my_graph, command):  # noqa: F811
    expected = train_auto(load_graph(str(my_graph)), Request(training=TRAINING))
    tried = without_times(expected.search.leaderboard)
    for way, train in WAYS.items():
        found = train(my_graph)
        assert_same(found, expected)
        assert without_times(found.search.leaderboard) == tried, way
    for named in ((), ("--model", "auto", "--quality", "good")):
        options = ("--epochs", EPOCHS, "--device", "cpu", "--json")
        result = command("train", my_graph, *named, *options)
        assert result.code == 0
        (record,) = result.records
        wanted = json.loads(json.dumps(expected.record()))
        for name in ("system", "settings", "training", "micro_f1", "loss", "best_epoch", "split"):
            assert record[name] == wanted[name], name
        assert without_times(record["auto"]["leaderboard"]) == tried


@pytest.mark.parametrize("chosen", [{"model": "deep"}, {"num_layers": 16}])
def test_settings_without_a_model_are_those_of_deep(my_graph, command, chosen):  # noqa: F811
    data = load_graph(str(my_graph))
    plan = drop_unsuited_self_training(recipe("deep", training=TRAINING), data)
    assert recipe(training=TRAINING) == recipe("deep", training=TRAINING)
    expected = deepgat.train_once(data, plan)
    assert_same(fit(my_graph, **chosen), expected)
    assert_same(classify(my_graph, **chosen), expected)
    option = ("--model", "deep") if "model" in chosen else ("--layers", 16)
    options = ("--epochs", EPOCHS, "--device", "cpu", "--json")
    (record,) = command("train", my_graph, *option, *options).records
    assert record["system"] == "deep"
    assert record["loss"] == json.loads(json.dumps(expected.record()))["loss"]
    assert "auto" not in record
