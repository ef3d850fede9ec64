"""What a user asks of ``auto``, and what it tells: quality, metric, leaderboard, reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepgat.analysis.metrics import METRICS
from deepgat.data import NodeDataset
from deepgat.errors import UserError, unknown_name
from deepgat.models.config import MOST_LAYERS, Config, setting
from deepgat.models.registry import ENSEMBLE, SYSTEMS, find_system
from deepgat.training.looks import Looks
from deepgat.training.resume import Epoch
from deepgat.training.settings import TrainSettings

AUTO = "auto"
"""What ``model`` is called where no system is named."""
QUALITIES = ("fast", "good", "best")
OWN = frozenset(
    (
        "device", "epochs", "monitor", "class_weight", "precision", "checkpoint", "batches",
        "batch_size", "clusters", "fan_out", "most_nodes", "seed",
    )
)  # fmt: skip
"""Training settings that a user may name and still leave the rest to ``auto``."""


def check_model(name: str | None) -> None:
    """Refuse a name that is neither that of a system nor "auto"."""
    if name is not None and name not in (AUTO, ENSEMBLE, *SYSTEMS):
        raise unknown_name("model", name, (AUTO, *SYSTEMS))


def is_auto(
    model: str | None,
    preset: str | None,
    settings: Mapping[str, Any],
    training: Mapping[str, Any],
) -> bool:
    """Whether a recipe has to be searched for.

    That is so where none is named. Settings of one system, named without it, are those of ``deep``.
    """
    if model == AUTO:
        own = [name for name in settings if name != "num_layers"]
        if odd := [*own, *(name for name in training if name not in OWN)]:
            raise UserError(
                f"{odd[0]} is a setting of one recipe, and auto tries several: name a model too"
            )
        if preset is not None:
            raise UserError("preset is of one system, and auto tries several: name a model too")
        return True
    return model is None and preset is None and not settings and OWN.issuperset(training)


@dataclass(frozen=True)
class SearchSettings(Config):
    """The part of a request that is the same on every machine, as settings of a run."""

    quality: str = setting("good", "how much is tried", QUALITIES)
    num_layers: int = setting(
        0, "L of the recipes of deep; 0: as they are", least=0, most=MOST_LAYERS
    )
    frugal: bool = setting(False, "save time, as on a CPU")


@dataclass(frozen=True)
class Request:
    """What a user asks of ``auto``."""

    quality: str = "good"
    """ "fast": one recipe, by the graph's looks alone; "good": the best of several, or a mean of it
    and those that are level with it; "best": more recipes, and several seeds of the best."""
    time_limit: float | None = None
    """In seconds; what is best by then is kept."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training settings for all that is tried."""
    num_layers: int | None = None
    """Of the recipes of ``deep``; left out, as they are."""
    frugal: bool | None = None
    """Leave out what costs much time; left out, on a CPU."""

    def __post_init__(self) -> None:
        if self.quality not in QUALITIES:
            raise unknown_name("quality", str(self.quality), QUALITIES)
        limit = self.time_limit
        if limit is not None and not (type(limit) in (int, float) and 0 < limit < float("inf")):
            raise UserError(f"time_limit is {limit!r}: expected a number of seconds above 0")
        if self.num_layers is not None:
            find_system("deep").config.with_changes({"num_layers": self.num_layers})
        is_auto(AUTO, None, {}, self.training)
        TrainSettings().with_changes(self.training, "training setting")
        if "," in str(self.training.get("fan_out", "")):
            raise UserError(
                f"fan_out is {self.training['fan_out']!r}, but the networks that auto tries differ "
                "in depth: give one number for all layers, or name a model"
            )

    def frugal_on(self, device: str) -> bool:
        """Whether time is saved on this type of device."""
        return device != "cuda" if self.frugal is None else self.frugal

    def metric(self, data: NodeDataset) -> str:
        """What the choice maximises: the metric that picks epochs, or the one of the data."""
        monitor = self.training.get("monitor")
        if monitor in METRICS:
            return str(monitor)
        return "micro_f1" if data.metric == "accuracy" else data.metric

    def training_for(self, data: NodeDataset) -> dict[str, Any]:
        """The training settings of all that is tried on this data.

        Where the share of right predictions decides, recipes pick their epochs as they always do:
        of a few validation nodes that share says too little to tell one epoch from the next.
        """
        metric, training = self.metric(data), dict(self.training)
        if metric not in ("micro_f1", "accuracy"):
            return {"monitor": metric, **training}
        if training.get("monitor") == metric:
            del training["monitor"]
        return training

    def to_dict(self) -> dict[str, Any]:
        return {
            "quality": self.quality,
            "time_limit": self.time_limit,
            "training": dict(self.training),
            "num_layers": self.num_layers,
            "frugal": self.frugal,
        }


@dataclass(frozen=True)
class Search:
    """What was tried, and why the model was chosen."""

    request: Request
    metric: str
    """What the choice maximised."""
    looks: Looks
    leaderboard: list[dict[str, Any]]
    """A table for each: name, system, num_layers, val, epochs, seconds and outcome; best first."""
    reason: str
    warning: str = ""
    """Set where nothing beats a baseline."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "request": self.request.to_dict(),
            "metric": self.metric,
            "looks": self.looks.to_dict(),
            "leaderboard": self.leaderboard,
            "reason": self.reason,
            "warning": self.warning,
        }


@dataclass(frozen=True)
class Step:
    """One epoch of the search, to show."""

    member: str
    number: int
    """Members that were begun, this one included."""
    of: int
    """Members to be tried, as far as is known."""
    epoch: Epoch
    best: float
    """The best validation score so far."""
    share: float
    """Of the work that is done, as far as is known."""
    seed: int = 0
    """Of the member."""
