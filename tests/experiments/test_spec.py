"""A run as one value: what it accepts, how it is written, and what its signature depends on."""

import json
import tomllib
from dataclasses import fields, replace

import pytest
from deepgat.nn.settings import LATER as MODEL_LATER
from deepgat.nn.settings import NORMS, SCORES
from hypothesis import given
from hypothesis import strategies as st

from deepgat.data.catalogue.entries import ENTRIES
from deepgat.errors import UserError
from deepgat.lab.experiments import AnalysisSpec, DataSpec, RunSpec, read_specs
from deepgat.lab.experiments.measures import MEASURES
from deepgat.lab.experiments.spec import (
    KEEP,
    OF_OWN_GRAPHS,
    SECTIONS,
    signature_of,
    specs_from_toml,
)
from deepgat.nn import ModelSettings, build_model
from deepgat.training.epoch import make_optimizer
from deepgat.training.loop import MONITORS, TrainSettings
from deepgat.training.recipes import recipe
from deepgat.training.settings import BATCHES
from deepgat.training.settings import LATER as TRAINING_LATER
from deepgat.training.values import to_toml

positive = st.floats(1e-12, 1e6, allow_nan=False)
systems = st.sampled_from([(model, score) for model, known in SCORES.items() for score in known])


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    model, score = draw(systems)
    return RunSpec(
        DataSpec(
            draw(st.sampled_from(sorted(ENTRIES))),
            draw(st.sampled_from(["", "random", "random:7", "authors", "fractions:0.5/.25:3"])),
            draw(st.booleans()),
        ),
        ModelSettings(
            model=model,
            score=score,
            layers=draw(st.integers(1, 200)),
            dropout=draw(st.floats(0, 1, exclude_max=True)),
            norm=draw(st.sampled_from(sorted(NORMS))),
            bias=draw(st.booleans()),
        ),
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
def test_toml_and_back(spec):
    text = spec.to_toml()
    again = RunSpec.from_toml(text)
    assert again == spec
    assert again.signature == spec.signature
    assert again.to_toml() == text
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


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


@pytest.mark.parametrize("section", list(SECTIONS))
def test_every_setting_counts(section):
    """The signature is over the whole spec: changing any one value changes it."""
    spec = RunSpec(DataSpec("csbm"), training=TrainSettings(batches="clusters"))
    plain = spec.to_dict()
    for name, value in plain[section].items():
        changed = {**plain, section: {**plain[section], name: f"not {value!r}"}}
        assert signature_of(changed) != spec.signature, name
        without = {key: item for key, item in plain[section].items() if key != name}
        assert signature_of({**plain, section: without}) != spec.signature, name
    assert signature_of(plain, results_version=2) != spec.signature


def test_every_field_is_written():
    plain = RunSpec(DataSpec("csbm")).to_dict()
    later = {"model": MODEL_LATER, "training": TRAINING_LATER}
    for section, kind in SECTIONS.items():
        named = {item.name for item in fields(kind)} - {"device", *OF_OWN_GRAPHS}
        named -= {*later.get(section, ())}
        assert set(plain[section]) == named
    said = RunSpec(
        DataSpec("csbm"),
        ModelSettings(compatibility="learnt"),
        TrainSettings(batches="clusters", self_training=0.5),
    )
    assert RunSpec.from_dict(said.to_dict()) == said
    assert said.to_dict()["model"]["compatibility"] == "learnt"


def test_runs_without_a_new_setting_are_signed_as_before_there_was_one():
    assert RunSpec(DataSpec("csbm")).signature == "aa90df8592d86ee1"
    plain = RunSpec(DataSpec("csbm")).to_dict()
    assert not {"batches", "clusters", "fan_out"} & set(plain["training"])
    other = RunSpec(DataSpec("csbm"), training=TrainSettings(fan_out="5"))
    assert other.to_dict()["training"]["fan_out"] == "5"  # it decides nothing, but it was said
    assert RunSpec.from_dict(other.to_dict()) == other


def test_the_device_is_no_part_of_a_run():
    spec = RunSpec(DataSpec("csbm"))
    elsewhere = replace(spec, training=TrainSettings(device="cpu"))
    assert elsewhere == spec
    assert elsewhere.signature == spec.signature
    with pytest.raises(UserError, match=r"training\.device is no part of a run.*--device"):
        RunSpec.from_toml('[data]\ndataset = "csbm"\n[training]\ndevice = "cpu"')


def test_one_number_has_one_signature():
    one = RunSpec.from_toml('[data]\ndataset = "csbm"\n[training]\nlr = 1')
    other = RunSpec.from_toml('[data]\ndataset = "CSBM"\nsplit = "authors"\n[training]\nlr = 1.0')
    assert one.signature == other.signature
    assert RunSpec(DataSpec("csbm"), one.model, replace(one.training, lr=1)) == one


@pytest.mark.parametrize(
    ("dataset", "layers", "written"),
    [
        ("cora", 64, (None, 0)),  # of so few nodes that it is the whole decay
        ("pubmed", 16, (None, 0)),  # steps are whole
        ("pubmed", 64, (5e-4, 0)),  # a quarter, which is above 3500 / 19717
        ("pubmed", 128, (5e-4, 3500)),
    ],
)
@pytest.mark.parametrize("sharing", [{}, {"shared_steps": True}])
def test_a_decay_of_class_heads_is_written_where_it_is_another(dataset, layers, written, sharing):
    plan = recipe("deep", layers=layers, **sharing)
    spec = RunSpec(DataSpec(dataset), *plan)
    found = spec.training.weight_decay_heads, spec.training.decay_nodes_heads
    assert found == ((None, 0) if sharing else written)
    share, nodes = plan.model.gradient_share, ENTRIES[dataset].nodes
    assert build_model(plan.model, 5, 3).gradient_share == share
    assert spec.training.head_decay(share, nodes) == plan.training.head_decay(share, nodes)
    assert RunSpec.from_toml(spec.to_toml()) == spec
    assert RunSpec(spec.data, *spec.recipe) == spec


@pytest.mark.slow
@given(
    st.sampled_from(["cora", "citeseer", "pubmed", "ppi-rebuilt"]),
    st.sampled_from([1, 16, 17, 32, 64, 100]),
    st.sampled_from(["weight_decay", "weight_decay_heads"]),
    st.sampled_from([0.0, 5e-4, 1e-3, 0.1]),
    st.sampled_from([None, 0, 1, 3500, 10**6]),
    st.sampled_from([{}, {"shared_layers": True}, {"class_head": "shared", "label_hops": 3}]),
)
def test_what_is_left_out_of_a_spec_makes_no_difference(data, layers, name, decay, most, choices):
    named = {name: decay} | ({} if most is None else {"decay_nodes_heads": most})
    if "class_head" in choices:
        choices = {**choices, "class_bias": False}
    plan = recipe("deep", layers=layers, training=named, **choices)
    spec = RunSpec(DataSpec(data), *plan)
    assert RunSpec(spec.data, *spec.recipe) == spec
    assert RunSpec.from_dict(spec.to_dict()) == spec
    model = build_model(plan.model, 5, 3)
    both = [
        [(group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]
        for optimizer in (
            make_optimizer(model, training, ENTRIES[data].nodes)
            for training in (plan.training, spec.training)
        )
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize(("layers", "written"), [(16, (None, 0)), (64, (5e-4, 3500))])
def test_the_nodes_of_a_folder_are_not_known_to_a_spec(club, layers, written):
    training = RunSpec(DataSpec(str(club)), *recipe("deep", layers=layers)).training
    assert (training.weight_decay_heads, training.decay_nodes_heads) == written


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"the section \[data\] is missing"),
        ("[data]", r"data\.dataset is missing: expected a text"),
        ("[dta]", "unknown section 'dta': did you mean 'data'?"),
        ("data = 3", r"data is 3: expected a table of settings, \[data\]"),
        ('[data]\ndatset = "cs"', "unknown data setting 'datset': did you mean 'dataset'?"),
        ('[data]\ndataset = "coraa"', "unknown dataset 'coraa': did you mean 'cora'?"),
        ("[data]\ndataset = 3", r"data\.dataset is 3: expected a text"),
        ("@split = 'rnd'", "unknown split 'rnd'"),
        ("@[model]\nlayer = 3", "unknown model setting 'layer': did you mean 'layers'?"),
        ("@[model]\nlayers = 3.5", r"model\.layers is 3\.5: expected a whole number"),
        ("@[model]\nlayers = true", r"model\.layers is True: expected a whole number"),
        ("@[model]\nbias = 1", r"model\.bias is 1: expected true or false"),
        ("@[model]\nnorm = 'layers'", "unknown norm 'layers': did you mean 'layer'?"),
        ("@[training]\nlr = 'fast'", r"training\.lr is 'fast': expected a number"),
        ("@[training]\nlr = inf", r"training\.lr is not finite: expected a number"),
        ("@[training]\nlr = 0", r"lr is 0\.0: expected a number above 0"),
        ("@[training]\nepoch = 3", "unknown training setting 'epoch': did you mean 'epochs'?"),
        ("@[training]\nepochs = 2012-12-21", r"training\.epochs is .*: expected a whole number"),
        ("@[training]\nseed = -1", r"training\.seed is -1: expected 0 or more"),
        ("@[analysis]\nmeasures = ['nearest']", "unknown measure 'nearest'"),
        ("@[analysis]\nmeasures = 'all'", r"analysis\.measures is 'all': expected a list"),
        ("@[analysis]\nattention = 'al'", "unknown choice for attention 'al': did you mean 'all'?"),
        ("@[model\n", "not a TOML text"),
        ("preset = 'papr'\n@", "unknown preset 'papr': did you mean 'paper'?"),
        ("preset = 3\n@", "preset is 3: expected a text"),
        ("preset = 'paper'\n@[model]\nmodel = []", r"model\.model is \[\]: expected a text"),
        ("sweep = 3\n@", r"sweep is 3: expected a section"),
        ("@[sweep]\nseed = [1]", "unknown setting in .sweep. 'seed'"),
        ("@[sweep]\n'training.sed' = [1]", "unknown training setting 'sed': did you mean 'seed'?"),
        ("@[sweep]\ntraining.seed = 1", "expected a list of values"),
        ("@[sweep]\ntraining.seed = []", "expected a list of values"),
        ("@[sweep]\ntraining.seed = ['a']", r"training\.seed is 'a': expected a whole number"),
    ],
)
def test_mistakes_are_told_in_a_sentence(text, sentence, tmp_path):
    path = tmp_path / "runs.toml"
    path.write_text(text.replace("@", '[data]\ndataset = "csbm"\n'))
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
    (spec, *_) = read_specs("gcnii-cora")
    assert (spec.data.dataset, spec.model.layers) == ("cora", 64)
    with pytest.raises(UserError, match="gcnii-cora"):
        read_specs("gcnii-corra")


def test_wrong_types_are_refused_without_a_file_too():
    with pytest.raises(UserError, match=r"epochs is 2\.5: expected"):
        RunSpec(DataSpec("csbm"), training=TrainSettings(epochs=2.5))  # type: ignore[arg-type]


def test_a_sweep_is_every_combination_once():
    found = specs_from_toml(
        """
        [data]
        dataset = "csbm"
        [training]
        epochs = 7
        [sweep]
        "data.split" = ["random:0", "random:0:20/30", "random:1"]
        model.layers = [1, 2]
        training.seed = [0, 1, 2]
        """
    )
    assert len(found) == 2 * 2 * 3  # two of the splits are the same
    assert {(s.data.split, s.model.layers, s.seed) for s in found} == {
        (f"random:{split}:20/30", layers, seed)
        for split in (0, 1)
        for layers in (1, 2)
        for seed in (0, 1, 2)
    }
    assert {spec.training.epochs for spec in found} == {7}


def test_without_a_preset_the_usual_recipe_supplies_what_is_not_named():
    one = RunSpec.from_toml('[data]\ndataset = "cs"\n[model]\nlayers = 15')
    model, training = recipe(dataset="cs", layers=15)
    assert one.recipe == (model, replace(training, decay_nodes_heads=0))  # whose steps are whole
    plain = RunSpec.from_toml('preset = "none"\n[data]\ndataset = "cs"\n[model]\nlayers = 15')
    assert plain == RunSpec(DataSpec("cs"), ModelSettings(layers=15))


def test_a_preset_supplies_what_is_not_named():
    (spec, deep) = specs_from_toml(
        """
        preset = "authors"
        [data]
        dataset = "cs"
        [model]
        model = "gat"
        score = "sd"
        heads = 3
        [training]
        epochs = 5
        [sweep]
        model.layers = [2, 15]
        """
    )
    usual = recipe("authors", "gat", score="sd", dataset="cs", layers=2)
    assert spec.model == replace(usual.model, heads=3)
    assert spec.training == replace(usual.training, epochs=5)
    assert deep.model.layers == 15
    paper = 'preset = "paper"\n[data]\ndataset = "cs"\n[sweep]\nmodel.layers = [2, 15]'
    for found in specs_from_toml(paper):  # whose step depends on the depth
        usual = recipe("paper", dataset="cs", layers=found.model.layers)
        assert found.recipe == usual


@pytest.fixture
def club(tmp_path):
    """A folder of one's own with a gap in a column of numbers."""
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
    (spec,) = specs_from_toml(text)
    assert spec.data.read == ("missing=mean", "scale=unit")
    assert RunSpec.from_toml(spec.to_toml()) == spec
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))).signature == spec.signature
    data = spec.data.load()
    assert data.reading == {"missing": "mean", "scale": "unit"}
    assert float(data.graph.x[:, 0].max()) == 1
    swept = specs_from_toml(f"{text}[sweep]\ndata.read.scale = ['unit', 'none']")
    assert [one.data.read for one in swept] == [
        ("missing=mean", "scale=unit"),
        ("missing=mean", "scale=none"),
    ]
    one_way = specs_from_toml(text + "undirected = false\n")[0].data
    assert not one_way.undirected
    assert one_way.load().graph.num_edges == 20


def test_a_run_on_a_folder_is_of_its_content(club):
    """The same path with other bytes is another run, and a run does not load other bytes."""
    text = f'[data]\ndataset = "{club}"\nread = ["missing=mean"]\n'
    (before,) = specs_from_toml(text)
    nodes = club / "nodes.csv"
    nodes.write_text(nodes.read_text().replace("m19,chess,19", "m19,chess,21"))
    (after,) = specs_from_toml(text)
    assert before.signature != after.signature
    with pytest.raises(UserError, match="not those that the run was described with"):
        before.data.load()
    assert after.data.load().num_classes == 2
    nodes.unlink()
    assert RunSpec.from_dict(after.to_dict()) == after  # a record is read where no file is
    with pytest.raises(UserError, match=r"has no nodes\.csv"):
        specs_from_toml(text)


def test_runs_of_the_catalogue_have_the_signatures_they_had():
    """Fields that only graphs of one's own have are in nobody else's signature."""
    spec = RunSpec(DataSpec("cora"), ModelSettings(), TrainSettings(), AnalysisSpec())
    assert spec.to_dict()["data"] == {"dataset": "cora", "split": "public", "undirected": True}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('dataset = "cora"\n[data.read]\nscale = "unit"', "data.read is for a graph of your own"),
        ('dataset = "CLUB"\n[data.read]\nscal = "unit"', "did you mean 'scale'"),
        ('dataset = "CLUB"\n[data.read]\nscale = 3', "data.read is .*: expected a table"),
        ('dataset = "CLUB"\nread = ["scale"]', "data.read has 'scale': expected NAME=VALUE"),
        ('dataset = "CLUB/none"', "is not there: expected a folder"),
    ],
)
def test_mistakes_in_reading_are_told(club, text, sentence):
    with pytest.raises(UserError, match=sentence):
        specs_from_toml("[data]\n" + text.replace("CLUB", str(club)))


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
