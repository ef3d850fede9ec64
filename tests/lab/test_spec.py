"""A run as one value: what it accepts, how it is written, and what its signature depends on."""

import json
import tomllib
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepgat.data.catalogue.entries import ENTRIES
from deepgat.errors import UserError
from deepgat.lab.experiments import AnalysisSpec, DataSpec, RunSpec, read_specs, spec
from deepgat.lab.experiments.measures import MEASURES
from deepgat.lab.experiments.spec import KEEP, OF_OWN_GRAPHS, SECTIONS, signature_of, specs_of
from deepgat.models import SYSTEMS, DeepGAT
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.nn.norms import NORMS
from deepgat.training.config_file import parse_config
from deepgat.training.recipes import recipe
from deepgat.training.settings import BATCHES, MONITORS, TrainSettings
from deepgat.training.values import to_toml

SHARES = st.floats(0, 1, exclude_max=True)
VALUES = {
    "num_layers": st.integers(1, 200),
    "dropout": SHARES,
    "alpha": SHARES,
    "norm": st.sampled_from(sorted(NORMS)),
    "score": st.sampled_from(["dp", "sd"]),
    "bias": st.booleans(),
}
"""Values of settings that several systems have."""
positive = st.floats(1e-12, 1e6, allow_nan=False)
systems = st.sampled_from([name for name in SYSTEMS if name != LABEL_PROPAGATION])


def specs_in(text: str) -> list[RunSpec]:
    return specs_of(parse_config(text))


def spec_in(text: str) -> RunSpec:
    (one,) = specs_in(text)
    return one


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    system = draw(systems)
    config = SYSTEMS[system].config
    own = config.kinds().keys() & VALUES.keys() - ({"score"} if system == "oracle" else set())
    return RunSpec(
        DataSpec(
            draw(st.sampled_from(sorted(ENTRIES))),
            draw(st.sampled_from(["", "random", "random:7", "authors", "fractions:0.5/.25:3"])),
            draw(st.booleans()),
        ),
        system,
        config.with_changes({name: draw(VALUES[name]) for name in sorted(own)}),
        TrainSettings(
            lr=draw(positive),
            weight_decay=draw(positive),
            monitor=draw(st.sampled_from(MONITORS)),
            seed=draw(st.integers(0, 2**63 - 1)),
            batches=draw(st.sampled_from(BATCHES)),
            clusters=draw(st.sampled_from([32, 33])),
            fan_out=draw(st.sampled_from(["10", "3,2"])),
        ),
        AnalysisSpec(
            tuple(draw(st.lists(st.sampled_from(sorted(MEASURES))))),
            draw(st.sampled_from(KEEP)),
            draw(st.sampled_from(KEEP)),
        ),
    )


@given(specs())
def test_toml_and_back(one):
    text = one.to_toml()
    again = spec_in(text)
    assert again == one
    assert again.signature == one.signature
    assert again.to_toml() == text
    assert RunSpec.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@given(specs(), specs())
def test_equal_signatures_mean_equal_specs(one, other):
    assert (one.signature == other.signature) == (one == other)


@given(st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans())
def test_every_plain_value_survives_toml(value):
    try:
        text = to_toml({"table": {"name": value, "many": [value, value]}})
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate is no text
        return
    assert tomllib.loads(text) == {"table": {"name": value, "many": [value, value]}}


def plain_spec(dataset: str = "csbm", **training) -> RunSpec:
    return RunSpec(DataSpec(dataset), "deepgat", DeepGAT.Config(), TrainSettings(**training))


def test_every_setting_counts(monkeypatch):
    """The signature is over the whole spec: changing any one value changes it."""
    one = plain_spec(batches="clusters")
    plain = one.to_dict()
    assert set(plain) == set(SECTIONS)
    signature = signature_of(plain)
    assert signature == one.signature
    assert signature_of({**plain, "system": "gat"}) != one.signature
    for section in set(SECTIONS) - {"system"}:
        for name, value in plain[section].items():
            changed = {**plain, section: {**plain[section], name: f"not {value!r}"}}
            assert signature_of(changed) != one.signature, name
            without = {key: item for key, item in plain[section].items() if key != name}
            assert signature_of({**plain, section: without}) != one.signature, name
    monkeypatch.setattr(spec, "SCHEMA", spec.SCHEMA + 1)
    assert signature_of(plain) != signature


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != LABEL_PROPAGATION])
def test_every_field_is_written(system):
    config = SYSTEMS[system].config
    one = RunSpec(DataSpec("csbm"), system, config, TrainSettings())
    plain = one.to_dict()
    kinds = {"data": DataSpec, "settings": config, "training": TrainSettings}
    for section, kind in (kinds | {"analysis": AnalysisSpec}).items():
        named = {item.name for item in fields(kind)} - {"device", *OF_OWN_GRAPHS}
        assert set(plain[section]) == named
    assert plain["system"] == system
    assert RunSpec.from_dict(plain) == one
    weighted = replace(one, training=TrainSettings(class_weight={"a": 2}))
    assert weighted.signature != one.signature
    assert RunSpec.from_dict(weighted.to_dict()) == weighted
    if system == "deep":
        other = replace(one, settings=replace(config, layer_dropout=0.0, node_dropout=0.5))
        assert other.signature != one.signature
        assert RunSpec.from_dict(other.to_dict()) == other


def test_the_device_is_no_part_of_a_run():
    one = plain_spec()
    elsewhere = plain_spec(device="cpu")
    assert elsewhere == one
    assert elsewhere.signature == one.signature
    with pytest.raises(UserError, match=r"training\.device is no part of a run.*--device"):
        spec_in('[data]\ndataset = "csbm"\n[training]\ndevice = "cpu"')


def test_one_number_has_one_signature():
    one = spec_in('[data]\ndataset = "csbm"\n[training]\nlr = 1')
    other = spec_in('[data]\ndataset = "CSBM"\nsplit = "authors"\n[training]\nlr = 1.0')
    assert one.signature == other.signature
    assert replace(one, training=replace(one.training, lr=1)) == one


@given(systems, st.sampled_from([1, 16, 17, 64, 128]))
def test_a_spec_has_its_recipe_as_it_is(system, layers):
    plan = recipe(system, dataset="pubmed", num_layers=layers)
    one = RunSpec.of(DataSpec("pubmed"), plan)
    assert one.recipe == plan
    assert (one.system, one.layers, one.seed) == (system, layers, 0)
    assert RunSpec.of(one.data, one.recipe) == one


def test_what_is_not_trained_has_no_runs():
    with pytest.raises(UserError, match=r"label-propagation is not trained.*deepgat train --model"):
        read_specs("label-propagation-cora")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"\[data\] names no dataset: expected, for example, dataset = \"cora\""),
        ("[data]", r"\[data\] names no dataset"),
        ("[dta]", "unknown section 'dta': did you mean 'data'?"),
        ("data = 3", r"data is 3: expected a section, \[data\]"),
        ("@splt = 'public'", r"unknown setting of \[data\] 'splt': did you mean 'split'\?"),
        ('[data]\ndataset = "coraa"', "unknown dataset 'coraa': did you mean 'cora'?"),
        ("[data]\ndataset = 3", r"dataset in \[data\] is 3: expected a text"),
        ("@split = 'rnd'", "unknown split 'rnd'"),
        (
            "@[settings]\nnum_layer = 3",
            "unknown setting 'num_layer': did you mean 'num_layers'?",
        ),
        ("@[settings]\nnum_layers = 3.5", r"settings\.num_layers is 3\.5: expected a whole number"),
        (
            "@[settings]\nnum_layers = true",
            r"settings\.num_layers is True: expected a whole number",
        ),
        ("GAT@[settings]\nbias = 1", r"settings\.bias is 1: expected true or false"),
        ("GAT@[settings]\nnorm = 'layers'", "unknown norm 'layers': did you mean 'layer'?"),
        ("@[training]\nlr = 'fast'", r"training\.lr is 'fast': expected a number"),
        ("@[training]\nlr = inf", r"training\.lr is not finite: expected a number"),
        ("@[training]\nlr = 0", r"lr is 0\.0: expected a number above 0"),
        ("@[training]\nepoch = 3", "unknown training setting 'epoch': did you mean 'epochs'?"),
        ("@[training]\nepochs = 2012-12-21", r"training\.epochs is .*: expected a whole number"),
        ("@[training]\nseed = -1", r"training\.seed is -1: expected 0 or more"),
        ("@[analysis]\nmeasures = ['nearest']", "unknown measure 'nearest'"),
        ("@[analysis]\nmeasures = 'all'", r"analysis\.measures is 'all': expected a list"),
        ("@[analysis]\nattention = 'al'", "unknown choice for attention 'al': did you mean 'all'?"),
        ("@[settings\n", "not a TOML text"),
        ("preset = 'papr'\nGAT@", "unknown preset of gat 'papr': did you mean 'paper'?"),
        ("preset = 'paper'\n@", "deep has no presets: leave preset 'paper' out"),
        ("system = 'gta'\n@", "unknown system 'gta': did you mean 'gat'?"),
        ("GAT@[settings]\nalpha = 0.1", "unknown setting 'alpha': choose one of"),
        ("preset = 3\n@", "preset is 3: expected a text"),
        ("GAT@[settings]\nscore = []", r"settings\.score is \[\]: expected a text"),
        ("sweep = 3\n@", r"sweep is 3: expected a section"),
        ("@[sweep]\nseed = [1]", "unknown setting in .sweep. 'seed'"),
        ("@[sweep]\n'training.sed' = [1]", "unknown training setting 'sed': did you mean 'seed'?"),
        ("@[sweep]\ntraining.seed = 1", "expected a list of values"),
        ("@[sweep]\ntraining.seed = []", "expected a list of values"),
        (
            "@[sweep]\n" + "\n".join(f"training.x{i} = {list(range(1000))}" for i in range(3)),
            r".sweep. describes 1,000,000,000 runs: expected at most 100,000; leave values out",
        ),
        ("@[sweep]\ntraining.seed = ['a']", r"training\.seed is 'a': expected a whole number"),
        ("@[sweep]\nanalysis.attention = [3]", r"analysis\.attention is 3: expected a text"),
    ],
)
def test_mistakes_are_told_in_a_sentence(text, sentence, tmp_path):
    path = tmp_path / "runs.toml"
    path.write_text(
        text.replace("GAT", "system = 'gat'\n").replace("@", '[data]\ndataset = "csbm"\n')
    )
    with pytest.raises(UserError, match=sentence) as raised:
        read_specs(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("bytes", "."):
        with pytest.raises(UserError, match="cannot be read: expected a TOML file"):
            read_specs(tmp_path / name)
    with pytest.raises(UserError, match="missing does not exist: expected a TOML file"):
        read_specs(tmp_path / "missing")


def test_a_shipped_setting_by_its_name():
    (one, *_) = read_specs("gcnii-cora")
    assert (one.data.dataset, one.system, one.layers) == ("cora", "gcnii", 64)
    with pytest.raises(UserError, match="gcnii-cora"):
        read_specs("gcnii-corra")


def test_wrong_types_are_refused_without_a_file_too():
    with pytest.raises(UserError, match=r"epochs is 2\.5: expected"):
        plain_spec(epochs=2.5)


def test_a_sweep_is_every_combination_once():
    found = specs_in(
        """
        [data]
        dataset = "csbm"
        [training]
        epochs = 7
        [sweep]
        "data.split" = ["random:0", "random:0:20/30", "random:1"]
        settings.num_layers = [1, 2]
        training.seed = [0, 1, 2]
        """
    )
    assert len(found) == 2 * 2 * 3  # two of the splits are the same
    assert {(s.data.split, s.layers, s.seed) for s in found} == {
        (f"random:{split}:20/30", layers, seed)
        for split in (0, 1)
        for layers in (1, 2)
        for seed in (0, 1, 2)
    }
    assert {one.training.epochs for one in found} == {7}


def test_without_a_preset_the_usual_recipe_supplies_what_is_not_named():
    text = '[data]\ndataset = "cs"\n[settings]\nnum_layers = 15'
    one = spec_in(text)
    assert one.recipe == recipe(dataset="cs", num_layers=15)
    plain = spec_in(f'system = "deepgat"\npreset = "none"\n{text}')
    settings = DeepGAT.Config(num_layers=15)
    assert plain == RunSpec(DataSpec("cs"), "deepgat", settings, TrainSettings())


def test_a_preset_supplies_what_is_not_named():
    (shallow, deep) = specs_in(
        """
        system = "gat"
        preset = "authors"
        [data]
        dataset = "cs"
        [settings]
        score = "sd"
        heads = 3
        [training]
        epochs = 5
        [sweep]
        settings.num_layers = [2, 15]
        """
    )
    usual = recipe("gat", preset="authors", score="sd", dataset="cs", num_layers=2)
    assert shallow.system == "gat"
    assert shallow.settings == replace(usual.settings, heads=3)
    assert shallow.training == replace(usual.training, epochs=5)
    assert deep.layers == 15
    paper = (
        'system = "deepgat"\npreset = "paper"\n[data]\ndataset = "cs"\n'
        "[sweep]\nsettings.num_layers = [2, 15]"
    )
    found = specs_in(paper)
    assert [one.layers for one in found] == [2, 15]
    for one in found:  # whose learning rate depends on the depth
        usual = recipe("deepgat", preset="paper", dataset="cs", num_layers=one.layers)
        assert one.recipe == usual


@pytest.fixture
def club(tmp_path):
    """A folder with a graph that has a gap in a column of numbers."""
    folder = tmp_path / "club"
    folder.mkdir()
    rows = [
        f"m{k},{'chess' if k % 2 else 'rowing'},{'' if k == 3 else k},{k % 5}" for k in range(20)
    ]
    (folder / "nodes.csv").write_text("\n".join(["id,label,age,mark", *rows]))
    ring = [f"m{k},m{(k + 1) % 20}" for k in range(20)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *ring]))
    return folder


def test_a_file_says_how_a_folder_is_read(club):
    text = f'[data]\ndataset = "{club}/"\n[data.read]\nmissing = "mean"\nscale = "unit"\n'
    (whole,) = specs_in(text)
    assert whole.data.read == ("missing=mean", "scale=unit")
    assert spec_in(whole.to_toml()) == whole
    assert RunSpec.from_dict(json.loads(json.dumps(whole.to_dict()))).signature == whole.signature
    data = whole.data.load()
    assert data.reading == {"missing": "mean", "scale": "unit"}
    assert float(data.graph.x[:, 0].max()) == 1
    swept = specs_in(f"{text}[sweep]\ndata.read.scale = ['unit', 'none']")
    assert [one.data.read for one in swept] == [
        ("missing=mean", "scale=unit"),
        ("missing=mean", "scale=none"),
    ]
    one_way = specs_in(text + "undirected = false\n")[0].data
    assert not one_way.undirected
    assert one_way.load().graph.num_edges == 20


def test_a_run_on_a_folder_is_of_its_content(club):
    """The same path with other bytes is another run, and a run does not load other bytes."""
    text = f'[data]\ndataset = "{club}"\nread = ["missing=mean"]\n'
    (before,) = specs_in(text)
    nodes = club / "nodes.csv"
    nodes.write_text(nodes.read_text().replace("m19,chess,19", "m19,chess,21"))
    (after,) = specs_in(text)
    assert before.signature != after.signature
    with pytest.raises(UserError, match="have changed since the run was described"):
        before.data.load()
    assert after.data.load().num_classes == 2
    nodes.unlink()
    assert RunSpec.from_dict(after.to_dict()) == after  # a record is read where no file is
    with pytest.raises(UserError, match=r"has no nodes\.csv"):
        specs_in(text)


def test_what_only_your_own_graphs_have_is_in_no_other_signature():
    plain = plain_spec("cora").to_dict()["data"]
    assert plain == {"dataset": "cora", "split": "public", "undirected": True}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'dataset = "cora"\n[data.read]\nscale = "unit"',
            "data.read and data.content are for a graph of your own",
        ),
        ('dataset = "CLUB"\n[data.read]\nscal = "unit"', "did you mean 'scale'"),
        ('dataset = "CLUB"\n[data.read]\nscale = 3', "data.read is .*: expected a table"),
        ('dataset = "CLUB"\nread = ["scale"]', "data.read has 'scale': expected NAME=VALUE"),
        ('dataset = "CLUB/none"', "is not there: expected a folder"),
    ],
)
def test_mistakes_in_reading_are_told(club, text, sentence):
    with pytest.raises(UserError, match=sentence):
        specs_in("[data]\n" + text.replace("CLUB", str(club)))


@pytest.mark.slow
def test_both_commands_take_the_section(club, tmp_path, monkeypatch, capsys):
    import sys

    from deepgat.cli import main

    file = tmp_path / "club.toml"
    file.write_text(
        f'[data]\ndataset = "{club}"\n[data.read]\nmissing = "zero"\n[training]\nepochs = 2\n'
    )
    for command in (
        ["train", "--config", file, "--out", tmp_path / "model"],
        ["run", file, "--store", tmp_path / "store", "--workers", 1],
    ):
        monkeypatch.setattr(
            sys, "argv", ["deepgat", *map(str, command), "--device", "cpu", "--quiet"]
        )
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code, capsys.readouterr().err
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card["reading"] == {"missing": "zero"}
