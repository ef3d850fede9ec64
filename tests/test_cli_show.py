"""What the terminal shows while a training runs."""

import io

import pytest
from rich.console import Console

from deepgat.cli import show
from deepgat.training.resume import Epoch
from deepgat.training.settings import TrainSettings


@pytest.fixture
def terminal(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)
    monkeypatch.setattr(show, "ERR", console)
    return console


def shown(terminal: Console, number: int, best: int, training: TrainSettings) -> str:
    """The bar as it is left after this epoch."""
    with show.epoch_progress("training", training, quiet=False) as update:
        update(Epoch(number, loss=0.5, val_loss=0.4, val_f1=0.875, best_number=best))
    return terminal.file.getvalue()


@pytest.mark.parametrize(
    ("number", "best", "counted"),
    [
        (12, 10, "12/110"),  # the best epoch and the patience that follows it
        (130, 10, "130/130"),  # a second stage, which has no best epoch of its own yet
        (190, 150, "190/200"),  # never beyond the last epoch
    ],
)
def test_the_bar_ends_where_training_would(terminal, number, best, counted):
    text = shown(terminal, number, best, TrainSettings(epochs=200, patience=100))
    assert counted in text
    assert f"val F1 87.50  best epoch {best}  ≥ " in text
    assert "≥ -" not in text


def test_no_bar_where_nobody_looks(terminal):
    with show.epoch_progress("training", TrainSettings(), quiet=True) as update:
        assert update is None
    terminal._force_terminal = False
    with show.epoch_progress("training", TrainSettings(), quiet=False) as update:
        assert update is None
    assert not terminal.file.getvalue()
