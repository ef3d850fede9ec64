"""Naming a default changes nothing: every way to train a graph gives the same model."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

import deepgat
from deepgat import DeepGATClassifier, Recipe, Run, load_graph, recipe
from deepgat.training.recipes import drop_unsuited_self_training
from test_cli import run as command  # noqa: F401 - a fixture

EPOCHS = 2
TRAINING = {"epochs": EPOCHS, "device": "cpu"}


def fit(*model: str) -> Run:
    run = deepgat.fit("csbm", *model, training=TRAINING).run
    assert run is not None
    return run


def classify(*model: str) -> Run:
    graph = load_graph("csbm").graph
    y = np.where(graph.train_mask | graph.val_mask, graph.y, -1)
    classifier = DeepGATClassifier(*model, epochs=EPOCHS, random_state=0, device="cpu")
    return classifier.fit(graph.x, y, graph.edge_index, validation=graph.val_mask).run_


WAYS: dict[str, Callable[[], Run]] = {
    "fit(G)": fit,
    'fit(G, "deep")': lambda: fit("deep"),
    "DeepGATClassifier()": classify,
    'DeepGATClassifier("deep")': lambda: classify("deep"),
}
"""Beside them ``deepgat train G`` and ``deepgat train G --model deep``."""


@pytest.fixture(scope="module")
def expected() -> Run:
    """The recipe itself, trained."""
    data = load_graph("csbm")
    return deepgat.train_once(data, drop_unsuited_self_training(recipe(training=TRAINING), data))


def test_the_default_is_a_model_that_can_be_named():
    assert recipe() == recipe(None) == recipe("deep")
    assert recipe().system == "deep"


@pytest.mark.parametrize("way", WAYS)
def test_the_library_and_the_estimator(way, expected):
    found = WAYS[way]()
    assert recipe_of(found) == recipe_of(expected)
    assert found.fitted.history == expected.fitted.history
    assert torch.equal(found.evaluation.logits[0], expected.evaluation.logits[0])


def recipe_of(run: Run) -> Recipe:
    return Recipe(run.card.system, run.card.settings, run.card.training)


@pytest.mark.parametrize("named", [(), ("--model", "deep")])
def test_the_command_line(command, named, expected):  # noqa: F811
    options = ("--epochs", EPOCHS, "--device", "cpu", "--json")
    result = command("train", "csbm", *named, *options)
    assert result.code == 0
    (record,) = result.records
    wanted = json.loads(json.dumps(expected.record()))
    for name in ("system", "settings", "training", "micro_f1", "loss", "best_epoch", "split"):
        assert record[name] == wanted[name], name
