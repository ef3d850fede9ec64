"""Deep with given classes in its attention: which are wrong, and that they stay the same.

What the network computes is compared with its transcription in ``test_systems.py``.
"""

import math

import pytest
import torch
from torch_geometric.data import Data

import deepgat
from deepgat.errors import UserError
from deepgat.models import Deep, DeepOracle
from deepgat.models.chunked import Chunks
from deepgat.nn.scores import OracleScore
from deepgat.ops import Neighbors
from deepgat.training.portfolio import MEMBERS
from deepgat.training.recipes import recipe
from deepgat.training.run import train_once
from tiny import tiny_dataset, tiny_labels

from graphs import random_edges

FEATURES, CLASSES, NODES = 6, 5, 20_000
QUICK = {"epochs": 3, "device": "cpu"}


def made(right: float, seed: int = 0, **settings) -> DeepOracle:
    torch.manual_seed(seed)
    sizes = {"hidden_channels": 4, "num_layers": 5, **settings}
    return DeepOracle(FEATURES, out_channels=CLASSES, right=right, **sizes)


@pytest.mark.parametrize("right", [0.0, 0.5, 0.9, 1.0])
def test_a_share_p_of_the_classes_is_right(right):
    y = torch.randint(CLASSES, (NODES,))
    shown = made(right).shown(y)
    off = abs(float((shown == y).double().mean()) - right)
    assert off <= 4 * math.sqrt(right * (1 - right) / NODES)
    assert int(shown.min()) >= 0
    assert int(shown.max()) < CLASSES
    wrong = shown != y
    if right < 1:  # every other class equally often
        steps = torch.bincount((shown - y)[wrong] % CLASSES, minlength=CLASSES)[1:].double()
        expected = int(wrong.sum()) / (CLASSES - 1)
        assert float(((steps - expected) ** 2 / expected).sum()) < 20  # χ², 3 degrees: p = 2e-4


def test_nodes_without_a_label_stay_without():
    y = torch.full((500,), -1)
    assert torch.equal(made(0.0).shown(y), y)


def test_two_classes_have_one_other():
    torch.manual_seed(0)
    y = torch.randint(2, (50,))
    assert torch.equal(DeepOracle(FEATURES, 4, 5, 2, right=0.0).shown(y), 1 - y)


def test_the_wrong_nodes_follow_from_the_seed():
    y = torch.randint(CLASSES, (NODES,))
    first = made(0.7).shown(y)
    assert torch.equal(made(0.7).shown(y), first)
    other = made(0.7, seed=1).shown(y)
    both = float(((first != y) & (other != y)).double().mean())
    assert both == pytest.approx(0.09, abs=0.01)  # independent: .3 · .3
    fewer = made(0.9).shown(y) != y
    assert bool((first != y)[fewer].all())  # who is wrong at a higher p is wrong at a lower one


@pytest.fixture
def seen(monkeypatch):
    """The classes that every attending layer compared, in order."""
    found = []
    forward = OracleScore.forward

    def watched(self, inputs):
        found.append(inputs.labels.clone())
        return forward(self, inputs)

    monkeypatch.setattr(OracleScore, "forward", watched)
    return found


def test_one_run_shows_the_same_classes_in_all_layers_epochs_and_evaluations(seen):
    data = tiny_dataset()
    plan = recipe("deep-oracle", num_layers=6, right=0.6, training=QUICK)
    run = train_once(data, plan, 3)
    assert len(seen) > 3 * QUICK["epochs"]  # layers 4, 5 and 6
    assert all(torch.equal(each, seen[0]) for each in seen)
    assert 0 < int((seen[0] != data.graph.y).sum()) < 60
    kept = seen[0]
    train_once(data, plan, 4)
    assert not torch.equal(seen[-1], kept)
    assert torch.equal(run.model.shown(data.graph.y), kept)


def test_a_saved_model_remembers_who_was_wrong(tmp_path):
    data = tiny_dataset()
    model = deepgat.fit(data, "deep-oracle", num_layers=5, right=0.6, training=QUICK)
    model.save(tmp_path / "model")
    again = deepgat.Model.load(tmp_path / "model")
    y = data.graph.y
    assert not torch.equal(again.network.shown(y), y)
    assert torch.equal(again.network.shown(y), model.network.shown(y))
    assert torch.equal(again.outputs(data).logits, model.outputs(data).logits)


def test_chunks_of_the_graph_show_the_same_classes():
    n = 40
    model = made(0.5, attention_from=1).eval()
    x, y = torch.randn(n, FEATURES), torch.randint(CLASSES, (n,))
    near = Neighbors.from_edge_index(random_edges(n, 90), n)
    with torch.no_grad():
        whole = model.run(x, near, labels=y).logits
        parts = Chunks(x, near, 7).logits(model, None, y)
    torch.testing.assert_close(parts, whole)


def test_without_class_attention_it_is_deep():
    settings = {"sharpness": 0.0, "attention_from": 1}
    oracle, deep = made(0.5, **settings).eval(), Deep(FEATURES, 4, 5, CLASSES, **settings).eval()
    weights = oracle.state_dict()
    del weights["seed"]
    deep.load_state_dict(weights)
    x, edge_index, y = torch.randn(9, FEATURES), random_edges(9, 14), torch.arange(9) % CLASSES
    torch.testing.assert_close(oracle(x, edge_index, labels=y), deep(x, edge_index))


def test_it_begins_with_the_weights_of_deep():
    torch.manual_seed(0)
    deep = Deep(FEATURES, 4, 5, CLASSES)
    oracle = made(0.5).state_dict()
    for name, weight in deep.state_dict().items():
        assert torch.equal(weight, oracle[name])


def test_better_classes_are_worth_something():
    data = tiny_dataset(300)
    found = {}
    for right in (0.0, 1.0):
        plan = recipe("deep-oracle", num_layers=5, right=right, training={**QUICK, "epochs": 40})
        found[right] = train_once(data, plan, 0).evaluation.micro_f1["test"]
    assert found[1.0] > found[0.0]


def train(right, data, training):
    plan = recipe("deep-oracle", right=right, num_layers=5, training={**QUICK, **training})
    return train_once(data, plan)


@pytest.mark.parametrize(
    ("right", "data", "training", "sentence"),
    [
        (1.5, tiny_dataset, {}, "right is 1.5: expected 1 or less"),
        (-0.5, tiny_dataset, {}, "right is -0.5: expected 0 or more"),
        (0.5, tiny_labels, {"self_training": 0.0}, "wrong classes need one class per node"),
        (
            0.5,
            tiny_dataset,
            {"batches": "clusters", "clusters": 4, "self_training": 0.0},
            "batches=clusters, but with right below 1 which nodes are wrong depends on their "
            "numbers in the whole graph: set batches=none",
        ),
    ],
)
def test_what_is_refused(right, data, training, sentence):
    with pytest.raises(UserError, match=sentence):
        train(right, data(), training)


def test_mini_batches_of_true_classes_are_fine():
    batches = {"batches": "clusters", "clusters": 4, "self_training": 0.0}
    assert train(1.0, tiny_dataset(), batches).fitted.history


def test_it_predicts_nothing(tmp_path):
    data = tiny_dataset()
    model = deepgat.fit(data, "deep-oracle", num_layers=5, training=QUICK)
    with pytest.raises(UserError, match="the oracle must be shown every label"):
        model.predict(nodes=[1])
    with pytest.raises(UserError, match="cannot predict any"):
        model.predict(Data(x=data.graph.x, edge_index=data.graph.edge_index))
    with pytest.raises(UserError, match="reads the true label of every node"):
        model.export(tmp_path / "model.pt2")
    assert "every label" in model.network.graph_wide
    assert "deep-oracle" not in {member.system for member in MEMBERS}
