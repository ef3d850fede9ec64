"""What validation scores say of the members of a search, and what may be chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.analysis.metrics import error_of_difference, score
from deepgat.data import NodeDataset
from deepgat.training.baselines import LARGEST_CLASS, baseline_scores
from deepgat.training.leaderboard import Trial, room
from deepgat.training.looks import Looks
from deepgat.training.portfolio import CHEAP, COMPANIONS

BEYOND_CHANCE = 2.5
"""Standard errors by which one of several members must beat the favourite where labels are few, and
by which a mean may be behind its chosen member."""
LEVEL = 0.01
"""Members are level with the best if they are behind by no more than this, nor by more than a
standard error."""
LEVEL_OF_COMPANION = 0.03
"""The same of the companion, with two standard errors: what errs on other nodes may be worse."""
SLOW_START = 0.01
"""So much below the leader a member may be after its first epochs, beside chance."""
SLOWER_START = 0.03
"""The same for a companion, which learns for longer."""
NEARLY_PERFECT, FEW_ERRORS = 0.98, 3
"""With such a score and so few validation nodes wrong, better by more than chance is impossible."""


@dataclass(frozen=True)
class Judge:
    """Compares members by their scores on the same validation nodes."""

    metric: str
    multi_label: bool
    labels: Tensor
    """Of the validation nodes."""
    baselines: Mapping[str, float]
    looks: Looks

    @staticmethod
    def of(data: NodeDataset, metric: str, looks: Looks) -> Judge:
        labels = torch.cat([graph.y[graph.val_mask] for graph in data.graphs])
        return Judge(metric, data.multi_label, labels, baseline_scores(data, metric), looks)

    def score(self, logits: Tensor) -> float:
        """The score of these logits [validation nodes, C]."""
        return score(self.metric, logits, self.labels, self.multi_label)

    def margin(self, one: Trial, other: Trial) -> float:
        """The standard error of the difference of two members' scores."""
        if one.logits is None or other.logits is None:
            return 0.0
        both = one.logits, other.logits
        return error_of_difference(self.metric, *both, self.labels, self.multi_label)

    def behind(self, trial: Trial, leader: Trial) -> bool:
        """Whether neither chance nor a slow start explain how much better the leader is."""
        start = SLOWER_START if trial.name in COMPANIONS else SLOW_START
        return trial.val < leader.val - 2 * self.margin(trial, leader) - start

    def level(self, trial: Trial, best: Trial) -> bool:
        """Whether it counts as much as the best in a mean of both.

        Other seeds of the best always do. With few labels only companions do: the scores of all
        the others, on as few validation nodes, say too little.
        """
        if trial.name == best.name:
            return True
        gap, margin = best.val - trial.val, self.margin(best, trial)
        if trial.name in COMPANIONS:
            return gap <= min(2 * margin, LEVEL_OF_COMPANION)
        return not self.looks.few_labels and gap <= min(margin, LEVEL)

    def worse(self, logits: Tensor, trial: Trial) -> bool:
        """Whether a mean with these logits is behind one of its members by more than chance."""
        assert trial.logits is not None
        both = logits, trial.logits
        margin = error_of_difference(self.metric, *both, self.labels, self.multi_label)
        return self.score(logits) < trial.val - BEYOND_CHANCE * margin

    def useless(self, trial: Trial) -> bool:
        """Whether it does no better than always predicting the largest class."""
        return trial.val <= self.baselines.get(LARGEST_CLASS, -float("inf"))

    def unbeatable(self, trial: Trial) -> bool:
        """Whether nothing can beat its score by more than chance."""
        if self.metric in ("micro_f1", "accuracy") and not self.multi_label:
            errors = round((1 - trial.val) * len(self.labels))
            return trial.val >= NEARLY_PERFECT and errors <= FEW_ERRORS
        return room(self.metric, trial.val) <= 0

    def choose(self, trained: Sequence[Trial], favourite: Trial) -> tuple[Trial, str]:
        """The member to keep, and the reason in words."""
        best, looks = max(trained, key=lambda t: t.val), self.looks.sentence()
        if favourite not in trained or favourite.name in CHEAP:
            return best, f"{looks}: {best.name} is the best on validation nodes"
        if best is favourite or len(trained) == 1:
            return favourite, f"{looks}: {favourite.name} is for such graphs, and nothing beat it"
        gain, margin = best.val - favourite.val, self.margin(best, favourite)
        protected = self.looks.few_labels and not self.useless(favourite)
        margin *= BEYOND_CHANCE if protected else 0.0
        if gain <= margin:
            return favourite, (
                f"{looks}: {favourite.name} is for such graphs; {best.name} was better by "
                f"{100 * gain:.1f}, which may be chance ({100 * margin:.1f})"
            )
        return best, f"{best.name} beat {favourite.name} by {100 * gain:.1f} on validation nodes"
