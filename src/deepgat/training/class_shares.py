r"""How frequent classes are among unlabelled nodes, and probabilities that take it into account.

Few labels are often drawn by class, as many of a rare one as of a frequent one, so they do not say
how frequent classes are. Predictions do: with p̄_c the mean prediction for validation nodes of class
c, that for unlabelled nodes would be

.. math::
    \bar p = \sum_c \pi_c \, \bar p_c

if classes had the shares π, which follow by least squares, π_c ≥ 0 (Lipton et al., *Detecting and
Correcting for Label Shift with Black Box Predictors*, ICML 2018). Probabilities are then multiplied
by (π_c / ρ_c)^α, where ρ is the training nodes' shares. Validation nodes choose α, each weighted by
π_c over the share of its class among them, so that they stand for the unlabelled ones. Unlabelled
are those that are neither training nor validation nodes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

POWERS = (0.0, 0.25, 0.5)
"""Of which α is chosen. The whole ratio, α = 1, would be right for probabilities that know nothing
of the unlabelled nodes; those of networks that average over neighbours know something already."""
BY_CLASS = 1.2
"""Where a class has more than so many times the training nodes of another, they were not drawn by
class, and their shares are as good an estimate."""
LEAST_OF_A_CLASS = 10
"""With fewer validation nodes of any class nothing is estimated."""
LEAST_SHARE = 1e-3


def class_factors(shares: Tensor, y: Tensor, train: Tensor, val: Tensor) -> list[float]:
    """What to multiply each class's probability by; nothing if that helps no more than by chance.

    Nor if it leaves a class without predictions.

    Args:
        shares: every node's probabilities [n, C].
        y: labels [n]; only those of training and validation nodes are read.
        train, val: which nodes these are [n].
    """
    shares = shares.double().cpu()
    y, train, val = y.cpu(), train.cpu(), val.cpu()
    classes, rest = shares.size(1), ~(train | val)
    given = torch.bincount(y[train], minlength=classes).double()
    of_val = torch.bincount(y[val], minlength=classes).double()
    drawn_by_class = 0 < float(given.max()) <= BY_CLASS * float(given.min())
    enough = float(of_val.min()) >= LEAST_OF_A_CLASS and bool(rest.any())
    if not (drawn_by_class and enough and bool(shares.isfinite().all())):
        return []
    found = class_shares(shares[rest], shares[val], y[val])
    weight = (found * of_val.sum() / of_val)[y[val]]
    ratio = found * given.sum() / given
    losses = torch.stack([_losses(shares[val] * ratio**power, y[val]) for power in POWERS])
    losses *= weight
    gaps = losses - losses[losses.mean(1).argmin()]
    chance = gaps.std(1, correction=0) / len(weight) ** 0.5
    power = POWERS[int((gaps.mean(1) <= chance).nonzero()[0])]  # the smallest that is level
    factors = ratio**power
    before, after = shares.argmax(1), (shares * factors).argmax(1)
    lost = len(after[rest].unique()) < len(before[rest].unique())
    if not power or lost:
        return []
    return [float(f"{x:.6g}") for x in factors]


def class_shares(unlabelled: Tensor, known: Tensor, y: Tensor) -> Tensor:
    """π [C] from the probabilities of unlabelled nodes and those of nodes with labels y."""
    classes = known.size(1)
    of_class = F.one_hot(y.long(), classes).double()
    counts = of_class.sum(0)
    means = (known.T.double() @ of_class + torch.eye(classes)) / (counts + 1)
    from scipy.optimize import nnls  # here, because importing it takes a second

    sum_to_one = 10.0
    left = np.vstack([means.numpy(), np.full(classes, sum_to_one)])
    right = np.append(unlabelled.double().mean(0).numpy(), sum_to_one)
    found = torch.from_numpy(nnls(left, right)[0]).clamp(min=LEAST_SHARE)
    return found / found.sum()


def _losses(shares: Tensor, y: Tensor) -> Tensor:
    """Of every node [n]; shares need not sum to 1."""
    return F.nll_loss(
        (shares + 1e-12).log() - shares.sum(1, keepdim=True).log(), y.long(), reduction="none"
    )
