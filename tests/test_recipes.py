"""The recipes against the table of the authors' hyper-parameters, row by row."""

import pytest

from deepgat.errors import UserError
from deepgat.nn.settings import SCORES
from deepgat.training.recipes import recipe

# model, score, dataset: lr, weight decay, dropout, D, norm, δ (None: the model has no such loss)
AUTHORS = [
    ("deepgat", "dp", "cs", 0.05, 0.0, 0.6, 8, "layer", 0.4),
    ("deepgat", "sd", "cs", 0.05, 1e-3, 0.6, 8, "layer", 0.4),
    ("deepgat", "dp", "physics", 0.05, 1e-3, 0.0, 16, "layer", 0.6),
    ("deepgat", "sd", "physics", 0.05, 0.0, 0.6, 8, "layer", 0.2),
    ("deepgat", "dp", "flickr", 0.001, 0.0, 0.0, 32, "layer", 0.4),
    ("deepgat", "sd", "flickr", 0.01, 1e-4, 0.2, 16, "batch", 0.6),
    ("deepgat", "dp", "ppi", 0.001, 0.0, 0.0, 32, "layer", 0.6),
    ("deepgat", "sd", "ppi", 0.005, 0.0, 0.0, 32, "batch", 0.3),
    ("gat", "dp", "cs", 0.005, 1e-3, 0.8, 8, "layer", None),
    ("gat", "sd", "cs", 0.005, 5e-4, 0.8, 8, "layer", None),
    ("gat", "dp", "physics", 0.005, 1e-3, 0.8, 8, "layer", None),
    ("gat", "sd", "physics", 0.05, 1e-3, 0.6, 8, "layer", None),
    ("gat", "dp", "flickr", 0.01, 1e-3, 0.0, 8, "batch", None),
    ("gat", "sd", "flickr", 0.005, 1e-3, 0.0, 8, "batch", None),
    ("gat", "dp", "ppi", 0.001, 0.0, 0.0, 128, "layer", None),
    ("gat", "sd", "ppi", 0.001, 0.0, 0.0, 128, "batch", None),
]
STAND_INS = {"flickr": "flickr-aane", "ppi": "ppi-rebuilt"}


@pytest.mark.parametrize("row", AUTHORS, ids=lambda row: " ".join(row[:3]))
def test_the_authors_table(row):
    model, score, dataset, lr, weight_decay, dropout, hidden, norm, delta = row
    settings, training = recipe("authors", model, score=score, dataset=dataset)
    assert (settings.model, settings.score) == (model, score)
    assert (training.lr, training.weight_decay) == (lr, weight_decay)
    assert (settings.dropout, settings.hidden, settings.norm) == (dropout, hidden, norm)
    if delta is not None:
        assert settings.delta == delta
    if dataset != "ppi":
        assert (settings.heads, settings.output_heads) == (8, 1)
        assert settings.attention_dropout == 0.6
        assert settings.update == "plain"
        assert training.monitor == "val-loss"
    assert (training.patience, training.epochs) == (100, 10_000)


@pytest.mark.parametrize("row", AUTHORS, ids=lambda row: " ".join(row[:3]))
def test_the_authors_wiring_goes_with_every_row(row):
    settings, _ = recipe("authors", row[0], score=row[1], dataset=row[2])
    assert settings.label_input == "layer"
    assert settings.first_labels == "neighbor-counts"
    assert settings.loss_layers == "from-0"
    assert settings.sd_scale == "sqrt-output-width"
    assert settings.class_activation == "softmax"
    assert settings.bias
    assert not settings.output_activation


@pytest.mark.parametrize("dataset", ["ppi", "ppi-rebuilt"])
@pytest.mark.parametrize("score", ["dp", "sd"])
@pytest.mark.parametrize("model", ["deepgat", "gat"])
def test_ppi_has_a_linear_skip_no_dropout_and_stops_on_training_loss(model, score, dataset):
    settings, training = recipe("authors", model, score=score, dataset=dataset)
    assert settings.update == "linear-skip"
    assert settings.dropout == settings.attention_dropout == 0.0
    assert training.weight_decay == 0.0
    assert training.monitor == "train-loss"
    heads = (4, 6) if model == "gat" else (8, 1)
    assert (settings.heads, settings.output_heads) == heads


@pytest.mark.parametrize(
    "row", [row for row in AUTHORS if row[2] in STAND_INS], ids=lambda row: " ".join(row[:3])
)
def test_stand_ins_take_the_values_of_what_they_stand_for(row):
    model, score, dataset = row[:3]
    original = recipe("authors", model, score=score, dataset=dataset)
    assert recipe("authors", model, score=score, dataset=STAND_INS[dataset]) == original


@pytest.mark.parametrize("dataset", ["cs", "physics", "flickr", "ppi"])
def test_the_oracle_has_the_values_of_deepgat(dataset):
    oracle, training = recipe("authors", "oracle", score="sum", dataset=dataset)
    deepgat, expected = recipe("authors", "deepgat", score="dp", dataset=dataset)
    assert training == expected
    for name in ("hidden", "heads", "dropout", "norm", "delta", "update", "attention_dropout"):
        assert getattr(oracle, name) == getattr(deepgat, name), name


@pytest.mark.parametrize("dataset", [None, "cora", "digits"])
def test_datasets_the_authors_did_not_tune_take_one_default(dataset):
    settings, training = recipe("authors", "deepgat", dataset=dataset)
    assert (training.lr, settings.dropout, settings.hidden, settings.norm) == (
        0.05,
        0.6,
        8,
        "layer",
    )
    assert training.monitor == "val-loss"
    settings, training = recipe("authors", "gat", dataset=dataset)
    assert (training.lr, training.weight_decay, settings.hidden) == (0.005, 5e-4, 8)


@pytest.mark.parametrize("dataset", [None, "cs", "physics", "flickr", "ppi", "cora"])
def test_the_paper_preset_is_one_setting_for_every_dataset(dataset):
    for model, scores in SCORES.items():
        for score in scores:
            made = recipe("paper", model, score=score, dataset=dataset)
            assert made == recipe("paper", model, score=score)
            assert made.training.monitor == "val-loss"
            assert made.model.label_input == "prediction"
            assert made.model.update == ("linear-skip" if model == "sage" else "plain")


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_a_given_value_wins_over_every_preset(preset):
    made = recipe(
        preset,
        "deepgat",
        dataset="ppi",
        training={"lr": 0.5, "monitor": "val-f1", "epochs": 7},
        layers=9,
        hidden=3,
        heads=2,
        dropout=0.1,
        norm="none",
        update="residual",
        attention_dropout=0.25,
    )
    assert (made.training.lr, made.training.monitor, made.training.epochs) == (0.5, "val-f1", 7)
    settings = made.model
    assert (settings.layers, settings.hidden, settings.heads, settings.dropout) == (9, 3, 2, 0.1)
    assert (settings.norm, settings.update, settings.attention_dropout) == (
        "none",
        "residual",
        0.25,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"preset": "author"}, "unknown preset 'author': did you mean 'authors'"),
        ({"model": "deep-gat"}, "unknown model 'deep-gat': did you mean 'deepgat'"),
        ({"score": "ad"}, "unknown score for deepgat 'ad': .*choose one of dp, sd"),
        ({"layer": 3}, "unknown model setting 'layer': did you mean 'layers'"),
        ({"training": {"epoch": 3}}, "unknown training setting 'epoch': did you mean 'epochs'"),
        ({"training": {"lr": -1.0}}, "lr is -1.0"),
        ({"layers": 0}, "layers is 0"),
    ],
)
@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_unknown_names_are_refused(preset, arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        recipe(**{"preset": preset} | arguments)


def test_a_named_decay_is_the_same_on_all_graphs():
    assert recipe("deep").training.decay_nodes == 1500
    assert recipe("deep", training={"weight_decay": 0.1}).training.decay_nodes == 1500
    named = recipe("deep", training={"weight_decay_conv": 0.02}).training
    assert (named.weight_decay_conv, named.decay_nodes) == (0.02, 0)
    both = recipe("deep", training={"weight_decay_conv": 0.02, "decay_nodes": 300}).training
    assert (both.weight_decay_conv, both.decay_nodes) == (0.02, 300)


@pytest.mark.parametrize(
    ("named", "decay", "nodes"),
    [
        ({}, None, 3500),
        ({"weight_decay": 0.1}, None, 3500),  # theirs too
        ({"weight_decay_heads": 0.02}, 0.02, 0),  # by the step alone
        ({"weight_decay_heads": 0.02, "decay_nodes_heads": 7}, 0.02, 7),
    ],
)
def test_the_decay_of_class_heads(named, decay, nodes):
    training = recipe("deep", training=named).training
    assert (training.weight_decay_heads, training.decay_nodes_heads) == (decay, nodes)


def test_a_monitor_that_looks_for_no_temperature_leaves_targets_as_they_are():
    assert recipe("deep").training.calibrated_targets
    assert recipe("deep", training={"monitor": "calibrated-loss"}).training.calibrated_targets
    assert recipe("deep").training.target_temperature == 1.0
    for changed in ({"monitor": "val-loss"}, {"calibrated_targets": False}):
        training = recipe("deep", training=changed).training
        assert (training.calibrated_targets, training.target_temperature) == (False, 0.5)
    assert not recipe("gcnii", training={"monitor": "val-f1"}).training.target_temperature
    with pytest.raises(UserError, match="calibrated_targets is set"):
        recipe("deep", training={"monitor": "val-loss", "calibrated_targets": True})
