"""What a user asks of ``auto``, and what it tells: quality, metric, leaderboard, reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepgat.errors import UserError, unknown_name
from deepgat.training.looks import Looks
from deepgat.training.resume import Epoch

AUTO = "auto"
"""What ``model`` is called where no system is named."""
QUALITIES = ("fast", "good", "best")
OWN = frozenset(
    (
        "device", "epochs", "monitor", "class_weight", "precision", "checkpoint", "batches",
        "batch_size", "batch_graphs", "clusters", "fan_out", "most_nodes", "seed",
    )
)  # fmt: skip
"""Training settings that a user may name and still leave the rest to ``auto``."""


@dataclass(frozen=True)
class Request:
    """What a user asks of ``auto``."""

    quality: str = "good"
    metric: str = "micro_f1"
    time_limit: float | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.quality not in QUALITIES:
            raise unknown_name("quality", self.quality, QUALITIES)
        limit = self.time_limit
        if limit is not None and not (isinstance(limit, int | float) and 0 < limit < float("inf")):
            raise UserError(f"time_limit is {limit!r}: expected a number of seconds above 0")
        for name in self.training:
            if name not in OWN:
                raise UserError(
                    f"{name} is a setting of one recipe, and auto tries several: name a model too"
                )

    def to_dict(self) -> dict[str, Any]:
        return {
            "quality": self.quality,
            "metric": self.metric,
            "time_limit": self.time_limit,
            "training": dict(self.training),
        }


@dataclass(frozen=True)
class Search:
    """What was tried, and why the model was chosen."""

    request: Request
    looks: Looks
    leaderboard: list[dict[str, Any]]
    """A table for each: name, system, num_layers, val, epochs, seconds and outcome; best first."""
    reason: str
    warning: str = ""
    """Set where nothing beats a baseline."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "request": self.request.to_dict(),
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
    of: int
    """Members to be tried, as far as is known."""
    epoch: Epoch
    best: float
    """The best validation score so far."""
    share: float
    """Of the work that is done, as far as is known."""
