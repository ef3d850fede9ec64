"""How much of a search for a recipe is done, as far as can be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deepgat.training.leaderboard import Trial
from deepgat.training.portfolio import COMPANIONS, PORTFOLIO
from deepgat.training.resume import Epoch

TO_THE_END = 80
"""About the epochs that a member still needs after its first ones."""


@dataclass
class Forecast:
    """The share of a search that is done, in epochs of ``deep``; it never falls."""

    trials: Sequence[Trial]
    """Those that are known, the favourite first; the search adds others."""
    first_epochs: Callable[[Trial], int]
    """Epochs after which it is decided whether a trial goes on."""
    at_once: Callable[[Trial], bool]
    """Whether a trial is trained to its end before that."""
    more_seeds: int = 0
    """Seeds with which members are trained after all trials."""
    repeated: Sequence[str] = ()
    """Those members, as far as they are known."""
    share: float = 0.0

    def after(self, trial: Trial, epoch: Epoch, at_least: float = 0.0) -> float:
        """The share after an epoch of a trial, and no less than ``at_least``."""
        others = [t for t in self.trials if t is not trial]
        done = sum(t.cost * t.epochs for t in others) + trial.cost * epoch.number
        training = trial.plan.training
        if trial.held.pause:
            rest = trial.held.pause - epoch.number + self._after_the_first(trial)
        else:
            rest = min(training.epochs, epoch.best_number + training.patience) - epoch.number
        ahead = trial.cost * max(rest, 0) + sum(t.cost * self._ahead(t) for t in others)
        ahead += self._of_more_seeds()
        self.share = max(self.share, done / (done + ahead), at_least)
        return self.share

    def _ahead(self, trial: Trial) -> int:
        """Epochs of a trial that is not being trained, as far as is known."""
        if trial.outcome or trial.finished:
            return 0
        if trial.fitted is not None:
            return self._after_the_first(trial)
        if self.at_once(trial):
            return TO_THE_END
        return self.first_epochs(trial) + self._after_the_first(trial)

    def _after_the_first(self, trial: Trial) -> int:
        """Epochs of the favourite and its companion: which others go on is not known."""
        return TO_THE_END if trial is self.trials[0] or trial.name in COMPANIONS else 0

    def _of_more_seeds(self) -> float:
        """Of those that are not begun."""
        begun = Counter(t.name for t in self.trials if t.seed != self.trials[0].seed)
        failed = {t.name for t in self.trials if t.outcome}
        left = {
            name: max(self.more_seeds - begun[name], 0)
            for name in self.repeated
            if name not in failed
        }
        return TO_THE_END * sum(PORTFOLIO[name].cost * left[name] for name in left)
