r"""Split conformal prediction: sets of classes that hold the true one as often as asked.

The score of class c for node v is :math:`s_{vc} = 1 - p_{vc}` (LAC; Sadinle, Lei and Wasserman,
*Least Ambiguous Set-Valued Classifiers with Bounded Error Levels*, JASA 2019). Calibration nodes
have the scores of their true class; of n of them, ascending, let

.. math:: \hat q = s_{(k)}, \qquad k = \lceil (n + 1)(1 - \alpha) \rceil,

and ∞ where k > n. The set of v is :math:`\{c : s_{vc} \le \hat q\}`. If v is exchangeable with the
calibration nodes, it holds v's class with probability 1 − α or more. The class-conditional variant
(Mondrian; Vovk, Gammerman and Shafer 2005) has a :math:`\hat q_c` for each class, from its own
nodes: 1 − α then holds in each class by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepgat.errors import UserError

DIGITS = 8
"""Decimal places of a score; it is rounded up, which can only enlarge sets."""


def conformal_scores(probabilities: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """For each class, the ascending scores 1 − p_y of its nodes; p [n, C], y [n]."""
    own = 1 - probabilities.double().gather(1, y[:, None]).squeeze(1)
    own = ((own * 10**DIGITS).ceil() / 10**DIGITS).clamp(0, 1)
    return tuple(own[y == c].sort().values for c in range(probabilities.size(1)))


def check_coverage(coverage: float) -> None:
    """Refuse what is no share of nodes."""
    if not 0 < coverage < 1:
        raise UserError(f"coverage is {coverage}: expected a share between 0 and 1, such as 0.9")


def conformal_quantile(scores: Tensor, coverage: float) -> float:
    """The ⌈(n + 1) coverage⌉-th smallest of n scores; ∞ where there are too few."""
    check_coverage(coverage)
    k = math.ceil((len(scores) + 1) * coverage - 1e-9)  # 1e-9: rounding of the product
    return float(scores.sort().values[k - 1]) if k <= len(scores) else math.inf


def thresholds(scores: Sequence[Tensor], coverage: float, class_conditional: bool) -> Tensor:
    """[C]: the quantile of all scores, or of each class's own."""
    if class_conditional:
        found = [conformal_quantile(each, coverage) for each in scores]
    else:
        found = [conformal_quantile(torch.cat(list(scores)), coverage)] * len(scores)
    return torch.tensor(found, dtype=torch.double)


def prediction_sets(probabilities: Tensor, limits: Tensor) -> Tensor:
    """[n, C] bool: 1 − p_c ≤ limit_c; p [n, C], limits [C]. Sets may be empty."""
    return 1 - probabilities.double() <= limits


class SetCoverage(NamedTuple):
    """How sets fare on nodes whose classes are known."""

    coverage: float
    """The share of nodes whose class is in their set."""
    size: float
    """The mean number of classes in a set."""
    single: float
    """The share of sets of one class."""
    by_class: list[float | None]
    """The coverage in each class; None: it has no node."""


def set_coverage(sets: Tensor, y: Tensor) -> SetCoverage:
    """Coverage and size of the sets [n, C] of nodes with the classes y [n]."""
    hit, sizes = sets.gather(1, y[:, None]).squeeze(1).double(), sets.sum(1)
    by_class = [
        float(hit[y == c].mean()) if bool((y == c).any()) else None for c in range(sets.size(1))
    ]
    return SetCoverage(
        float(hit.mean()),
        float(sizes.double().mean()),
        float((sizes == 1).double().mean()),
        by_class,
    )
