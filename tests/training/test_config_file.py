"""Settings in files: every shipped one loads, builds and trains; mistakes are told."""

from dataclasses import replace

import pytest

from deepgat.data import list_datasets, load_graph, parse_split
from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError
from deepgat.nn import SYSTEMS
from deepgat.nn.presets import PRESETS, resolve
from deepgat.nn.settings import SCORES
from deepgat.nn.systems import LABEL_PROPAGATION
from deepgat.training.config_file import read_config, shipped
from deepgat.training.run import train_once
from tiny import tiny_dataset

NAMES = list(shipped())
TRAINED = [name for name in NAMES if read_config(name).system != LABEL_PROPAGATION]


@pytest.mark.parametrize("name", TRAINED)
def test_every_shipped_setting_trains(name):
    """With its own layers, widths and dropout up to a depth that takes no time."""
    config = read_config(name)
    recipe = config.recipe()
    few = replace(recipe.training, epochs=2, device="cpu")
    model = replace(recipe.model, layers=min(recipe.model.layers, 5))
    run = train_once(tiny_dataset(), recipe._replace(model=model, training=few))
    assert 0 <= run.evaluation.micro_f1["test"] <= 1


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_setting_names_a_dataset_and_a_split_there_is(name):
    config = read_config(name)
    assert find_entry(config.dataset).key == config.dataset
    assert str(parse_split(config.split)) == config.split
    assert config.about.endswith(".")
    assert name.startswith(config.system)
    assert name.endswith(config.dataset)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_the_datasets_of_the_shipped_settings_load_with_their_splits(name):
    config = read_config(name)
    if config.dataset not in {listing.key for listing in list_datasets() if listing.at_hand}:
        pytest.skip(f"{config.dataset} is not among the datasets at hand")
    data = load_graph(config.dataset, config.split)
    for part in ("train_mask", "val_mask", "test_mask"):
        assert any(graph[part].any() for graph in data.graphs), part


def test_every_system_is_listed_once_and_has_a_shipped_setting():
    names = [system.name for system in SYSTEMS]
    assert len(names) == len(set(names))
    assert set(names) == {*SCORES, *PRESETS, LABEL_PROPAGATION} - {"paper", "authors", "standard"}
    assert {read_config(name).system for name in NAMES} == set(names)
    for name in names:
        assert name == LABEL_PROPAGATION or resolve(name)[0] in SCORES


def test_gcnii_is_shipped_as_published():
    """The published command lines: layers, width, θ, dropout, both weight decays."""
    published = {
        "gcnii-cora": (64, 64, 0.5, 0.6, 0.01, 5e-4),
        "gcnii-citeseer": (32, 256, 0.6, 0.7, 0.01, 5e-4),
        "gcnii-pubmed": (16, 256, 0.4, 0.5, 5e-4, 5e-4),
    }
    for name, expected in published.items():
        model, training = read_config(name).recipe()
        found = (model.layers, model.hidden * model.heads, model.identity_map, model.dropout)
        assert (*found, training.weight_decay_conv, training.weight_decay) == expected
        assert model.initial_residual == 0.1
        assert (training.lr, training.patience, training.epochs) == (0.01, 100, 1500)


def test_a_file_says_what_the_preset_does_not(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'preset = "g2"\n[data]\ndataset = "digits"\n'
        '[model]\nmodel = "gat"\nlayers = 3\n[training]\nlr = 0.5\nseed = 4\n'
    )
    config = read_config(path)
    model, training = config.recipe()
    assert (config.dataset, config.split, config.preset) == ("digits", None, "g2")
    assert (model.model, model.score, model.layers, model.gate_power) == ("gat", "ad", 3, 2.5)
    assert (training.lr, training.seed, training.weight_decay) == (0.5, 4, 0.01)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("preset = ", "is not a TOML file"),
        ("[data]\n", "names no dataset"),
        ("preset = 3\n[data]\ndataset = 'cora'\n", "preset is 3: expected a text"),
        ("[date]\ndataset = 'cora'\n", "did you mean 'data'"),
        ("data = 'cora'\n", "expected a section, [data]"),
        ("[data]\nname = 'cora'\n", "choose one of dataset, read, split"),
        ("[data]\ndataset = 7\n", "dataset in [data] is 7: expected a text"),
    ],
)
def test_a_wrong_file_is_told_with_its_name(tmp_path, text, sentence):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as told:
        read_config(path)
    assert str(path) in str(told.value)
    assert sentence in str(told.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[data]\ndataset = 'cora'\n[model]\nlayer = 2\n", "did you mean 'layers'"),
        ("[data]\ndataset = 'cora'\n[training]\nrate = 2\n", "unknown training setting 'rate'"),
        ("preset = 'gcni'\n[data]\ndataset = 'cora'\n", "did you mean 'gcnii'"),
        ("[data]\ndataset = 'cora'\n[training]\nlr = 'fast'\n", "lr is 'fast'"),
    ],
)
def test_wrong_settings_in_a_file_are_told(tmp_path, text, sentence):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_config(path).recipe()


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(UserError, match="did you mean 'gcnii-cora'"):
        read_config("gcnii-coras")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path / "folder")
