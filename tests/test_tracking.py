"""Training runs in TensorBoard and MLflow: every epoch once, settings, scores, the model."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import deepgat
from deepgat.cli import main
from deepgat.errors import UserError
from deepgat.tracking import TRACKERS, open_tracker, tracked_run, tracked_search
from deepgat.tracking.tracked import Described, epoch_values
from deepgat.training.auto import train_auto
from deepgat.training.recipes import recipe
from deepgat.training.resume import Epoch, Progress
from deepgat.training.run import train_once
from deepgat.training.search import Request
from tiny import tiny_dataset

SHORT = {"epochs": 6, "device": "cpu"}


def needs(name: str) -> None:
    if name == "tensorboard":
        pytest.importorskip("tensorboard")
    else:
        pytest.importorskip("mlflow")


@pytest.fixture(params=TRACKERS)
def kind(request, monkeypatch) -> str:
    needs(request.param)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    return request.param


@pytest.fixture
def place(kind, tmp_path, monkeypatch) -> str:
    """MLflow's old store of files: its database takes seconds to make."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "tracked"
    folder.mkdir()
    return str(folder) if kind == "tensorboard" else folder.as_uri()


def curves(kind: str, place: str) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """{run: {name: [(step, value)]}} of all runs that a tracker has, children named too."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    if kind == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folders = {path.parent for path in Path(place).rglob("events.out.tfevents.*")}
        for folder in sorted(folders):
            events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
            events.Reload()
            found[str(folder.relative_to(place))] = {
                name: [(event.step, event.value) for event in events.Scalars(name)]
                for name in events.Tags()["scalars"]
            }
        return found
    client, runs = mlflow_runs(place)
    for run in runs:
        found[run.info.run_name + "/" + run.info.run_id] = {
            name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
    return found


def mlflow_runs(place: str):
    import mlflow

    client = mlflow.MlflowClient(place)
    experiment = client.get_experiment_by_name("deepgat")
    return client, client.search_runs([experiment.experiment_id])


def test_a_fit_is_tracked(kind, place):
    seen: list[Epoch] = []
    data = tiny_dataset()
    model = deepgat.fit(
        data, "gcn", seed=3, training=SHORT, on_epoch=seen.append, track=kind, track_to=place
    )
    (curve,) = curves(kind, place).values()
    for name, values in (("train/loss", [e.loss for e in seen]),
                         ("val/loss", [e.val_loss for e in seen]),
                         ("val/micro_f1", [e.val_f1 for e in seen])):  # fmt: skip
        assert [step for step, _ in curve[name]] == [1, 2, 3, 4, 5, 6]
        assert [value for _, value in curve[name]] == pytest.approx(values, rel=1e-5)
    for part, value in model.metrics["accuracy"].items():
        ((_, told),) = curve[f"scores/{part}/accuracy"]
        assert told == pytest.approx(value, rel=1e-5)
    if kind == "mlflow":
        _, (run,) = mlflow_runs(place)
        assert run.info.status == "FINISHED"
        assert run.data.params["system"] == "gcn"
        assert run.data.params["training.seed"] == "3"
        assert run.data.params["model.num_layers"] == str(
            model.card.settings.to_dict()["num_layers"]
        )
        assert run.data.tags["deepgat.stopped"] == "epochs"


def test_it_does_not_change_the_numbers(kind, place):
    data = tiny_dataset()
    alone = deepgat.fit(data, "gcn", training=SHORT)
    tracked = deepgat.fit(data, "gcn", training=SHORT, track=kind, track_to=place)
    assert alone.metrics == tracked.metrics


def test_two_runs_of_the_same_settings_are_two(kind, place):
    for _ in range(2):
        deepgat.fit(tiny_dataset(), "gcn", training=SHORT, track=kind, track_to=place)
    found = curves(kind, place)
    assert len(found) == 2
    for curve in found.values():
        assert [step for step, _ in curve["train/loss"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_auto_has_a_run_for_every_recipe(kind, place):
    model = deepgat.fit(tiny_dataset(), training=SHORT, track=kind, track_to=place)
    rows = [row for row in model.leaderboard() if row["epochs"]]
    found = curves(kind, place)
    children = {Path(name).parts[-1 if kind == "tensorboard" else 0]: each
                for name, each in found.items()}  # fmt: skip
    for row in rows:
        steps = [step for step, _ in children[row["name"]]["train/loss"]]
        assert steps == list(range(1, row["epochs"] + 1))
        metric = "scores/val/micro_f1"
        assert children[row["name"]][metric][0][1] == pytest.approx(row["val"], rel=1e-5)
    assert len(found) == len(rows) + 1
    if kind == "mlflow":
        _, runs = mlflow_runs(place)
        (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        others = [run for run in runs if run is not parent]
        assert {run.data.tags["mlflow.parentRunId"] for run in others} == {parent.info.run_id}
        assert parent.data.params["system"] == model.card.system
        assert {run.info.status for run in runs} == {"FINISHED"}


class Killed(BaseException):
    """As SIGKILL: no clean-up of the tracker runs."""


@pytest.mark.parametrize("begun", [True, False], ids=["tracked before", "tracked from then on"])
def test_a_resumed_run_has_every_epoch_once(kind, place, tmp_path, begun):
    data, plan = tiny_dataset(), recipe("gcn", training=SHORT)
    progress = Progress(tmp_path / "state", every=2)
    tracker = open_tracker(kind, place)
    seen: list[Epoch] = []

    def die(epoch: Epoch) -> None:
        if epoch.number == 5:  # the state is that of epoch 4
            raise Killed

    if begun:
        before = tracked_run(tracker, data, plan, 0, die)
        watch = before.__enter__()
        with pytest.raises(Killed):
            train_once(data, plan, 0, watch, progress=progress)
        # `before` is not left: the tracker is told nothing more
    else:
        with pytest.raises(Killed):
            train_once(data, plan, 0, die, progress=progress)
    with tracked_run(tracker, data, plan, 0, seen.append, resumed=True) as watch:
        run = train_once(data, plan, 0, watch, progress=replace(progress, resume=True))
        watch.finish(run)
    assert [epoch.number for epoch in seen] == [5, 6]
    (curve,) = curves(kind, place).values()
    assert [step for step, _ in curve["train/loss"]] == [1, 2, 3, 4, 5, 6]
    losses = [epoch.loss for epoch in run.fitted.history]
    assert [value for _, value in curve["train/loss"]] == pytest.approx(losses, rel=1e-5)


@pytest.mark.slow
def test_a_resumed_search_has_every_epoch_once(kind, place, tmp_path):
    data, request = tiny_dataset(), Request(training={"epochs": 40, "device": "cpu"})
    tracker = open_tracker(kind, place)
    steps = []

    def die(step) -> None:
        steps.append(step)
        if step.number > 1 and step.epoch.number == 28:
            raise Killed

    watch = tracked_search(tracker, data, request, 0, die).__enter__()
    with pytest.raises(Killed):
        train_auto(data, request, 0, watch, tmp_path / "states")
    with tracked_search(tracker, data, request, 0, resumed=True) as watch:
        run = train_auto(data, request, 0, watch, tmp_path / "states", resume=True)
        watch.finish(run)
    found = curves(kind, place)
    rows = {row["name"]: row for row in run.search.leaderboard if row["epochs"]}
    assert len(found) == len(rows) + 1
    children = {Path(name).parts[-1 if kind == "tensorboard" else 0]: each
                for name, each in found.items()}  # fmt: skip
    for name, row in rows.items():
        steps = [step for step, _ in children[name]["train/loss"]]
        assert steps == list(range(1, row["epochs"] + 1)), name


@pytest.mark.parametrize("kind", ["mlflow"], indirect=True)  # TensorBoard knows no status
def test_a_run_that_fails_or_is_interrupted_says_so(place, kind):
    for error in (KeyboardInterrupt, ValueError):
        with (
            pytest.raises(error),
            tracked_run(open_tracker(kind, place), tiny_dataset(), recipe("gcn"), 0),
        ):
            raise error
    _, runs = mlflow_runs(place)
    assert [run.info.status for run in runs] == ["FAILED", "KILLED"]


def test_a_tracker_that_fails_does_not_end_the_training(kind, place, monkeypatch):
    tracker = open_tracker(kind, place)
    data, plan = tiny_dataset(), recipe("gcn", training=SHORT)

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    told = "tracking of .* failed .*disk is full.*training goes on"
    with tracked_run(tracker, data, plan, 0) as watch:
        monkeypatch.setattr(watch.tracked.inner, "write_epoch", fail)
        with pytest.warns(UserWarning, match=told) as found:
            run = train_once(data, plan, 0, watch)
        watch.finish(run)
    assert len([each for each in found if "goes on" in str(each.message)]) == 1
    assert len(run.fitted.history) == 6


def test_the_metric_that_picks_the_epoch_is_tracked():
    epoch = Epoch(1, 0.5, 0.6, 0.7, 1, -0.25)
    told = epoch_values(epoch, Described("a", "k", metric="brier"))
    assert told == {"train/loss": 0.5, "val/loss": 0.6, "val/micro_f1": 0.7, "val/brier": 0.25}
    told = epoch_values(replace(epoch, val_score=0.8), Described("a", "k", weighted=True))
    assert told["val/weighted_accuracy"] == 0.8


# ------------------------------------------------------------------------------ the command line


def deepgat_(monkeypatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["deepgat", *map(str, words)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code or 0


def test_the_command(kind, place, my_graph, monkeypatch, capsys):
    words = ["train", my_graph, "--model", "gcn", "--epochs", 4, "--seeds", "0,1", "--keep-graph"]
    where = ["--out", my_graph.parent / "model", "--track", kind, "--track-to", place]
    assert not deepgat_(monkeypatch, *words, *where), capsys.readouterr().err
    found = curves(kind, place)
    assert len(found) == 2
    for curve in found.values():
        assert [step for step, _ in curve["train/loss"]] == [1, 2, 3, 4]
    if kind == "mlflow":
        client, runs = mlflow_runs(place)
        for run in runs:
            kept = Path(client.download_artifacts(run.info.run_id, "model/deepgat_model"))
            saved = my_graph.parent / "model" / f"seed-{run.data.params['training.seed']}"
            for name in ("model.safetensors", "model.json", "README.md", "graph/x.npy"):
                assert (kept / name).read_bytes() == (saved / name).read_bytes()


def test_the_command_with_auto(kind, place, my_graph, monkeypatch, capsys):
    words = ["train", my_graph, "--quality", "fast", "--epochs", 4]
    assert not deepgat_(monkeypatch, *words, "--track", kind, "--track-to", place)
    assert len(curves(kind, place)) == 2


def test_mistakes_are_told_before_training(my_graph, monkeypatch, capsys):
    assert deepgat_(monkeypatch, "train", my_graph, "--track", "wandb") == 2
    assert "choose one of mlflow, tensorboard" in capsys.readouterr().err
    assert deepgat_(monkeypatch, "train", my_graph, "--track-to", "x") == 2
    assert "--track" in capsys.readouterr().err
    (my_graph.parent / "file").write_text("")
    for kind in TRACKERS:
        needs(kind)
        words = ["train", my_graph, "--track", kind, "--track-to", my_graph.parent / "file" / "x"]
        assert deepgat_(monkeypatch, *words) == 2
        assert "cannot be written" in " ".join(capsys.readouterr().err.split())
    words = ["train", "csbm", "--model", "label-propagation", "--track", "tensorboard"]
    assert deepgat_(monkeypatch, *words) == 2
    with pytest.raises(UserError, match="name it too, as track"):
        deepgat.fit(tiny_dataset(), track_to="x")


@pytest.mark.parametrize("kind", TRACKERS)
def test_a_missing_package_is_one_sentence(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    told = rf"which is not installed: pip install 'deepgat\[{kind}\]'"
    with pytest.raises(UserError, match=told):
        deepgat.fit(tiny_dataset(), "gcn", training=SHORT, track=kind)
    if kind == "mlflow":
        with pytest.raises(UserError, match=told):
            deepgat.mlflow.load_model("x")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_neither_package_is_loaded_without_being_asked_for(tmp_path):
    code = """
import sys, json
import deepgat
from tiny import tiny_dataset
deepgat.fit(tiny_dataset(), "gcn", training={"epochs": 1}).save("model")
print(json.dumps([name for name in ("mlflow", "tensorboard") if name in sys.modules]))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                           cwd=tmp_path, env=environment, check=True)  # fmt: skip
    assert json.loads(found.stdout) == []


@pytest.mark.slow
def test_a_folder_holds_mlflows_database_and_the_models(my_graph, monkeypatch, capsys):
    for name in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(name)
    words = ["train", my_graph, "--model", "gcn", "--epochs", 4, "--out", my_graph.parent / "model"]
    assert not deepgat_(monkeypatch, *words, "--track", "mlflow", "--track-to", "tracked")
    place = my_graph.parent / "tracked"
    (curve,) = curves("mlflow", f"sqlite:///{place / 'mlflow.db'}").values()
    assert [step for step, _ in curve["train/loss"]] == [1, 2, 3, 4]
    assert len(list(place.glob("artifacts/*/artifacts/model/MLmodel"))) == 1
    assert not (my_graph.parent / "mlruns").exists()


@pytest.mark.parametrize("kind", ["mlflow"], indirect=True)  # TensorBoard has no active run
def test_a_run_is_nested_in_the_active_one(place, kind):
    import mlflow

    experiment = open_tracker(kind, place).experiment
    mlflow.set_tracking_uri(place)
    try:
        with mlflow.start_run(experiment_id=experiment) as outer:
            deepgat.fit(tiny_dataset(), "gcn", training=SHORT, track=kind, track_to=place)
    finally:
        mlflow.set_tracking_uri(None)
    _, runs = mlflow_runs(place)
    parents = [run.data.tags.get("mlflow.parentRunId") for run in runs]
    assert outer.info.run_id in parents
