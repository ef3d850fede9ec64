"""Which trained models to average, and with what weights: greedily, on validation nodes.

Caruana et al., *Ensemble Selection from Libraries of Models*, ICML 2004: models are added one at a
time, with replacement, each time the one that lowers the validation loss most. Where validation
nodes are few, that loss would mostly measure chance: there all models count alike that are not
clearly worse than the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.analysis import predicted_labels
from deepgat.models import EnsembleConfig, Network
from deepgat.models.registry import ENSEMBLE
from deepgat.training.run import ModelCard

ROUNDS = 20
FEW_NODES = 200
"""With fewer validation nodes, all models count alike, and have the temperature 1."""


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


def joined(like: ModelCard, members: Sequence[Member]) -> tuple[ModelCard, Network]:
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


def select(candidates: Sequence[Candidate], y: Tensor, multi_label: bool) -> list[float]:
    """The weight of every candidate, summing to 1; the first is the best one by itself."""
    if len(y) < FEW_NODES:
        kept = [_not_worse(c.logits, candidates[0].logits, y, multi_label) for c in candidates]
        return [float(keep) / sum(kept) for keep in kept]
    shares = [
        (c.logits / c.temperature).sigmoid() if multi_label else
        (c.logits / c.temperature).softmax(-1)
        for c in candidates
    ]  # fmt: skip
    counts, total = [0] * len(candidates), torch.zeros_like(shares[0])
    best_loss, best_counts = float("inf"), list(counts)
    for size in range(1, ROUNDS + 1):
        losses = [_loss((total + share) / size, y, multi_label) for share in shares]
        place = 0 if size == 1 else min(range(len(losses)), key=losses.__getitem__)
        counts[place] += 1
        total = total + shares[place]
        if losses[place] < best_loss:
            best_loss, best_counts = losses[place], list(counts)
    whole = sum(best_counts)
    return [count / whole for count in best_counts]


def _not_worse(mine: Tensor, best: Tensor, y: Tensor, multi_label: bool) -> bool:
    """Whether the share of right predictions is within a standard error of the best model's."""
    right = [
        predicted_labels(x, multi_label) == (y > 0 if multi_label else y) for x in (mine, best)
    ]
    difference = (right[0].double() - right[1].double()).flatten()
    error = float(difference.std()) / len(difference) ** 0.5 if len(difference) > 1 else 0.0
    return float(difference.mean()) >= -error


def _loss(shares: Tensor, y: Tensor, multi_label: bool) -> float:
    shares = shares.clamp(1e-7, 1 - 1e-7)
    if multi_label:
        return float(F.binary_cross_entropy(shares, y.float()))
    return float(F.nll_loss(shares.log(), y))
