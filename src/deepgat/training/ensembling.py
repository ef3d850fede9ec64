"""Which trained models to average, and with what weights.

The chosen model, other seeds of its recipe and models that are level with it have equal weights.
Then others may be added as in Caruana et al., *Ensemble Selection from Libraries of Models*, ICML
2004: one at a time, with replacement, each time the one that lowers the validation loss most, as
long as it does so by more than chance. Where validation nodes are few, that loss says too little:
there nothing is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.analysis.calibration import choose_temperature
from deepgat.models import EnsembleConfig, Network
from deepgat.models.registry import ENSEMBLE
from deepgat.training.judge import Judge
from deepgat.training.leaderboard import Trial
from deepgat.training.run import ModelCard

ROUNDS = 20
FEW_NODES = 200
"""With fewer validation nodes, no other model is added, and all have the temperature 1."""


class Candidate(NamedTuple):
    """A trained model's predictions for the validation nodes."""

    logits: Tensor
    temperature: float


class Member(NamedTuple):
    """A trained model that is to be part of an ensemble."""

    card: ModelCard
    model: Network
    weight: float
    temperature: float


def members_of(
    chosen: Trial, trials: Sequence[Trial], judge: Judge, *, add: bool = False
) -> list[Member]:
    """The chosen trial and all that are level with it, to be averaged.

    With ``add`` others join where they help. The trials' shares are set if there are several.
    """
    finished = [t for t in trials if t.may_join or t is chosen]
    level = {id(t) for t in finished if judge.level(t, chosen)}
    finished.sort(key=lambda t: (t is not chosen, id(t) not in level))
    candidates = [
        Candidate(t.logits, choose_temperature(t.logits, judge.labels, FEW_NODES))
        for t in finished
        if t.logits is not None
    ]
    equals = len(level)
    weights = select(candidates, judge.labels, judge.multi_label, equals, add)
    members = [
        Member(trial.card, trial.model, weight, candidate.temperature)
        for trial, candidate, weight in zip(finished, candidates, weights, strict=True)
        if weight > 0 and trial.card is not None and trial.model is not None
    ]
    for trial, weight in zip(finished, weights, strict=True):
        trial.share = weight if len(members) > 1 else 0.0
    return members


def joined(
    like: ModelCard, members: Sequence[Member], class_factors: Sequence[float] = ()
) -> tuple[ModelCard, Network]:
    """One network of all members, and its card, which is ``like`` another but for the system."""
    plain = [member.card.settings.to_dict() for member in members]
    described = [
        {
            "system": member.card.system,
            "settings": settings,
            "weight": member.weight,
            "temperature": member.temperature,
        }
        for member, settings in zip(members, plain, strict=True)
    ]
    settings = EnsembleConfig(
        max(each["num_layers"] for each in plain),
        max(each["hidden_channels"] for each in plain),
        described,
        list(class_factors),
    )
    card = replace(like, system=ENSEMBLE, settings=settings)
    network = card.outline()
    weights = {
        f"members.{place}.{name}": tensor
        for place, member in enumerate(members)
        for name, tensor in member.model.state_dict().items()
    }
    network.load_state_dict(weights, assign=True)
    return card, network.eval()


def select(
    candidates: Sequence[Candidate],
    y: Tensor,
    multi_label: bool,
    equals: int = 1,
    add: bool = True,
) -> list[float]:
    """The weight of every candidate, summing to 1.

    The first ``equals`` have equal weights; with ``add``, others join where they help.
    """
    counts = [int(place < equals) for place in range(len(candidates))]
    if add and len(y) >= FEW_NODES:
        shares = [_probabilities(candidate, multi_label) for candidate in candidates]
        total = torch.stack(shares[:equals]).sum(0)
        losses = _losses(total / equals, y, multi_label)
        for size in range(equals + 1, equals + ROUNDS):
            found = [_losses((total + share) / size, y, multi_label) for share in shares]
            place = min(range(len(found)), key=lambda k: float(found[k].mean()))
            gains = losses - found[place]
            if float(gains.mean()) <= float(gains.std()) / len(gains) ** 0.5:
                break
            counts[place] += 1
            total, losses = total + shares[place], found[place]
    return [count / sum(counts) for count in counts]


def _probabilities(candidate: Candidate, multi_label: bool) -> Tensor:
    logits = candidate.logits / candidate.temperature
    return logits.sigmoid() if multi_label else logits.softmax(-1)


def _losses(shares: Tensor, y: Tensor, multi_label: bool) -> Tensor:
    """Of every node [n]."""
    shares = shares.clamp(1e-7, 1 - 1e-7)
    if multi_label:
        return F.binary_cross_entropy(shares, y.float(), reduction="none").mean(1)
    return F.nll_loss(shares.log(), y, reduction="none")
