"""Runs that take no time, for tests of what happens around them; importable by worker processes."""

import os
import signal
import time
from pathlib import Path

import torch

from deepgat.errors import Diverged, UserError
from deepgat.lab.experiments import AnalysisSpec, DataSpec, RunSpec
from deepgat.lab.experiments.spec import SCHEMA
from deepgat.lab.experiments.work import Made
from deepgat.models import DeepGAT
from deepgat.training.settings import TrainSettings

LOG = "DEEPGAT_TEST_LOG"
"""Names a file to which every job that finishes its work adds a line with its signature."""

FAILING, KILLED, WAITING, KILLED_ONCE = 1001, 1002, 1003, 1004
"""Seeds of runs that fail, whose process is killed, and that go on for a minute; the last one's
process is killed the first time only, if there is a log."""
DIVERGING = 1007
"""Layers of GATs that diverge."""
LARGE, LONG = 1005, 1006
"""Seeds of a run that has no room until the second one is over, and of that one, which waits for
the first to be refused."""


def spec(seed: int = 0, layers: int = 2, dataset: str = "csbm", **analysis) -> RunSpec:
    return RunSpec(
        DataSpec(dataset),
        "deepgat",
        DeepGAT.Config(num_layers=layers, hidden_channels=2, heads=1),
        TrainSettings(seed=seed, epochs=2),
        AnalysisSpec(**analysis),
    )


def record_of(wanted: RunSpec, **more) -> dict:
    """What a run would record."""
    return {
        "signature": wanted.signature,
        "schema": SCHEMA,
        "dataset": wanted.data.dataset,
        "split": wanted.data.split,
        "seed": wanted.seed,
        "micro_f1": {"val": 0.5, "test": wanted.seed / 10_000},
        "loss": {"val": 1.0, "test": 1.0},
        "best_epoch": 1,
        "epochs": 2,
        "stopped": "patience",
        "seconds": 0.01,
        "wall_seconds": 0.01,
        "peak_memory": {"bytes": 2**20, "of": "nothing"},
        "versions": {"python": "3"},
        "hardware": "none",
        "measures": {},
        **wanted.to_dict(),
        **more,
    }


def graded_record(wanted: RunSpec) -> dict:
    """A record whose scores follow from the spec: GAT falls with depth, DeepGAT does not."""
    lost = 0.05 * wanted.layers if wanted.system == "gat" else 0.0
    share = 0.9 - lost + 0.01 * wanted.seed
    error = {"error": 1 - share, "bayes_lower": (1 - share) / 2, "bayes_upper": 1 - share}
    return record_of(
        wanted,
        micro_f1={"train": 1.0, "val": share - 0.02, "test": share},
        measures={"nearest-neighbor": {"train": error, "train+val": error}},
    )


def graded(wanted: RunSpec, device: str) -> Made:
    """A run at once, with those scores; where attention is kept, uniform on a path of nodes."""
    arrays = arrays_of(wanted)
    if wanted.analysis.attention != "none":
        degree = torch.tensor([2, 3, 3, 2])
        arrays["attention.ptr"] = torch.cat([torch.zeros(1), degree.cumsum(0)]).int()
        uniform = (1 / degree.float()).repeat_interleave(degree)
        tilted = torch.tensor([0.5, 0.5, 0.25, 0.5, 0.25, 0.25, 0.5, 0.25, 0.5, 0.5])
        layers = wanted.layers
        arrays |= {f"attention.{layer}": uniform.clone() for layer in range(1, layers)}
        arrays[f"attention.{layers}"] = tilted if layers == 2 else uniform.clone()
    return Made(graded_record(wanted), arrays)


def arrays_of(wanted: RunSpec) -> dict[str, torch.Tensor]:
    return {"curve.loss": torch.arange(8) + float(wanted.seed)}


def fake(wanted: RunSpec, device: str) -> Made:
    """A run at once, unless its seed says otherwise."""
    if wanted.seed == FAILING:
        raise UserError("the loss became nan")
    if wanted.layers == DIVERGING and wanted.system == "gat":
        raise Diverged("the loss became nan at epoch 3")
    if wanted.seed == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if wanted.seed == KILLED_ONCE and "killed" not in told(Path(os.environ[LOG])):
        tell("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    if wanted.seed == WAITING:
        tell("waiting")
        time.sleep(60)
    tell(wanted.signature)
    return Made(record_of(wanted), arrays_of(wanted))


def crowding(wanted: RunSpec, device: str) -> Made:
    """Runs of which two do not fit into the memory of a GPU together."""
    log = Path(os.environ[LOG])
    if wanted.seed == LARGE and spec(seed=LONG).signature not in told(log):
        tell("refused")
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 18.00 MiB. GPU 0 has")
    while wanted.seed == LONG and "refused" not in told(log):
        time.sleep(0.01)
    return fake(wanted, device)


def tell(line: str) -> None:
    if path := os.environ.get(LOG):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)


def told(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


_harmed: list[int] = []


def harmful(wanted: RunSpec, device: str) -> Made:
    """The failing run spoils its process for all later ones, as an error on a GPU does."""
    if wanted.seed == FAILING:
        _harmed.append(wanted.seed)
    if _harmed:
        raise RuntimeError("the device is in no state to go on")
    return graded(wanted, device)
