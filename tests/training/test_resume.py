"""A resumed training run ends as if it had never been interrupted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepgat.errors import UserError
from deepgat.models import Network, build_network
from deepgat.training import loop
from deepgat.training.loop import FitResult
from deepgat.training.recipes import Recipe, recipe
from deepgat.training.resume import Epoch, Progress
from deepgat.training.run import train_once
from tiny import tiny_dataset, tiny_labels

SMALL = {"num_layers": 2, "hidden_channels": 4}
PLANS = {
    "authors": recipe("deepgat", preset="authors", **SMALL, heads=2),
    "batch": recipe("deepgat", preset="authors", **SMALL, heads=2, norm="batch"),
    "deep": recipe("deep", num_layers=3, hidden_channels=8),
    "second-stage": recipe(
        "deep",
        num_layers=3,
        hidden_channels=8,
        training={"self_training": 1.0, "ema": 0.9, "patience": 2, "lr": 0.2},
    ),
    "dropedge": recipe("dropedge", num_layers=2, hidden_channels=8),
}


class KilledError(Exception):
    pass


def train(
    plan: Recipe, path: Path, every: int = 3, resume: bool = False, until: int | None = None, **more
) -> tuple[FitResult, Network]:
    """Twelve epochs, unless told otherwise; killed after ``until`` of them."""
    data = tiny_dataset()
    torch.manual_seed(0)
    model = build_network(plan.system, plan.settings, data.num_features, data.num_classes)
    settings = replace(plan.training, **{"epochs": 12, "device": "cpu", **more})

    def on_epoch(epoch: Epoch) -> None:
        if epoch.number == until:
            raise KilledError

    progress = Progress(path, every, key="same", resume=resume)
    return loop.train(model, data, settings, on_epoch, progress=progress), model


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(
    "until", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(11, marks=pytest.mark.slow)]
)
def test_the_weights_are_the_same_to_the_bit(tmp_path, name, until):
    whole, expected = train(PLANS[name], tmp_path / "whole")
    with pytest.raises(KilledError):
        train(PLANS[name], tmp_path / "kept", until=until)
    assert (tmp_path / "kept").exists() == (until > 3)  # what came after epoch 3 is lost
    again, model = train(PLANS[name], tmp_path / "kept", resume=True)
    assert again.history == whole.history
    assert again.best == whole.best
    for key, weight in expected.state_dict().items():
        assert torch.equal(weight, model.state_dict()[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("until", [30, -4, -1])
def test_a_second_stage_goes_on_where_it_was(tmp_path, until):
    """Killed while its targets grow, and so many epochs before its end."""
    more = {"epochs": 80, "patience": 8, "lr": 0.2}
    whole, expected = train(PLANS["second-stage"], tmp_path / "whole", **more)
    began = next(e.number for e in whole.history if e.number > e.best_number + 8)
    assert began < 25 < whole.best.number - 30, "not its own best: nothing is tested"
    stop = until if until > 0 else len(whole.history) + until
    with pytest.raises(KilledError):
        train(PLANS["second-stage"], tmp_path / "kept", until=stop, **more)
    again, model = train(PLANS["second-stage"], tmp_path / "kept", resume=True, **more)
    assert (again.history, again.best) == (whole.history, whole.best)
    for key, weight in expected.state_dict().items():
        assert torch.equal(weight, model.state_dict()[key]), key


def test_what_patience_ended_stays_ended(tmp_path):
    whole, _ = train(PLANS["authors"], tmp_path / "kept", every=1, patience=2, monitor="val-f1")
    assert whole.stopped == "patience"
    again, _ = train(
        PLANS["authors"], tmp_path / "kept", 1, resume=True, patience=2, monitor="val-f1"
    )
    assert again.history == whole.history
    assert again.stopped == "patience"
    assert again.best == whole.best


def test_without_resume_it_starts_anew_and_replaces_the_file(tmp_path):
    with pytest.raises(KilledError):
        train(PLANS["deep"], tmp_path / "kept", until=5)
    before = (tmp_path / "kept").read_bytes()
    fitted, _ = train(PLANS["deep"], tmp_path / "kept")
    assert len(fitted.history) == 12
    assert (tmp_path / "kept").read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]  # nothing half written is left


def test_files_of_others_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "kept"
    train(PLANS["deep"], path)
    data, plan = tiny_dataset(), PLANS["deep"]
    torch.manual_seed(0)
    model = build_network(plan.system, plan.settings, data.num_features, data.num_classes)
    with pytest.raises(UserError, match="belongs to another training run"):
        loop.train(model, data, plan.training, progress=Progress(path, 3, key="other", resume=True))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="is damaged"):
        loop.train(model, data, plan.training, progress=Progress(path, 3, key="same", resume=True))
    with pytest.raises(UserError, match="expected 1 or more"):
        Progress(path, 0, key="same")


def test_a_run_knows_its_own_file(tmp_path):
    """The key is the run's card: another seed or another setting does not take it for its own."""
    data, plan = (
        tiny_labels(),
        recipe("deepgat", preset="authors", num_layers=1, hidden_channels=4, heads=2, label_hops=0),
    )
    plan = plan._replace(training=replace(plan.training, epochs=4, device="cpu"))
    progress = Progress(tmp_path / "kept", 2, key="", resume=True)
    first = train_once(data, plan, 0, progress=progress)
    again = train_once(data, plan, 0, progress=progress)
    assert first.fitted.history == again.fitted.history
    with pytest.raises(UserError, match="belongs to another training run"):
        train_once(data, plan, 1, progress=progress)


def test_the_state_of_a_finished_run_is_removed_and_no_other(tmp_path):
    """As after a kill between saving the model and removing its state."""
    path = tmp_path / "kept"
    Progress(path, 1, key="mine").write({}, [], 0.0)
    Progress(path, 1).remove("other")
    assert path.exists()
    Progress(path, 1).remove("mine")
    assert not path.exists()
    Progress(path, 1).remove("mine")
