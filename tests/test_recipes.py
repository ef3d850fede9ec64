"""The recipes against the table of the authors' hyper-parameters, row by row."""

import pytest

from deepgat.errors import UserError
from deepgat.models import GCNII, SYSTEMS, GATConfig
from deepgat.training.recipes import recipe
from deepgat.training.settings import TrainSettings

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
    system, settings, training = recipe(model, preset="authors", score=score, dataset=dataset)
    assert (system, settings.score) == (model, score)
    assert (training.lr, training.weight_decay) == (lr, weight_decay)
    assert (settings.dropout, settings.hidden_channels, settings.norm) == (dropout, hidden, norm)
    if delta is not None:
        assert settings.delta == delta
    if dataset != "ppi":
        assert (settings.heads, settings.output_heads) == (8, 1)
        assert settings.attention_dropout == 0.6
        assert settings.residual == "none"
        assert training.monitor == "val-loss"
    assert (training.patience, training.epochs) == (100, 10_000)


@pytest.mark.parametrize("row", AUTHORS, ids=lambda row: " ".join(row[:3]))
def test_the_authors_wiring_goes_with_every_row(row):
    settings = recipe(row[0], preset="authors", score=row[1], dataset=row[2]).settings
    if row[0] == "deepgat":  # GAT sees no labels and predicts nothing in its layers
        assert settings.label_input == "layer"
        assert settings.first_labels == "neighbor-counts"
        assert settings.loss_layers == "from-0"
        assert settings.class_activation == "softmax"
    assert settings.sd_scale == "sqrt-output-width"
    assert settings.bias
    assert not settings.output_activation


@pytest.mark.parametrize("dataset", ["ppi", "ppi-rebuilt"])
@pytest.mark.parametrize("score", ["dp", "sd"])
@pytest.mark.parametrize("model", ["deepgat", "gat"])
def test_ppi_has_a_linear_skip_no_dropout_and_stops_on_training_loss(model, score, dataset):
    _, settings, training = recipe(model, preset="authors", score=score, dataset=dataset)
    assert settings.residual == "linear"
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
    original = recipe(model, preset="authors", score=score, dataset=dataset)
    stand_in = recipe(model, preset="authors", score=score, dataset=STAND_INS[dataset])
    assert stand_in == original


@pytest.mark.parametrize("dataset", ["cs", "physics", "flickr", "ppi"])
def test_the_oracle_has_the_values_of_deepgat(dataset):
    oracle = recipe("oracle", preset="authors", score="sum", dataset=dataset)
    deepgat = recipe("deepgat", preset="authors", score="dp", dataset=dataset)
    assert oracle.training == deepgat.training
    names = ("hidden_channels", "heads", "dropout", "norm", "delta", "residual")
    for name in (*names, "attention_dropout"):
        assert getattr(oracle.settings, name) == getattr(deepgat.settings, name), name


@pytest.mark.parametrize("dataset", [None, "cora", "digits"])
def test_datasets_the_authors_did_not_tune_take_one_default(dataset):
    _, settings, training = recipe("deepgat", preset="authors", dataset=dataset)
    assert (settings.dropout, settings.hidden_channels, settings.norm) == (0.6, 8, "layer")
    assert training.lr == 0.05
    assert training.monitor == "val-loss"
    _, settings, training = recipe("gat", preset="authors", dataset=dataset)
    assert (training.lr, training.weight_decay, settings.hidden_channels) == (0.005, 5e-4, 8)


PAPER_SCORES = {"deepgat": ("dp", "sd"), "gat": ("ad", "dp", "sd"), "oracle": ("sum", "softmax")}


@pytest.mark.parametrize("dataset", [None, "cs", "physics", "flickr", "ppi", "cora"])
def test_the_paper_preset_is_one_setting_for_every_dataset(dataset):
    assert set(PAPER_SCORES) == {name for name, system in SYSTEMS.items() if system.presets}
    for model, scores in PAPER_SCORES.items():
        for score in scores:
            made = recipe(model, preset="paper", score=score, dataset=dataset)
            assert made == recipe(model, preset="paper", score=score)
            assert made.training.monitor == "val-loss"
            assert model == "gat" or made.settings.label_input == "prediction"
            assert made.settings.residual == "none"


def test_the_first_preset_is_the_default():
    assert recipe("deepgat") == recipe("deepgat", preset="paper")
    assert recipe("oracle") == recipe("oracle", preset="paper")
    published = recipe("gat")
    assert published == recipe("gat", preset="published")
    assert published.settings == GATConfig()
    assert (published.settings.score, published.training.lr) == ("ad", 0.005)


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_a_given_value_wins_over_every_preset(preset):
    made = recipe(
        "deepgat",
        preset=preset,
        dataset="ppi",
        training={"lr": 0.5, "monitor": "val-f1", "epochs": 7},
        num_layers=9,
        hidden_channels=3,
        heads=2,
        dropout=0.1,
        norm="none",
        residual="identity",
        attention_dropout=0.25,
    )
    assert (made.training.lr, made.training.monitor, made.training.epochs) == (0.5, "val-f1", 7)
    settings = made.settings
    assert (settings.num_layers, settings.hidden_channels, settings.heads) == (9, 3, 2)
    assert (settings.dropout, settings.attention_dropout) == (0.1, 0.25)
    assert (settings.norm, settings.residual) == ("none", "identity")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"preset": "author"}, "unknown preset of deepgat 'author': did you mean 'authors'"),
        ({"model": "deep-gat"}, "unknown model 'deep-gat': did you mean 'deepgat'"),
        ({"score": "ad"}, "unknown score 'ad': .*choose one of dp, sd"),
        ({"num_layer": 3}, "unknown setting of deepgat 'num_layer': did you mean 'num_layers'"),
        ({"training": {"epoch": 3}}, "unknown training setting 'epoch': did you mean 'epochs'"),
        ({"training": {"lr": -1.0}}, "lr is -1.0"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"model": "gcn"}, "gcn has no presets: leave preset .* out"),
    ],
)
@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_unknown_names_are_refused(preset, arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        recipe(**{"model": "deepgat", "preset": preset} | arguments)


def test_naming_a_decay_changes_nothing_else():
    assert recipe("deep").training.decay_nodes == 1500
    assert recipe("deep", training={"weight_decay": 0.1}).training.decay_nodes == 1500
    named = recipe("deep", training={"weight_decay_conv": 0.02}).training
    assert (named.weight_decay_conv, named.decay_nodes) == (0.02, 1500)
    usual = recipe("deep").training
    assert recipe("deep", training={"weight_decay_conv": usual.weight_decay_conv}).training == usual
    both = recipe("deep", training={"weight_decay_conv": 0.02, "decay_nodes": 300}).training
    assert (both.weight_decay_conv, both.decay_nodes) == (0.02, 300)


@pytest.mark.parametrize("named", [{}, {"weight_decay": 0.1}])
def test_the_decay_of_class_heads_depends_on_the_nodes(named):
    training = recipe("deep", training=named).training
    assert training.decay_nodes_heads == 3500
    assert recipe("deep", training={"decay_nodes_heads": 7}).training.decay_nodes_heads == 7


def test_the_preset_none_leaves_everything_else_at_its_default():
    """What deepgat tune writes: it names every setting itself."""
    system, settings, training = recipe("gcnii", preset="none", num_layers=3, training={"lr": 0.5})
    assert (system, settings) == ("gcnii", GCNII.Config(num_layers=3))
    assert training == TrainSettings(lr=0.5)
