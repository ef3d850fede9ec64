"""What the terminal shows while a training runs."""

import importlib
import io

import pytest
from rich.console import Console

from deepgat.cli import show
from deepgat.data import load_graph
from deepgat.training.recipes import recipe
from deepgat.training.resume import Epoch

TRAIN = importlib.import_module("deepgat.cli.train")


class EnoughError(Exception):
    """Ends a training."""


@pytest.fixture
def terminal(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)
    monkeypatch.setattr(show, "ERR", console)
    return console


@pytest.mark.parametrize(
    ("number", "best", "counted"),
    [
        (12, 10, "12/110"),  # the best epoch and the patience that follows it
        (130, 10, "130/130"),  # a second stage, which has no best epoch of its own yet
        (190, 150, "190/200"),  # never beyond the last epoch
    ],
)
def test_the_bar_ends_where_training_would(terminal, monkeypatch, number, best, counted):
    def train(data, plan, seed, on_epoch, *more):
        on_epoch(Epoch(number, loss=0.5, val_loss=0.4, val_f1=0.875, best_number=best))
        raise EnoughError

    monkeypatch.setattr(TRAIN, "train_once", train)
    plan = recipe(training={"epochs": 200, "patience": 100})
    with pytest.raises(EnoughError):
        TRAIN._run(load_graph("csbm"), plan, None, None, False, None)
    text = terminal.file.getvalue()
    assert counted in text
    assert f"val F1 87.50  best epoch {best}" in text


def test_no_bar_where_nobody_looks(terminal):
    with show.progress_bar(quiet=True) as update:
        update("training", 0.5)
    terminal._force_terminal = False
    with show.progress_bar() as update:
        update("training", 0.5)
    assert not terminal.file.getvalue()
