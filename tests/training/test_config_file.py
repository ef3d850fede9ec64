"""Settings in files: every shipped one loads, builds and trains; mistakes are told."""

from dataclasses import replace

import pytest

from deepgat.data import list_datasets, load_graph, parse_split
from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError
from deepgat.models import SYSTEMS
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.training.config_file import read_config, shipped
from deepgat.training.recipes import Recipe
from deepgat.training.run import train_once
from deepgat.training.settings import TrainSettings
from tiny import tiny_dataset

NAMES = list(shipped())
TRAINED = [name for name in NAMES if read_config(name).system != LABEL_PROPAGATION]


@pytest.mark.parametrize("name", TRAINED)
def test_every_shipped_setting_trains(name):
    """With its own layers, widths and dropout up to a depth that takes no time."""
    config = read_config(name)
    recipe = config.recipe()
    few = replace(recipe.training, epochs=2, device="cpu")
    settings = replace(recipe.settings, num_layers=min(recipe.settings.num_layers, 5))
    run = train_once(tiny_dataset(), recipe._replace(settings=settings, training=few))
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


def test_every_system_has_a_shipped_setting():
    assert all(system.name == name for name, system in SYSTEMS.items())
    assert {read_config(name).system for name in NAMES} == set(SYSTEMS)


def test_gcnii_is_shipped_as_published():
    """The published command lines: layers, width, θ, dropout, both weight decays."""
    published = {
        "gcnii-cora": (64, 64, 0.5, 0.6, 0.01, 5e-4),
        "gcnii-citeseer": (32, 256, 0.6, 0.7, 0.01, 5e-4),
        "gcnii-pubmed": (16, 256, 0.4, 0.5, 5e-4, 5e-4),
    }
    for name, expected in published.items():
        system, settings, training = read_config(name).recipe()
        assert system == "gcnii"
        found = (settings.num_layers, settings.hidden_channels, settings.theta, settings.dropout)
        assert (*found, training.weight_decay_conv, training.weight_decay) == expected
        assert settings.alpha == 0.1
        assert (training.lr, training.patience, training.epochs) == (0.01, 100, 1500)


def test_a_file_says_what_the_recipe_does_not(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'system = "g2"\n[data]\ndataset = "digits"\n'
        '[settings]\nconv = "gat"\nnum_layers = 3\n[training]\nlr = 0.5\nseed = 4\n'
    )
    config = read_config(path)
    system, settings, training = config.recipe()
    assert (config.dataset, config.split, config.preset) == ("digits", None, None)
    assert (system, settings.conv, settings.num_layers, settings.power) == ("g2", "gat", 3, 2.5)
    assert (training.lr, training.seed, training.weight_decay) == (0.5, 4, 0.01)


def test_a_file_names_a_preset_of_its_system(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('system = "deepgat"\npreset = "authors"\n[data]\ndataset = "physics"\n')
    _, settings, training = read_config(path).recipe()
    assert (settings.hidden_channels, settings.delta, training.lr) == (16, 0.6, 0.05)


def test_without_a_recipe_everything_else_has_its_default(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'system = "deep"\npreset = "none"\n[data]\ndataset = "cora"\n'
        "[settings]\ndropout = 0.1\n[training]\nlr = 0.5\n"
    )
    config = SYSTEMS["deep"].network.Config(dropout=0.1)
    assert read_config(path).recipe() == Recipe("deep", config, TrainSettings(lr=0.5))


def test_the_default_system_needs_no_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[data]\ndataset = "cora"\n')
    assert read_config(path).recipe().system == "deep"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("preset = ", "not a TOML text"),
        ("[data]\n", "names no dataset"),
        ("preset = 3\n[data]\ndataset = 'cora'\n", "preset is 3: expected a text"),
        ("[date]\ndataset = 'cora'\n", "did you mean 'data'"),
        ("system = 'gcni'\n[data]\ndataset = 'cora'\n", "did you mean 'gcnii'"),
        ("data = 'cora'\n", "expected a section, [data]"),
        ("[data]\nname = 'cora'\n", "choose one of content, dataset, read, split, undirected"),
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
        ("[data]\ndataset = 'cora'\n[settings]\nlayers = 2\n", "did you mean 'num_layers'"),
        ("[data]\ndataset = 'cora'\n[training]\nrate = 2\n", "unknown training setting 'rate'"),
        ("system = 'gat'\npreset = 'author'\n[data]\ndataset = 'cora'\n", "did you mean 'authors'"),
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
