"""The registry: small configurations that explain themselves, one default, one file per system."""

import doctest
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
import torch

import deepgat.models.deepgat
import deepgat.nn.attention
from deepgat import models
from deepgat.errors import UserError
from deepgat.models import SYSTEMS, Network, build_network, find_system
from deepgat.models.config import Config
from deepgat.models.registry import DEFAULT, LABEL_PROPAGATION, check_size, estimate_parameters
from deepgat.training.recipes import recipe
from deepgat.training.settings import TrainSettings

from graphs import random_edges

TRAINED = [name for name in SYSTEMS if name != LABEL_PROPAGATION]
FILES = Path(models.__file__).parent
SHARED = {
    "__init__", "chunked", "config", "convolutions", "field", "network", "outputs", "registry",
}  # fmt: skip
OF_SYSTEMS = sorted(path.stem for path in FILES.glob("*.py") if path.stem not in SHARED)


@pytest.mark.parametrize("system", SYSTEMS)
def test_configurations_are_small_and_explain_every_field(system):
    config = SYSTEMS[system].config
    assert 1 <= len(fields(config)) <= 20
    for field in fields(config):
        meaning, options = field.metadata["meaning"], field.metadata["options"]
        assert len(meaning.split()) >= 2, field.name
        assert options is None or getattr(config, field.name) in options, field.name
        assert field.metadata["kind"] in (int, float, str, bool), field.name


@pytest.mark.parametrize("system", SYSTEMS)
def test_entries_say_what_a_system_is(system):
    entry = SYSTEMS[system]
    assert entry.name == system
    assert entry.equation
    assert entry.paper
    assert entry.network.__doc__
    assert entry.network.Config.__doc__
    TrainSettings(**entry.training)
    for preset in entry.presets.values():
        entry.config.with_changes(preset)


def labels_for(model, y):
    return y if model.needs_labels else None


@pytest.mark.parametrize("system", TRAINED)
def test_the_defaults_of_a_configuration_build_and_run(system):
    """Those of the network, and those of the system, which may depart from them."""
    x, edge_index, y = torch.randn(7, 5), random_edges(7, 9), torch.arange(7) % 3
    network = SYSTEMS[system].network
    for config in (network.Config(), SYSTEMS[system].config):
        model = build_network(system, config, 5, 3)
        assert type(model) is network
        assert model.config == config
        logits = model(x, edge_index, labels=labels_for(model, y))
        assert logits.shape == (7, 3)
        assert logits.isfinite().all()


@pytest.mark.parametrize("system", TRAINED)
def test_naming_a_default_changes_no_weight(system):
    config = SYSTEMS[system].config
    sizes = {"hidden_channels", "num_layers"}
    others = {name: value for name, value in config.to_dict().items() if name not in sizes}
    network, found = SYSTEMS[system].network, []
    left_out = {n: v for n, v in others.items() if v != getattr(network.Config(), n)}
    for settings in (left_out, others):
        torch.manual_seed(0)
        model = network(5, config.hidden_channels, config.num_layers, 3, **settings)
        found.append(model.state_dict())
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_label_propagation_has_nothing_to_build():
    with pytest.raises(UserError, match="label-propagation has no weights"):
        build_network(LABEL_PROPAGATION, SYSTEMS[LABEL_PROPAGATION].config, 5, 3)


def test_the_default_system():
    assert recipe() == recipe(DEFAULT) == recipe("deep")
    assert find_system() is find_system("deep") is SYSTEMS["deep"]
    assert next(iter(SYSTEMS)) == "deep"


@pytest.mark.parametrize("system", SYSTEMS)
def test_naming_the_first_preset_or_a_default_changes_nothing(system):
    plain = recipe(system)
    presets = list(SYSTEMS[system].presets)
    if presets:
        assert recipe(system, preset=presets[0]) == plain
    assert recipe(system, **plain.settings.to_dict()) == plain
    assert recipe(system, training=plain.training.to_dict()) == plain


@pytest.mark.parametrize("system", SYSTEMS)
def test_unknown_settings_are_refused_with_the_nearest_name(system):
    with pytest.raises(UserError, match=f"setting of {system} 'num_layer'.* 'num_layers'"):
        recipe(system, num_layer=3)
    with pytest.raises(UserError, match="training setting 'epoch': did you mean 'epochs'"):
        recipe(system, training={"epoch": 3})
    if system != LABEL_PROPAGATION:
        name = SYSTEMS[system].network.__name__
        with pytest.raises(UserError, match=f"setting of {name} 'unit_feature'.*unit_features"):
            SYSTEMS[system].network(5, 8, 2, 3, unit_feature=True)


def test_unknown_names_are_refused_with_the_nearest_one():
    with pytest.raises(UserError, match="unknown model 'gcnni': did you mean 'gcnii'"):
        find_system("gcnni")
    with pytest.raises(UserError, match="preset of gat 'autors': did you mean 'authors'"):
        recipe("gat", preset="autors")
    with pytest.raises(UserError, match="sage has no presets"):
        recipe("sage", preset="paper")


def test_every_system_has_a_file_of_its_own():
    assert {entry.network.__module__.rsplit(".", 1)[1] for entry in SYSTEMS.values()} == {
        name for name in OF_SYSTEMS if name not in ("ensemble", "gin", "graph_classifier")
    }


@pytest.mark.parametrize("name", OF_SYSTEMS)
def test_a_system_can_be_read_in_one_sitting(name):
    assert 40 <= len((FILES / f"{name}.py").read_text().splitlines()) <= 185


@pytest.mark.parametrize("module", [deepgat.models.deepgat, deepgat.nn.attention])
def test_the_examples_of_the_documentation_run(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert not found.failed


def network_of(system: str, settings: Config) -> Network:
    return build_network(system, settings, 5, 3)


@pytest.mark.parametrize("depth", [1, 3, 12])
@pytest.mark.parametrize("system", TRAINED)
def test_parameters_are_counted_without_building(system, depth):
    before = torch.get_rng_state()
    many = [{"mode": "lstm"}, {"mode": "max"}] if system == "jk" else [{}]
    for more in many:
        settings = find_system(system).config.with_changes(
            {"num_layers": depth, "hidden_channels": 4, **more}
        )
        build = partial(network_of, system)
        counted = estimate_parameters(settings, build)
        assert torch.equal(torch.get_rng_state(), before)
        network = build(settings)
        assert counted == sum(tensor.numel() for tensor in network.state_dict().values())
        torch.set_rng_state(before)


@pytest.mark.parametrize("system", TRAINED)
def test_networks_beyond_memory_are_refused_before_they_are_built(system):
    for width in (10**9, 10**14):
        settings = find_system(system).config.with_changes({"hidden_channels": width})
        with pytest.raises(UserError, match=r"take .* GiB, but .* choose fewer or narrower layers"):
            check_size(settings, 5, 3, partial(network_of, system))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("num_layers", 10**5, "num_layers is 100000: expected 10,000 or less"),
        ("num_layers", 10**23, "num_layers is 1"),
        ("heads", 10**20, "heads is 100000000000000000000: expected 1,000,000,000,000,000 or less"),
        ("heads", 10**4000, "heads is too large: expected"),
    ],
)
def test_absurd_settings_are_refused(name, value, sentence):
    with pytest.raises(UserError, match=sentence):
        recipe("gat", **{name: value})


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_absurd_training_settings_are_refused(name):
    for value in (1e300, float("inf")):
        with pytest.raises(UserError, match=f"{name} is (too large|inf): expected"):
            TrainSettings(**{name: value})
