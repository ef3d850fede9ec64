"""The commands: what they print, what they leave behind, and one sentence for every mistake."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from typer.testing import CliRunner

import deepgat
from deepgat.cli import COMMANDS, LAB, app, load_command, main
from deepgat.cli.parsing import parse_numbers, parse_settings
from deepgat.cli.show import OUT
from deepgat.data.catalogue import entries
from deepgat.errors import UserError
from deepgat.ops.cpu import kernels
from deepgat.training.recipes import recipe_or_search
from deepgat.training.run import train_once

RUNS = importlib.import_module("deepgat.cli.runs")
TRAIN = importlib.import_module("deepgat.cli.train")
DEMO = importlib.import_module("deepgat.cli.demo")
QUICK = ("--epochs", "3", "--device", "cpu")
SMALL = ("--epochs", "2", "--device", "cpu", "--layers", "2", "--hidden", "4")


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch, capsys) -> Run:
    """Calls main() as the installed command does, on a wide screen."""
    monkeypatch.setenv("COLUMNS", "200")  # read when a console is made, as for --help
    monkeypatch.setattr(OUT, "width", 200)

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["deepgat", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return Result(exit_.value.code or 0, out, err)

    return call


def assert_sentence(result: Result, *parts: str) -> None:
    """Exit code 2, nothing on standard output, one line on standard error."""
    assert result.code == 2
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]


def numbers(records: list[dict]) -> list[dict]:
    """Records without what a clock says."""
    return [{key: record[key] for key in record if key != "seconds"} for record in records]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# ------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("nonsense", "unknown dataset 'nonsense': choose one of "),
        ("coraa", "unknown dataset 'coraa': did you mean 'cora'?"),
        ("csbm --model gatt", "unknown model 'gatt': did you mean 'gat'?"),
        (
            "csbm --model deepgat --preset author",
            "unknown preset of deepgat 'author': did you mean",
        ),
        ("csbm --preset paper", "deep has no presets: leave preset 'paper' out"),
        ("csbm --model deepgat --score ad", "unknown score 'ad'"),
        ("csbm --score dp", "unknown setting of deep 'score'"),
        ("csbm --layers 0", "--layers is 0: expected 1 or more"),
        ("csbm --model gat --set heads=-2", "heads is -2: expected 1 or more"),
        ("csbm --hidden 0", "--hidden is 0: expected 1 or more"),
        ("csbm --set dropout=1", "dropout is 1.0: expected a number of at least 0 and below 1"),
        ("csbm --split random:0:20/0", "has no validation nodes: early stopping needs some"),
        ("csbm --split random:0:0/20", "has no training nodes"),
        ("csbm --split rnd", "unknown split 'rnd'"),
        ("csbm --split random:x", "cannot read the split 'random:x'"),
        ("csbm --split public", "has no split 'public'"),
        ("csbm --seeds x", "--seeds 'x': expected numbers and ranges such as 0-4 or 0,3,7"),
        ("csbm --seeds 4-2", "'4-2' is not a range of seeds"),
        ("csbm --seeds 0-99999999", "is not a range of seeds"),
        ("csbm --set norm", "--set 'norm': expected NAME=VALUE"),
        ("csbm --model gat --set nrm=layer", "unknown setting of gat 'nrm': did you mean 'norm'?"),
        ("csbm --model gat --set norm=layers", "unknown norm 'layers': did you mean 'layer'?"),
        ("csbm --model gat --set bias=maybe", "--set bias=maybe: expected yes or no"),
        (
            "csbm --model gat --set output_heads=2.5",
            "--set output_heads=2.5: expected a whole number",
        ),
        ("csbm --model deepgat --set delta=big", "--set delta=big: expected a number"),
        ("csbm --set num_layers=4", "say it as --layers 4"),
        ("csbm --set hidden-channels=4", "say it as --hidden 4"),
        ("csbm --set layers=4", "unknown setting of deep 'layers': did you mean 'num_layers'?"),
        ("csbm --lr 0", "lr is 0.0: expected a number above 0"),
        ("csbm --weight-decay nan", "--weight-decay is nan: expected 0 or more"),
        ("csbm --epochs 0", "epochs is 0: expected 1 or more"),
        ("csbm --patience 0", "patience is 0: expected 1 or more"),
        ("csbm --monitor f1", "unknown monitor 'f1'"),
        ("csbm --train precision=fp8", "unknown precision 'fp8'"),
        ("csbm --device nonsense", "the device 'nonsense' cannot be used here"),
        ("csbm --device hpu", "the device 'hpu' cannot be used here"),
        ("csbm --layers 100000", "--layers is 100000: expected 10,000 or less"),
        ("csbm --hidden 1000000000", "GiB of memory are free: choose fewer or narrower layers"),
        ("csbm --lr 1e300", "lr is too large"),
        ("csbm --device meta", "the device 'meta' cannot be used here"),
        ("csbm --resume", "--resume needs --out"),
        ("csbm --model label-propagation --layers 0", "--layers is 0: expected 1 or more"),
        ("csbm --model label-propagation --out x", "no weights to save"),
        (
            "csbm --model label-propagation --score dp",
            "unknown setting of label-propagation 'score'",
        ),
        ("csbm --model label-propagation --preset paper", "label-propagation has no presets"),
        ("csbm --model label-propagation --set norm=layer", "unknown setting of label-propagation"),
        ("csbm --model label-propagation --lr 0.1", "trains nothing: leave lr out"),
        ("csbm --lr 1e30 --epochs 5", "at epoch "),
    ],
)
def test_train_tells_a_mistake_in_one_sentence(run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert_sentence(run("train", *arguments.split()), sentence)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        "train csbm --nonsense",
        "train csbm --layers two",
        "train csbm extra",
        "evaluate",
        "trian csbm",
    ],
)
def test_usage_mistakes_exit_with_2(run, arguments):
    result = run(*arguments.split())
    assert result.code == 2
    assert "Usage" in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_the_app_itself_raises_the_error_for_whoever_embeds_it():
    result = CliRunner().invoke(app, ["train", "nonsense"])
    assert isinstance(result.exception, UserError)
    assert "unknown dataset 'nonsense'" in str(result.exception)


@pytest.mark.parametrize("text", [r"x\[/b]", "x[/b]", "[red]x", "x:heart:"])
def test_brackets_and_colons_of_a_name_are_printed_as_they_are(run, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    assert_sentence(run("evaluate", text), f"error: {text} is not a model folder")


# --------------------------------------------------------------------------- data not at hand


@pytest.fixture
def no_data(tmp_path, monkeypatch) -> Path:
    """An empty data folder, an empty cache, and no network."""

    def fail(work: Path) -> None:
        raise ConnectionError("the network is down")

    for key, entry in entries.ENTRIES.items():
        if entry.fetch is not None:
            monkeypatch.setitem(entries.ENTRIES, key, replace(entry, fetch=fail))
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("DEEPGAT_DATA", str(folder))
    monkeypatch.setenv("DEEPGAT_CACHE", str(tmp_path / "cache"))
    return folder


def test_a_dataset_that_cannot_be_had_says_which_files_go_where(run, no_data):
    result = run("train", "cora")
    assert_sentence(
        result, "Cora is not available locally and downloading failed", "the network is down"
    )
    assert "ind.cora.allx" in result.err
    assert "DEEPGAT_DATA" in result.err
    assert_sentence(run("train", "ppi-rebuilt"), "there is no download for it")


def test_an_incomplete_dataset_says_what_is_missing(run, no_data):
    (no_data / "Cora" / "raw").mkdir(parents=True)
    (no_data / "Cora" / "raw" / "ind.cora.x").write_bytes(b"")
    assert_sentence(run("train", "cora"), "Cora is incomplete: ind.cora.tx, ")


def test_a_data_folder_that_is_none_is_told(run, no_data, monkeypatch):
    monkeypatch.setenv("DEEPGAT_DATA", str(no_data / "nothing"))
    assert_sentence(run("train", "cora"), "DEEPGAT_DATA names", "which is not a folder")
    assert_sentence(run("datasets"), "DEEPGAT_DATA names", "which is not a folder")


def test_datasets_says_what_is_at_hand(run, no_data):
    found = {record["key"]: record for record in run("datasets", "--json").records}
    assert found.keys() == entries.ENTRIES.keys()
    assert found["digits"]["source"] == "built in"
    assert found["cora"]["source"] == ""
    assert found["cora"]["nodes"] == 2708
    shown = run("datasets")
    assert shown.code == 0
    for entry in entries.ENTRIES.values():
        assert entry.key in shown.out
        assert entry.title in shown.out


# ------------------------------------------------------------------------------------ training


def test_json_is_one_object_per_run(run):
    result = run("train", "digits", "--hidden", "4", "--seeds", "0-1", "--json", *QUICK)
    assert result.code == 0
    assert result.err == ""
    assert [record["seed"] for record in result.records] == [0, 1]
    for record in result.records:
        assert record["dataset"] == "digits"
        assert record["split"] == "authors"
        assert set(record["micro_f1"]) == set(record["loss"]) == {"train", "val", "test"}
        assert all(0 <= share <= 1 for share in record["micro_f1"].values())
        assert record["epochs"] == 3
        assert 1 <= record["best_epoch"] <= 3
        assert record["stopped"] == "epochs"
        assert record["training"]["seed"] == record["seed"]
        assert record["system"] == "deep"
        assert record["settings"]["num_layers"] == 16
        assert {"deepgat", "torch", "python"} <= record["versions"].keys()
        assert "CPU" in record["hardware"]
        assert "curve" not in record


def test_the_same_command_gives_the_same_numbers(run):
    command = ("train", "csbm", "--model", "deepgat", "--seeds", "0,2", "--json", *QUICK)
    first, again = run(*command), run(*command)
    assert numbers(first.records) == numbers(again.records)
    assert first.records[0]["loss"] != first.records[1]["loss"]


def test_the_table_has_a_row_per_seed_and_the_mean_with_its_deviation(run):
    records = run("train", "csbm", "--seeds", "0-1", "--json", *SMALL).records
    shown = run("train", "csbm", "--seeds", "0-1", *SMALL)
    assert shown.code == 0
    assert "micro-F1 (%) of deep, 2 layers, on" in shown.out
    scores = [record["micro_f1"]["test"] for record in records]
    for score in scores:
        assert f"{100 * score:.2f}" in shown.out
    mean = 100 * sum(scores) / 2
    (row,) = [line for line in shown.out.splitlines() if "mean" in line]
    assert f"{mean:.2f} ± {100 * abs(scores[0] - scores[1]) / 2**0.5:.1f}" in row


@pytest.mark.slow
def test_the_default_leaves_self_training_out_where_steps_see_parts_of_the_graph(run):
    options = ("--train", "batches=clusters", "--train", "clusters=4", *SMALL)
    (record,) = run("train", "csbm", "--json", *options).records
    assert record["training"]["batches"] == "clusters"
    assert record["training"]["self_training"] == 0
    refused = run("train", "csbm", "--train", "self_training=1", *options)
    assert refused.code == 2
    assert "self_training takes one graph" in refused.err


def test_one_seed_has_no_mean(run):
    shown = run("train", "csbm", *SMALL, "--layers", "1")
    assert "1 layer," in shown.out
    assert "mean" not in shown.out
    assert "±" not in shown.out


def test_every_option_reaches_the_run(run):
    (record,) = run(
        *("train", "csbm", "--model", "gat", "--score", "sd", "--preset", "authors"),
        *("--layers", "3", "--hidden", "5", "--set", "heads=4", "--set", "dropout=0.25"),
        *("--set", "norm=batch", "--set", "output-heads=2", "--set", "bias=no"),
        *("--lr", "0.02", "--weight-decay", "0.001", "--patience", "2", "--monitor", "val-f1"),
        *("--split", "fractions:0.5/0.25:3", "--seeds", "7", "--json", *QUICK),
    ).records
    settings, training = record["settings"], record["training"]
    assert (record["system"], settings["score"], settings["num_layers"]) == ("gat", "sd", 3)
    assert (settings["heads"], settings["hidden_channels"], settings["dropout"]) == (4, 5, 0.25)
    assert (settings["norm"], settings["output_heads"], settings["bias"]) == ("batch", 2, False)
    assert settings["sd_scale"] == "sqrt-output-width"
    assert (training["lr"], training["weight_decay"]) == (0.02, 0.001)
    assert (training["patience"], training["monitor"], training["seed"]) == (2, "val-f1", 7)
    assert record["split"] == "fractions:0.5/0.25:3"


@pytest.mark.parametrize(
    ("model", "setting", "value"),
    [("gcn", "normalization", "row"), ("oracle", "score", "softmax"), ("deepgat", "score", "sd")],
)
def test_the_other_models_train(run, model, setting, value):
    choice = ("--score", value) if setting == "score" else ("--set", f"{setting}={value}")
    (record,) = run("train", "csbm", "--model", model, *choice, "--json", *QUICK).records
    assert (record["system"], record["settings"][setting]) == (model, value)


def test_the_authors_values_are_found_in_any_case_of_the_name(run, monkeypatch):
    def stop(*_: object) -> None:
        raise UserError("no data needed")

    seen = []
    monkeypatch.setattr(
        TRAIN,
        "recipe_or_search",
        lambda *a, **k: seen.append(made := recipe_or_search(*a, **k)) or made,
    )
    monkeypatch.setattr(TRAIN, "load_data", stop)
    run("train", "Physics", "--model", "deepgat", "--preset", "authors")
    assert seen[0].settings.hidden_channels == 16


def test_label_propagation_needs_no_training(run):
    command = ("train", "csbm", "--model", "label-propagation", "--layers", "2")
    (record,) = run(*command, "--json").records
    assert record["system"] == "label-propagation"
    assert record["settings"] == {"num_layers": 2}
    assert record["micro_f1"]["test"] > 0.3  # chance is 0.2
    shown = run(*command)
    assert "label propagation, 2 hops" in shown.out
    assert f"{100 * record['micro_f1']['test']:.2f}" in shown.out


def test_a_metric_and_weights_are_used_and_shown(run, tmp_path):
    out, chosen = tmp_path / "m", ("--metric", "roc_auc", "--class-weight", "balanced")
    shown = run("train", "csbm", "--out", out, *chosen, *SMALL)
    assert shown.code == 0
    assert "# roc_auc (%) of " in shown.out
    training = json.loads((out / "model.json").read_text())["training"]
    assert (training["monitor"], training["class_weight"]) == ("roc_auc", "balanced")
    metrics = json.loads((out / "metrics.json").read_text())["metrics"]
    assert f"{100 * metrics['roc_auc']['test']:.2f}" in shown.out
    scored = run("evaluate", out, "--device", "cpu").out.splitlines()
    for name, parts in metrics.items():
        cells = [f"{100 * parts[part]:.2f}" for part in ("test", "val", "train")]
        assert "\t".join([name, *cells]) in scored


def test_wrong_metrics_and_weights_are_told(run):
    for words, *told in (
        (("--metric", "auc"), "unknown metric 'auc': did you mean 'roc_auc'?"),
        (("--metric", "brier", "--monitor", "val-loss"), "--metric and --monitor both pick"),
        (("--class-weight", "many"), "--class-weight is 'many': expected balanced"),
        (("--class-weight", "1,2"), "class_weight has 2 weights, but the data has"),
    ):
        assert_sentence(run("train", "csbm", *SMALL, *words), *told)


# ------------------------------------------------------------------------- saving and resuming


def test_evaluate_gives_the_scores_of_the_training(run, tmp_path):
    out = tmp_path / "models"
    trained = run("train", "csbm", "--seeds", "0-1", "--out", out, "--json", *SMALL).records
    assert sorted(path.name for path in out.iterdir()) == ["seed-0", "seed-1"]
    scored = run("evaluate", out, "--json", "--device", "cpu").records
    assert [Path(record["folder"]).name for record in scored] == ["seed-0", "seed-1"]
    for a, b in zip(trained, scored, strict=True):
        for name in ("seed", "dataset", "split", "micro_f1", "loss", "metrics"):
            assert a[name] == b[name], name
    (one,) = run("evaluate", out / "seed-1", "--json", "--device", "cpu").records
    assert one == scored[1]
    shown = run("evaluate", out, "--device", "cpu")
    assert shown.code == 0
    for record in trained:
        assert f"{100 * record['micro_f1']['test']:.2f}" in shown.out


def test_seeds_are_evaluated_in_the_order_of_their_numbers(run, tmp_path):
    run("train", "csbm", "--seeds", "10,2,0", "--out", tmp_path / "m", "--json", *SMALL)
    scored = run("evaluate", tmp_path / "m", "--json").records
    assert [record["seed"] for record in scored] == [0, 2, 10]


def test_one_seed_is_saved_in_the_folder_itself(run, tmp_path):
    result = run("train", "csbm", "--out", tmp_path / "m[/a]", *SMALL)
    assert result.code == 0
    assert f"saved to {tmp_path / 'm[/a]'}" in result.out
    assert (tmp_path / "m[/a]" / "model.json").is_file()
    assert str(tmp_path / "m[/a]") in run("evaluate", tmp_path / "m[/a]").out


def test_resume_keeps_finished_runs(run, tmp_path, monkeypatch):
    command = ("train", "csbm", "--out", tmp_path / "m", "--json", *SMALL)
    first = run(*command, "--seeds", "0-1").records
    trained = []

    def watched(data, plan, seed, *more):
        trained.append(seed)
        return train_once(data, plan, seed, *more)

    monkeypatch.setattr(RUNS, "train_once", watched)
    again = run(*command, "--seeds", "0-1", "--resume")
    assert trained == []
    assert again.records == first
    more = run(*command, "--seeds", "0-2", "--resume")
    assert trained == [2]
    assert more.records[:2] == first
    run(*command, "--seeds", "0-1", "--resume", "--layers", "3")
    assert trained == [2, 0, 1]
    run(*command, "--seeds", "0-1", "--layers", "3")
    assert trained == [2, 0, 1, 0, 1]


FULL = (
    (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total"),
        " (2.50 GiB more were asked for)",
    ),
    (
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        "",
    ),
)


@pytest.mark.parametrize(("error", "size"), FULL)
def test_a_full_gpu_is_a_sentence(run, monkeypatch, error, size):
    def train(*_):
        raise error

    monkeypatch.setattr(RUNS, "train_once", train)
    result = run("train", "csbm", "--model", "deep", "--epochs", "1")
    assert result.code == 2
    assert f"error: the memory of the GPU is full{size}: let fewer programs" in result.err
    assert "Traceback" not in result.err


def test_resume_trains_a_damaged_run_again(run, tmp_path):
    command = ("train", "csbm", "--out", tmp_path / "m", "--resume", "--json", *SMALL)
    first = run(*command).records
    (tmp_path / "m" / "model.safetensors").write_bytes(b"")
    assert numbers(run(*command).records) == numbers(first)
    assert run("evaluate", tmp_path / "m").code == 0


@pytest.mark.parametrize("seeds", ["0", "0-1"])
def test_out_never_overwrites_what_is_not_a_model(run, tmp_path, monkeypatch, seeds):
    def fail(*_: object) -> None:
        raise AssertionError("trained before looking at --out")

    monkeypatch.setattr(RUNS, "train_once", fail)
    foreign = tmp_path / "foreign"
    for folder in (foreign, foreign / "seed-1"):
        folder.mkdir()
        (folder / "thesis.txt").write_text("years of work")
    file = tmp_path / "file"
    file.write_text("years of work")
    before = files(tmp_path)
    for out in (foreign, file, file / "deeper"):
        assert_sentence(
            run("train", "csbm", "--seeds", seeds, "--out", out, *SMALL), str(file.parent)
        )
    assert files(tmp_path) == before


def test_several_seeds_do_not_go_into_the_folder_of_one(run, tmp_path):
    run("train", "csbm", "--out", tmp_path / "m", "--json", *SMALL)
    before = files(tmp_path)
    result = run("train", "csbm", "--out", tmp_path / "m", "--seeds", "0-1", *SMALL)
    assert_sentence(result, "holds the model of one seed")
    assert files(tmp_path) == before


def test_evaluate_tells_damage_in_one_sentence(run, tmp_path):
    model = tmp_path / "m"
    assert_sentence(run("evaluate", model), "is not a model folder")
    model.mkdir()
    assert_sentence(run("evaluate", model), "holds no model: expected model.json in it")
    model.rmdir()
    run("train", "csbm", "--out", model, "--json", *SMALL)
    assert_sentence(run("evaluate", model, "--device", "nonsense"), "cannot be used here")
    description = model / "model.json"
    text = description.read_text()
    description.write_text(text.replace('"format": 2', '"format": 99'))
    assert_sentence(run("evaluate", model), "has model format 99", "upgrade deepgat")
    description.write_text(text.replace('"format": 2', '"format": 1'))
    assert_sentence(run("evaluate", model), "has model format 1", "train the model again")
    description.write_text(text.replace('"csbm"', '"nonsense"'))
    assert_sentence(run("evaluate", model), "unknown dataset 'nonsense'")
    description.write_text(text[: len(text) // 2])
    assert_sentence(run("evaluate", model), "is damaged: model.json is not the JSON")
    description.write_text(text)
    (model / "model.safetensors").write_bytes(b"short")
    assert_sentence(run("evaluate", model), "is damaged: model.safetensors is not the file")
    (model / "model.safetensors").unlink()
    assert_sentence(run("evaluate", model), "is damaged: model.safetensors cannot be read")
    file = tmp_path / "file"
    file.write_text("")
    assert_sentence(run("evaluate", file), "is not a model folder")


# -------------------------------------------------------------------------------- interruption


def interrupted_at(seed: int, epoch: int):
    """train_once with Ctrl-C after an epoch of a seed, or before its first."""

    def run(data, plan, number, on_epoch, *more):
        if number != seed:
            return train_once(data, plan, number, on_epoch, *more)
        if epoch == 0:
            raise KeyboardInterrupt

        def interrupt(seen) -> None:
            if seen.number == epoch:
                raise KeyboardInterrupt

        return train_once(data, plan, number, interrupt, *more)

    return run


def test_an_interrupt_keeps_the_best_so_far_and_resume_trains_it_again(run, tmp_path, monkeypatch):
    command = ("train", "csbm", "--seeds", "0-2", "--out", tmp_path / "m", "--json", *SMALL)
    monkeypatch.setattr(RUNS, "train_once", interrupted_at(1, 2))
    result = run(*command)
    assert result.code == 130
    assert "interrupted: the last run kept its best weights so far" in result.err
    assert [record["stopped"] for record in result.records] == ["epochs", "interrupted"]
    assert len(run("evaluate", tmp_path / "m", "--json").records) == 2
    monkeypatch.undo()
    again = run(*command, "--resume")
    assert [record["stopped"] for record in again.records] == ["epochs"] * 3
    assert again.records[0] == result.records[0]


def test_an_interrupt_keeps_the_state_that_was_saved(run, tmp_path, monkeypatch):
    command = ("train", "csbm", "--out", tmp_path / "m", "--save-every", "1", "--json", *SMALL)
    plain = run("train", "csbm", "--json", *SMALL)
    monkeypatch.setattr(RUNS, "train_once", interrupted_at(0, 2))
    assert run(*command).code == 130
    assert (tmp_path / "m.progress").exists()
    monkeypatch.undo()
    again = run(*command, "--resume")
    assert again.records[0]["micro_f1"] == plain.records[0]["micro_f1"]
    assert not (tmp_path / "m.progress").exists()


def test_an_interrupt_with_nothing_to_keep_still_shows_the_finished_runs(run, monkeypatch):
    monkeypatch.setattr(RUNS, "train_once", interrupted_at(1, 0))
    result = run("train", "csbm", "--seeds", "0-2", *SMALL)
    assert result.code == 130
    assert "Traceback" not in result.err
    assert "micro-F1 (%) of deep, " in result.out


def test_a_run_that_fails_still_shows_the_finished_ones(run, monkeypatch):
    def fail_second(data, plan, seed, *more):
        if seed == 1:
            raise UserError("the loss became nan")
        return train_once(data, plan, seed, *more)

    monkeypatch.setattr(RUNS, "train_once", fail_second)
    result = run("train", "csbm", "--seeds", "0-1", *SMALL)
    assert result.code == 2
    assert result.err == "error: the loss became nan\n"
    assert "micro-F1 (%) of deep, " in result.out


# ---------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("name", ["train", "evaluate", "datasets", "demo"])
def test_help_mentions_every_option(run, name):
    shown = run(name, "-h")
    assert shown.code == 0
    for parameter in load_command(name).params:
        assert parameter.opts[0] in shown.out or parameter.metavar in shown.out, parameter.name


@pytest.mark.parametrize("name", [*COMMANDS, *LAB])
def test_the_line_of_help_is_how_the_command_describes_itself(name):
    line, told = {**COMMANDS, **LAB}[name], load_command(name).help.splitlines()[0]
    assert line == told or name in ("reproduce", "bench")  # which say more than fits a line


def test_help_lists_the_commands(run):
    shown = run("--help")
    assert shown.code == 0
    for name in (*COMMANDS, *LAB):
        assert name in shown.out


def test_the_version_is_printed(run):
    shown = run("--version")
    assert shown.code == 0
    assert shown.out.startswith(f"deepgat {deepgat.__version__}, torch ")


# ---------------------------------------------------------------------------------------- demo


def test_demo_prints_a_table_and_writes_a_figure(run, tmp_path, monkeypatch):
    def scores(value: float) -> dict[str, float]:
        return dict.fromkeys(("train", "val", "test"), value)

    curves = {
        "GAT": {2: scores(0.95), 15: scores(0.1)},
        "DeepGAT": {2: scores(0.96), 15: scores(0.955)},
    }
    monkeypatch.setattr(DEMO, "DEPTHS", (2, 15))
    monkeypatch.setattr(DEMO, "train_both", lambda quiet: curves)
    result = run("demo", "--out", tmp_path / "figures", "--quiet")
    assert result.code == 0
    assert "95.50" in result.out
    assert "GAT collapses: 95.0% at 2 layers" in " ".join(result.out.split())
    figure = tmp_path / "figures" / "depth.png"
    assert f"Figure: {figure}" in result.out
    assert "Next: deepgat train digits" in result.out
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_demo_looks_at_out_before_it_trains(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.delattr(DEMO, "train_both")
    assert_sentence(run("demo", "--out", tmp_path / "file"), "is a file: --out expects a folder")


# ------------------------------------------------------------------------------- small texts


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0", [0]), ("0-3", [0, 1, 2, 3]), ("5, 1-2,5", [5, 1, 2]), ("7-7", [7])],
)
def test_seeds(text, seeds):
    assert parse_numbers(text, "--seeds") == seeds


@pytest.mark.parametrize("text", ["", ",", "1,", "-1", "1-", "a", "1.5", "1 2", "0-10000"])
def test_seeds_that_are_none(text):
    with pytest.raises(UserError, match="--seeds"):
        parse_numbers(text, "--seeds")


def test_choices_have_the_type_of_their_setting():
    texts = ["norm=layer", "bias=yes", "output-activation = no", "label_hops=5", "delta=1"]
    assert parse_settings(texts, "deepgat") == {
        "norm": "layer",
        "bias": True,
        "output_activation": False,
        "label_hops": 5,
        "delta": 1.0,
    }


# -------------------------------------------------------------------------- as a real process


def process(code: str, *arguments: str) -> Result:
    command = [sys.executable, "-c", code, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return Result(done.returncode, done.stdout, done.stderr)


HEAVY = {
    *("matplotlib", "numpy", "optuna", "pandas", "pyarrow", "scipy", "sklearn", "torch"),
    *("torch_geometric", "triton", "deepgat.data", "deepgat.lab", "deepgat.model", "deepgat.ops"),
}
"""What takes long to import."""


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, deepgat; print(*sys.modules)"
    result = process(code)
    assert result.code == 0
    loaded = result.out.split()
    assert "deepgat" in loaded
    assert HEAVY.isdisjoint(loaded)


def test_help_loads_nothing_heavy():
    code = (
        "import atexit, sys\n"
        "from deepgat.cli import main\n"
        "atexit.register(lambda: sys.stderr.write(' '.join(sys.modules)))\n"
        "main()"
    )
    result = process(code, "--help")
    assert result.code == 0
    assert "reproduce" in result.out
    loaded = result.err.split()
    assert "deepgat.cli" in loaded
    assert HEAVY.isdisjoint(loaded)


@pytest.mark.slow
def test_a_process_prints_json_alone_and_exits_with_2_on_a_mistake():
    code = (
        "import sys\n"
        "from deepgat.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "sys.argv = ['deepgat', 'train', 'nonsense']\n"
        "main()"
    )
    result = process(code, "train", "csbm", "--json", *SMALL)
    assert result.code == 2
    (record,) = result.records
    assert record["dataset"] == "csbm"
    missing = result.err.count("its fast kernels are missing")
    assert missing == (0 if kernels.available() else 1)  # told once, not in the output
    assert result.err.splitlines()[-1].startswith("error: unknown dataset 'nonsense'")
    assert len(result.err.splitlines()) == 1 + missing


# ------------------------------------------------------------------------------ models and configs


def test_models_are_listed_with_equation_paper_and_settings(run):
    result = run("models")
    assert result.code == 0
    for text in ("gcnii", "β = log(θ/l + 1)", "ICML 2020", "gcnii-cora, gcnii-pubmed"):
        assert text in result.out
    listed = {record["name"]: record for record in run("models", "--json").records}
    assert "85.5" in listed["gcnii"]["shipped"]["gcnii-cora"]
    assert listed["label-propagation"]["equation"] == "rm_diag(Â^k) Y"
    assert listed["gcnii"]["settings"]["theta"] == 0.5
    assert list(listed["gat"]["presets"]) == ["published", "paper", "authors"]


def test_one_model_is_shown_with_its_settings(run):
    shown = run("models", "gcnii")
    assert shown.code == 0
    for text in ("num_layers", "theta", "θ in β = log(θ/l + 1)", "0.5"):
        assert text in shown.out
    assert "attention_from" not in shown.out
    (record,) = run("models", "deep", "--json").records
    assert record["training"]["self_training"] == 1
    assert_sentence(run("models", "gcni"), "unknown model 'gcni': did you mean 'gcnii'?")


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(
        'system = "gcnii"\n[data]\ndataset = "digits"\nsplit = "random:1:5/5"\n'
        "[settings]\nnum_layers = 3\nhidden_channels = 8\n[training]\nepochs = 2\nlr = 0.02\n"
    )
    return path


def test_a_file_of_settings_is_run(run, file):
    (record,) = run("train", "--config", file, "--device", "cpu", "--json").records
    assert (record["dataset"], record["split"]) == ("digits", "random:1:5/5")
    assert (record["system"], record["settings"]["num_layers"]) == ("gcnii", 3)
    assert record["settings"]["theta"] == 0.5
    assert (record["training"]["lr"], record["training"]["weight_decay_conv"]) == (0.02, 0.01)
    result = run("train", "--config", file, "--device", "cpu")
    assert "of gcnii, 3 layers" in result.out


def test_options_win_over_the_file(run, file):
    given = ("--layers", 2, "--set", "theta=1.5", "--epochs", 1)
    more = ("--train", "weight_decay_conv=0.5", "--split", "random:2:5/5", "--seeds", 3)
    (record,) = run("train", "--config", file, *given, *more, "--device", "cpu", "--json").records
    settings, training = record["settings"], record["training"]
    assert (settings["num_layers"], settings["hidden_channels"]) == (2, 8)
    assert (record["system"], settings["theta"]) == ("gcnii", 1.5)
    assert (training["weight_decay_conv"], training["lr"], training["epochs"]) == (0.5, 0.02, 1)
    assert (record["split"], record["seed"]) == ("random:2:5/5", 3)


def test_another_model_leaves_the_files_settings_behind(run, file):
    """They are of its own model; how it is trained stays."""
    given = ("--model", "deepgat", "--device", "cpu", "--json")
    (record,) = run("train", "--config", file, *given).records
    assert (record["system"], record["settings"]["hidden_channels"]) == ("deepgat", 8)
    assert record["settings"]["num_layers"] == 2
    assert (record["training"]["lr"], record["training"]["epochs"]) == (0.02, 2)


def test_another_dataset_leaves_the_files_split_behind(run, file):
    (record,) = run("train", "csbm", "--config", file, "--device", "cpu", "--json").records
    assert record["dataset"] == "csbm"
    assert record["split"] != "random:1:5/5"


def test_a_system_is_trained_by_its_name(run):
    given = ("--layers", 2, "--hidden", 4, *QUICK, "--json")
    (record,) = run("train", "digits", "--model", "g2", *given).records
    assert (record["system"], record["settings"]["power"]) == ("g2", 2.5)


def test_label_propagation_from_a_file(run, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "system = 'label-propagation'\n[data]\ndataset = 'digits'\n[settings]\nnum_layers = 3\n"
    )
    (record,) = run("train", "--config", path, "--json").records
    assert record["system"] == "label-propagation"
    assert record["settings"] == {"num_layers": 3}


def test_nothing_to_train_on_is_told(run):
    assert_sentence(run("train"), "deepgat train DATASET, or --config FILE")
    assert_sentence(run("train", "--config", "gcnii-coar"), "did you mean 'gcnii-cora'")
    assert_sentence(run("train", "--config", "none.toml"), "none.toml does not exist")
