"""Runs that take no time, for tests of what happens around them; importable by worker processes."""

import os
import signal
import time
from pathlib import Path

import torch

from deepgat.errors import UserError
from deepgat.experiments import AnalysisSpec, DataSpec, RunSpec
from deepgat.experiments.work import Made, OnEpoch
from deepgat.nn import ModelSettings
from deepgat.train import Epoch, TrainSettings

LOG = "DEEPGAT_TEST_LOG"
"""Names a file to which every job that finishes its work adds a line with its signature."""

FAILING, KILLED, WAITING = 1001, 1002, 1003
"""Seeds of runs that fail, whose process is killed, and that go on for a minute."""


def spec(seed: int = 0, layers: int = 2, dataset: str = "csbm", **analysis) -> RunSpec:
    return RunSpec(
        DataSpec(dataset),
        ModelSettings(layers=layers, hidden=2, heads=1),
        TrainSettings(seed=seed, epochs=2),
        AnalysisSpec(**analysis),
    )


def record_of(wanted: RunSpec, **more) -> dict:
    """What a run would record."""
    return {
        "signature": wanted.signature,
        "results_version": 1,
        "dataset": wanted.data.dataset,
        "split": wanted.data.split,
        "seed": wanted.seed,
        "micro_f1": {"val": 0.5, "test": wanted.seed / 10_000},
        "stopped": "patience",
        "wall_seconds": 0.01,
        **wanted.to_dict(),
        **more,
    }


def arrays_of(wanted: RunSpec) -> dict[str, torch.Tensor]:
    return {"curve.loss": torch.arange(8) + float(wanted.seed)}


def fake(wanted: RunSpec, device: str, on_epoch: OnEpoch | None) -> Made:
    """A run at once, unless its seed says otherwise."""
    if wanted.seed == FAILING:
        raise UserError("the loss became nan")
    if wanted.seed == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if wanted.seed == WAITING:
        tell("waiting")
        for number in range(600):
            time.sleep(0.1)
            if on_epoch is not None:
                on_epoch(Epoch(number, 0.0, 0.0, 0.0))
    tell(wanted.signature)
    return Made(record_of(wanted), arrays_of(wanted))


def tell(line: str) -> None:
    if path := os.environ.get(LOG):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)


def told(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []
