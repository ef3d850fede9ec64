"""Models on disk: the same bits after reading, whole or not at all, damage told in a sentence."""

import csv
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from deepgat import files, model_folder
from deepgat.data import NodeDataset, load_graph
from deepgat.errors import UserError
from deepgat.files import check_can_write, new_folder, to_json
from deepgat.model_folder import MODEL_FOLDER, load_run, save_run, saved_record
from deepgat.models import SYSTEMS
from deepgat.training.evaluate import evaluate
from deepgat.training.recipes import Recipe, recipe
from deepgat.training.run import ModelCard, Run, train_once
from tiny import PARTS, tiny_dataset, tiny_labels

FILES = {
    "model.safetensors", "model.json", "calibration.json", "metrics.json", "predictions.csv",
    "README.md",
}  # fmt: skip


def plan(**choices) -> Recipe:
    training = {"epochs": 3, "device": "cpu"}
    small = {"hidden_channels": 4, "heads": 2}
    return recipe("deepgat", preset="authors", training=training, **small, **choices)


@pytest.fixture(scope="module")
def data() -> NodeDataset:
    return tiny_dataset()


@pytest.fixture(scope="module")
def run(data) -> Run:
    return train_once(data, plan(), seed=4)


@pytest.fixture
def folder(tmp_path, run, data) -> Path:
    return save_run(tmp_path / "model", run, data)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def change_json(path: Path, **changes) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | changes))


# ------------------------------------------------------------------------------ there and back


def test_a_loaded_model_is_the_saved_one(folder, run, data):
    assert {path.name for path in folder.iterdir()} == FILES
    model, card = load_run(folder)
    assert card == run.card
    assert not model.training
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert torch.equal(evaluate(model, data, "cpu").logits[0], run.evaluation.logits[0])


@pytest.mark.parametrize("name", ["g2", "gcnii", "deep", "dagnn", "jk"])
def test_other_systems_come_back(tmp_path, data, name):
    """Gates, encoders and readouts are saved with the rest."""
    made = recipe(name, num_layers=3, training={"epochs": 2, "device": "cpu"})
    trained = train_once(data, made, 0)
    model, card = load_run(save_run(tmp_path / "model", trained, data))
    assert card == trained.card
    assert torch.equal(evaluate(model, data, "cpu").logits[0], trained.evaluation.logits[0])


@pytest.mark.parametrize("depth", [1, 11])
@pytest.mark.parametrize(
    ("system", "settings"),
    [
        *((name, {}) for name in SYSTEMS if name != "label-propagation"),
        ("deepgat", {"label_hops": 6}),
        ("deepgat", {"label_hops": 10, "label_input": "layer"}),
        ("jk", {"mode": "lstm", "hidden_channels": 5}),
        ("gcnii", {"conv": "deepgat"}),
        ("gcn", {"norm": "batch", "residual": "linear"}),
    ],
)
@pytest.mark.parametrize("labels", ["one", "several"])
def test_every_model_that_can_be_built_can_be_loaded(tmp_path, system, settings, depth, labels):
    several = tiny_labels() if labels == "several" else tiny_dataset()
    small = {"hidden_channels": 4, "num_layers": depth, **settings}
    made = recipe(system, training={"epochs": 1, "device": "cpu"}, **small)
    card = ModelCard.of(several, made)
    built = card.build()
    weights = save(built.state_dict())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "metrics.json").write_text("{}")
    described = {"format": model_folder.FORMAT, "weights_sha256": sha256(weights).hexdigest()}
    (folder / "model.json").write_text(to_json({**described, **card.to_dict(), "versions": {}}))
    loaded, found = load_run(folder)
    assert found == card
    for (name, mine), (other, theirs) in zip(
        built.state_dict().items(), loaded.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(mine, theirs)
    graph = several.graphs[0]
    built.eval()
    shown = {"labels": graph.y} if built.needs_labels else {}
    ours, theirs = (model(graph.x, graph.edge_index, **shown) for model in (built, loaded))
    assert torch.equal(ours, theirs)


def test_a_folder_of_format_1_is_refused_in_a_sentence(folder):
    """As deepgat 0.1 wrote it: the system was among the settings, under the name of its layers."""
    description = json.loads((folder / "model.json").read_text())
    del description["system"]
    description["format"] = 1
    description["settings"] = {"model": "deepgat", "layers": 2, "hidden": 4, "heads": 2}
    (folder / "model.json").write_text(json.dumps(description))
    with pytest.raises(UserError) as caught:
        load_run(folder)
    assert str(caught.value) == (
        f"{folder} has model format 1 but this deepgat reads format 2: train the model again with "
        "this version"
    )


def test_a_model_with_buffers_comes_back(tmp_path, data):
    """Batch normalisation keeps running means, which are no parameters."""
    run = train_once(data, plan(norm="batch", residual="linear"))
    model, _ = load_run(save_run(tmp_path / "model", run, data))
    assert torch.equal(evaluate(model, data, "cpu").logits[0], run.evaluation.logits[0])


def test_a_model_is_loaded_while_another_thread_trains(folder, data):
    def load_in_a_thread(_: object) -> None:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(load_run, folder).result(timeout=60)

    train_once(data, plan(), seed=1, on_epoch=load_in_a_thread)


def test_loading_leaves_the_random_numbers_of_the_caller_alone(folder):
    before = torch.get_rng_state()
    load_run(folder)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_another_process_gets_the_same_bits(tmp_path):
    data = load_graph("csbm")
    run = train_once(data, recipe("deepgat", training={"epochs": 2, "device": "cpu"}))
    folder = save_run(tmp_path / "model", run, data)
    code = (
        "import sys, deepgat\n"
        "from safetensors.torch import save_file\n"
        "model, card = deepgat.load_run(sys.argv[1])\n"
        "data = deepgat.load_graph(card.dataset, card.split)\n"
        "logits = deepgat.evaluate(model, data, 'cpu').logits[0]\n"
        "save_file({'logits': logits.contiguous()}, sys.argv[2])\n"
    )
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "logits")]
    subprocess.run(command, env=os.environ | threads, check=True, cwd=tmp_path)
    logits = load((tmp_path / "logits").read_bytes())["logits"]
    assert torch.equal(logits, run.evaluation.logits[0])


def test_the_record_says_what_was_run_and_what_came_out(folder, run):
    record = json.loads((folder / "metrics.json").read_text())
    assert record["micro_f1"] == run.evaluation.micro_f1
    assert record["loss"] == run.evaluation.loss
    assert record["seed"] == 4
    assert record["training"]["seed"] == 4
    assert record["system"] == "deepgat"
    assert record["settings"]["heads"] == 2
    assert record["best_epoch"] == run.fitted.best.number
    assert record["curve"]["val_loss"] == [epoch.val_loss for epoch in run.fitted.history]
    assert "torch" in record["versions"]
    assert "curve" not in run.record()


def test_saving_again_replaces_the_model(folder, data):
    other = train_once(data, plan(), seed=5)
    before = contents(folder)
    save_run(folder, other, data)
    assert load_run(folder)[1].training.seed == 5
    assert contents(folder).keys() == before.keys()
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_parent_folders_are_made(tmp_path, run, data):
    assert load_run(save_run(tmp_path / "a" / "b" / "model", run, data))[1] == run.card


# --------------------------------------------------------------------------------- predictions


def test_predictions_have_a_row_per_node(folder, run, data):
    rows, graph = table(folder), data.graph
    logits = run.evaluation.logits[0]
    assert len(rows) == graph.num_nodes
    assert [int(row["node"]) for row in rows] == list(range(graph.num_nodes))
    assert {row["graph"] for row in rows} == {"0"}
    assert [int(row["label"]) for row in rows] == graph.y.tolist()
    assert [int(row["prediction"]) for row in rows] == logits.argmax(1).tolist()
    for part in PARTS:
        mask = [row["part"] == part for row in rows]
        assert mask == graph[f"{part}_mask"].tolist(), part
    shares = torch.tensor([[float(row[f"p{c}"]) for c in range(3)] for row in rows])
    torch.testing.assert_close(shares.sum(1), torch.ones(60), rtol=0, atol=1e-5)
    torch.testing.assert_close(shares, logits.softmax(1), rtol=1e-4, atol=1e-5)


def test_predictions_leave_unknown_labels_and_unused_nodes_empty(tmp_path, run, data):
    graph = data.graph.clone()
    node = int(graph.test_mask.nonzero()[0])
    graph.y[node], graph.test_mask[node] = -1, False
    unlabelled = replace(data, graphs=(graph,))
    model_folder.write_predictions(tmp_path / "predictions.csv", unlabelled, run.evaluation)
    row = table(tmp_path)[node]
    assert (row["label"], row["part"]) == ("", "")
    assert row["prediction"] != ""


def test_names_that_are_no_unicode_are_written_too(tmp_path, run, data):
    named = replace(data, class_names=tuple(f"\ud800{c}" for c in range(data.num_classes)))
    model_folder.write_predictions(tmp_path / "p.csv", named, run.evaluation)
    assert "?0" in (tmp_path / "p.csv").read_text(encoding="utf-8")


def test_predictions_of_many_labels_and_graphs(tmp_path):
    data = tiny_labels()
    run = train_once(data, plan())
    rows = table(save_run(tmp_path / "model", run, data))
    assert [int(row["graph"]) for row in rows] == [0] * 12 + [1] * 13 + [2] * 14 + [3] * 15
    parts = ["train"] * 25 + ["val"] * 14 + ["test"] * 15
    assert [row["part"] for row in rows] == parts
    logits = torch.cat(run.evaluation.logits)
    y = torch.cat([graph.y for graph in data.graphs])
    for number, row in enumerate(rows):
        for name, wanted in (("label", y[number] > 0), ("prediction", logits[number] > 0)):
            listed = [int(text) for text in row[name].split(";") if text]
            assert listed == wanted.nonzero().view(-1).tolist()
        shares = torch.tensor([float(row[f"p{c}"]) for c in range(4)])
        torch.testing.assert_close(shares, logits[number].sigmoid(), rtol=1e-4, atol=1e-5)


def test_json_has_null_for_what_it_has_no_word_for():
    text = to_json({"a": [math.nan, 1.0, (math.inf, -math.inf)], "b": {"c": "NaN"}})
    assert text.endswith("\n")
    assert json.loads(text) == {"a": [None, 1.0, [None, None]], "b": {"c": "NaN"}}


# -------------------------------------------------------------------------------------- damage


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def replaced_by(make):
    def harm(path: Path) -> None:
        path.unlink()
        make(path)

    return harm


def without(key: str):
    def remove(path: Path) -> None:
        found = json.loads(path.read_text())
        del found[key]
        path.write_text(json.dumps(found))

    return remove


def setting(where: str, **values):
    def change(path: Path) -> None:
        found = json.loads(path.read_text())
        found[where] |= values
        path.write_text(json.dumps(found))

    return change


DAMAGE = {
    "no weights": ("model.safetensors", Path.unlink, "model.safetensors cannot be read"),
    "empty weights": ("model.safetensors", lambda p: cut(p, 0), "is not the file that was saved"),
    "cut weights": ("model.safetensors", lambda p: cut(p, 500), "is not the file that was saved"),
    "flipped bit": ("model.safetensors", flip_last_bit, "is not the file that was saved"),
    "no description": ("model.json", Path.unlink, "it has no readable model.json"),
    "cut description": ("model.json", lambda p: cut(p, 200), "is not the JSON that was saved"),
    "empty description": ("model.json", lambda p: cut(p, 0), "is not the JSON that was saved"),
    "a list": ("model.json", lambda p: p.write_text("[1]"), "is not the JSON that was saved"),
    "no format": ("model.json", without("format"), "is not the JSON that was saved"),
    "no text": ("model.json", lambda p: p.write_bytes(b"\xff\xfe{"), "no readable model.json"),
    "newer": (
        "model.json",
        lambda p: change_json(p, format=3),
        "has model format 3 but this deepgat reads format 2: upgrade deepgat",
    ),
    "older": (
        "model.json",
        lambda p: change_json(p, format=1),
        "has model format 1 but this deepgat reads format 2: train the model again",
    ),
    "no classes": ("model.json", without("num_classes"), "misnames a setting.*num_classes"),
    "no digest": ("model.json", without("weights_sha256"), "weights_sha256"),
    "no settings": ("model.json", without("settings"), "settings"),
    "null settings": ("model.json", lambda p: change_json(p, settings=None), "misnames"),
    "extra setting": ("model.json", setting("settings", depth=3), "depth"),
    "wrong model": ("model.json", lambda p: change_json(p, system="mpl"), "unknown model 'mpl'"),
    "wrong type": ("model.json", setting("settings", num_layers="two"), "num_layers is 'two'"),
    "other layers": ("model.json", setting("settings", num_layers=5), "does not fit the settings"),
    "other heads": ("model.json", setting("settings", heads=3), "does not fit the settings"),
    "wrong rate": ("model.json", setting("training", lr="fast"), "misnames"),
    "wrong seed": ("model.json", setting("training", seed="x"), "seed is 'x'"),
    "negative features": (
        "model.json",
        lambda p: change_json(p, num_features=-1),
        "does not fit the settings",
    ),
    "other features": (
        "model.json",
        lambda p: change_json(p, num_features=7),
        "does not fit the settings",
    ),
    "features in words": (
        "model.json",
        lambda p: change_json(p, num_features="six"),
        "num_features is 'six'",
    ),
    "dataset in numbers": ("model.json", lambda p: change_json(p, dataset=5), "dataset is 5"),
    "split is nothing": ("model.json", lambda p: change_json(p, split=None), "split is None"),
    "a million layers": (
        "model.json",
        setting("settings", num_layers=10**6),
        "num_layers is 1000000: expected 10,000 or less",
    ),
    "many layers": (
        "model.json",
        setting("settings", num_layers=10_000),
        "does not fit the settings",
    ),
    "heads beyond 64 bits": (
        "model.json",
        setting("settings", heads=10**20),
        "heads is 100000000000000000000: expected",
    ),
    "wide": (
        "model.json",
        setting("settings", hidden_channels=10**14),
        "does not fit the settings",
    ),
    "a billion edge features": (
        "model.json",
        lambda p: change_json(p, edge_features=10**9),
        "does not fit the settings",
    ),
    "edge features beyond 64 bits": (
        "model.json",
        lambda p: change_json(p, edge_features=10**40),
        "does not fit the settings",
    ),
    "names that are numbers": (
        "model.json",
        lambda p: change_json(p, class_names=[1, 2, 3]),
        "class_names holds 1, which is no text",
    ),
    "too few names": (
        "model.json",
        lambda p: change_json(p, class_names=["a"]),
        "1 names for 3 classes",
    ),
    "features that are lists": (
        "model.json",
        lambda p: change_json(p, feature_names=[["a"]]),
        "feature_names holds",
    ),
    "deep JSON": (
        "model.json",
        lambda p: p.write_text("[" * 100_000),
        "is not the JSON that was saved",
    ),
    "long number": (
        "model.json",
        lambda p: p.write_text('{"format": ' + "9" * 5000 + "}"),
        "is not the JSON that was saved",
    ),
    "weights that are a pipe": (
        "model.safetensors",
        replaced_by(os.mkfifo),
        "is neither a regular file nor a folder",
    ),
    "weights without end": (
        "model.safetensors",
        replaced_by(lambda p: p.symlink_to("/dev/zero")),
        "is neither a regular file nor a folder",
    ),
    "weights that are a folder": ("model.safetensors", replaced_by(Path.mkdir), "is a folder"),
    "a description that is a pipe": (
        "model.json",
        replaced_by(os.mkfifo),
        "it has no readable model.json",
    ),
    "labels in words": ("model.json", lambda p: change_json(p, multi_label="no"), "multi_label"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told(folder, name):
    file, harm, sentence = DAMAGE[name]
    harm(folder / file)
    with pytest.raises(UserError, match=sentence) as caught:
        load_run(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UserError, match="is not a model folder"):
            load_run(path)


# ------------------------------------------------------------------------ all of it or nothing


def foreign_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


def foreign_file(path: Path) -> None:
    path.write_text("years of work")


def dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


@pytest.mark.parametrize("make", [foreign_folder, foreign_file, dangling_link])
def test_saving_over_anything_else_is_refused(tmp_path, run, data, make):
    path = tmp_path / "target"
    make(path)
    before = contents(tmp_path)
    with pytest.raises(UserError, match="exists and is not a model folder"):
        save_run(path, run, data)
    assert contents(tmp_path) == before
    assert [inner.name for inner in tmp_path.iterdir()] == ["target"]


def test_a_model_folder_with_other_files_in_it_is_not_replaced(folder, run, data):
    (folder / "notes.txt").write_text("years of work")
    before = contents(folder)
    with pytest.raises(UserError, match=r"holds notes\.txt beside a model"):
        save_run(folder, run, data)
    assert contents(folder) == before


def test_an_empty_folder_may_be_written_to(tmp_path, run, data):
    (tmp_path / "target").mkdir()
    assert load_run(save_run(tmp_path / "target", run, data))[1] == run.card


def test_the_folder_one_stands_in_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is the current folder"):
        check_can_write(Path("."), MODEL_FOLDER)


def test_a_folder_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a writable folder"):
        check_can_write(tmp_path / "file" / "a" / "b", MODEL_FOLDER)


def test_an_impossible_name_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        check_can_write(tmp_path / ("x" * 5000), MODEL_FOLDER)


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()], ids=repr)
def test_a_failure_midway_leaves_nothing(tmp_path, run, data, monkeypatch, error):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(model_folder, "write_predictions", fail)
    with pytest.raises(type(error)):
        save_run(tmp_path / "model", run, data)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_midway_leaves_the_old_model(folder, run, data, monkeypatch):
    before = contents(folder.parent)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(model_folder, "write_predictions", fail)
    with pytest.raises(OSError, match="no space left"):
        save_run(folder, run, data)
    assert contents(folder.parent) == before


def test_a_failure_at_the_last_step_puts_the_old_model_back(folder, monkeypatch):
    before = contents(folder.parent)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError("no space left")
        return rename(self, target)

    monkeypatch.setattr(files, "_exchange", lambda *_: False)  # where the system has no such step
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no space left"), new_folder(folder, MODEL_FOLDER) as target:
        (target / "model.json").write_text("{}")
    assert contents(folder.parent) == before


# -------------------------------------------------------------------------------- finished runs


def card_of(data: NodeDataset, seed: int = 4, **choices) -> ModelCard:
    made = plan(**choices)
    return ModelCard.of(data, made._replace(training=replace(made.training, seed=seed)))


def test_a_finished_run_of_the_same_settings_is_found(folder, run, data):
    assert saved_record(folder, card_of(data)) == run.record(with_curve=True)


def test_a_run_of_other_settings_or_data_is_not(folder, data):
    assert saved_record(folder, card_of(data, seed=5)) is None
    assert saved_record(folder, card_of(data, num_layers=3)) is None
    assert saved_record(folder, card_of(replace(data, split="random:1:5/5"))) is None


def test_an_interrupted_run_is_not_finished(folder, data):
    change_json(folder / "metrics.json", stopped="interrupted")
    assert saved_record(folder, card_of(data)) is None


@pytest.mark.parametrize("text", ["", "[]", '"x"', "{}", "{", "\udcff"])
def test_a_damaged_record_is_no_finished_run(folder, data, text):
    (folder / "metrics.json").write_bytes(text.encode(errors="surrogateescape"))
    assert saved_record(folder, card_of(data)) is None


@pytest.mark.parametrize("name", sorted(FILES - {"predictions.csv", "README.md"}))
def test_a_run_that_lacks_a_file_is_not_finished(folder, data, name):
    (folder / name).unlink()
    assert saved_record(folder, card_of(data)) is None


def test_nothing_there_is_no_finished_run(tmp_path, data):
    assert saved_record(tmp_path / "nothing", card_of(data)) is None
