"""The members of a search with what came of them, and the table that tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deepgat.analysis.metrics import ERRORS
from deepgat.models import Network
from deepgat.models.config import Config
from deepgat.training.baselines import LARGEST_CLASS, PROPAGATION
from deepgat.training.loop import FitResult
from deepgat.training.memory import Choice
from deepgat.training.portfolio import PORTFOLIO
from deepgat.training.recipes import Recipe
from deepgat.training.resume import Held
from deepgat.training.run import ModelCard

WHY_UNBEATEN = {
    LARGEST_CLASS: (
        "features and edges may say nothing about the labels, training nodes may be too few, or "
        "labels may be mixed up"
    ),
    PROPAGATION: "edges and training labels alone say as much, so the features may add nothing",
}
"""Baseline → what may be the reason that nothing beats it."""


@dataclass(eq=False)
class Trial:
    """A member with what came of it."""

    name: str
    plan: Recipe
    seed: int
    held: Held
    card: ModelCard | None = None
    choice: Choice | None = None
    """What memory leads to, decided once."""
    model: Network | None = None
    fitted: FitResult | None = None
    logits: Tensor | None = None
    """[validation nodes, C], on the CPU."""
    val: float = -float("inf")
    outcome: str = ""
    share: float = 0.0
    """Of the ensemble."""

    @property
    def cost(self) -> float:
        return PORTFOLIO[self.name].cost

    @property
    def epochs(self) -> int:
        return 0 if self.fitted is None else len(self.fitted.history)

    @property
    def in_play(self) -> bool:
        """Whether it was trained, if only for a few epochs, and nothing was wrong with it."""
        return self.fitted is not None and not self.outcome

    @property
    def finished(self) -> bool:
        return self.in_play and self.fitted.stopped != "paused"  # type: ignore[union-attr]

    @property
    def may_join(self) -> bool:
        """Whether it may be part of a mean: trained to its end, on the whole graph at once."""
        if not self.finished or self.card is None or self.fitted is None:
            return False
        return self.fitted.stopped != "interrupted" and not self.card.training.in_parts


def leaderboard(trials: Sequence[Trial], chosen: Trial) -> list[dict[str, Any]]:
    """A row for every member that was to be tried, the chosen one first."""
    rows = []
    for trial in sorted(trials, key=lambda t: (t is not chosen, not t.finished, -t.val)):
        name = trial.name if trial.seed == chosen.seed else f"{trial.name}, seed {trial.seed}"
        outcome = "chosen" if trial is chosen else "trained to its end"
        ended = None if trial is chosen or trial.fitted is None else trial.fitted.stopped
        if ended in ("interrupted", "paused"):
            left = "stopped" if ended == "interrupted" else "left"
            outcome = f"{left} after {trial.epochs} epochs"
        if trial.share:
            outcome = f"{trial.share:.0%} of the ensemble"
        found, val = trial.plan, None if trial.fitted is None else trial.val
        told = row(name, found.system, val, trial.outcome or outcome, found.settings)
        seconds = 0.0 if trial.fitted is None else round(trial.fitted.seconds, 3)
        rows.append(told | {"epochs": trial.epochs, "seconds": seconds})
    return rows


def row(
    name: str, system: str, val: float | None, outcome: str, settings: Config | None = None
) -> dict[str, Any]:
    """A row of the leaderboard."""
    layers = 0 if settings is None else settings.to_dict()["num_layers"]
    return {
        "name": name,
        "system": system,
        "num_layers": layers,
        "val": val,
        "epochs": 0,
        "seconds": 0.0,
        "outcome": outcome,
    }


def warning_of(metric: str, val: float, baselines: Mapping[str, float]) -> str:
    """What to tell a user whose model beats no baseline; else nothing."""
    if room(metric, val) <= 0:
        return ""
    for name, why in WHY_UNBEATEN.items():
        value = baselines.get(name, -float("inf"))
        if value >= val:
            return (
                f"the model does not beat {name} on validation nodes "
                f"({100 * abs(val):.1f} against {100 * abs(value):.1f}): {why}"
            )
    return ""


def room(metric: str, val: float) -> float:
    """How much better than this a validation score could be; errors are negated."""
    return -val if metric in ERRORS else 1 - val
