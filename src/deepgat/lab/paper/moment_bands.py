"""Bands for the empirical mean and covariance of Gaussian draws, exact for any sample size.

For N draws of N(m, C), with ν = N − 1 and the unbiased empirical covariance S:

- mean_i ~ N(m_i, C_ii / N);
- ν S_ii / C_ii ~ χ²_ν;
- ν S_ij / sqrt(C_ii C_jj) ~ ½ ((1 + ρ) X − (1 − ρ) Y), X and Y independent χ²_ν, ρ the correlation
  (from ab = ¼ ((a + b)² − (a − b)²), whose two squares are independent).

A band is *simultaneous* at a level if all numbers together lie inside with that probability. The
tail of each number is the total divided by the count of numbers (Bonferroni), which is valid under
any dependence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepgat.errors import UserError

ROUNDING = 1e-9
"""Relative tolerance for rounding; far below the width of any band of fewer than 10^15 draws."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Means [..., m] and covariances [..., m, m]."""

    mean: Tensor
    covariance: Tensor


@dataclass(frozen=True, eq=False)
class MomentBands:
    """Bounds within which all empirical moments of N draws lie with the probability ``level``."""

    lower: Moments
    upper: Moments

    def holds_mean(self, empirical: Moments) -> Tensor:
        """[..., m] bool: which means are inside."""
        return _inside(empirical.mean, self.lower.mean, self.upper.mean)

    def holds_covariance(self, empirical: Moments) -> Tensor:
        """[..., m, m] bool: which covariances are inside."""
        return _inside(empirical.covariance, self.lower.covariance, self.upper.covariance)


def moment_bands(moments: Moments, draws: int, level: float = 0.95) -> MomentBands:
    """Simultaneous bands around the true ``moments`` for the empirical ones of ``draws`` draws.

    Bonferroni over all means and all distinct covariances in ``moments``; two-sided, equal tails.
    """
    if draws < 2:
        raise UserError(f"draws is {draws}: a covariance needs 2 or more")
    if not 0 < level < 1:
        raise UserError(f"level is {level}: expected a probability between 0 and 1")
    from scipy import stats  # here, because the import takes a second

    mean, covariance = moments.mean.double(), moments.covariance.double()
    width = mean.size(-1)
    numbers = mean.numel() + mean.numel() * (width + 1) // 2
    tail = (1 - level) / 2 / max(numbers, 1)

    variance = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0)
    reach = float(stats.norm.isf(tail)) * (variance / draws).sqrt()
    scale = (variance.unsqueeze(-1) * variance.unsqueeze(-2)).sqrt()
    correlation = torch.where(scale > 0, covariance / scale.clamp(min=1e-300), 0.0).clamp(-1, 1)
    low, high = product_quantiles(correlation.numpy(), draws - 1, tail)
    lower = scale * torch.from_numpy(low) / (draws - 1)
    upper = scale * torch.from_numpy(high) / (draws - 1)
    return MomentBands(Moments(mean - reach, lower), Moments(mean + reach, upper))


def product_quantiles(
    correlation: np.ndarray, degrees: int, tail: float
) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles ``tail`` and 1 − ``tail`` of Σ ab over ν pairs (a, b) of correlated normals.

    Σ ab ~ ½ ((1 + ρ) X − (1 − ρ) Y) with X, Y ~ χ²_ν; ρ = 1 is χ²_ν itself. Found by bisection on
    P(Σ ab ≤ t) = E_Y P(X ≤ (2t + (1 − ρ) Y) / (1 + ρ)), the mean over Y by Gauss–Legendre
    quadrature; for ρ < 0 by symmetry. Computed once per distinct correlation.
    """
    flat, inverse = np.unique(np.round(correlation, 12).ravel(), return_inverse=True)
    size = np.abs(flat)
    below = _bisect(size, degrees, tail)
    above = _bisect(size, degrees, 1 - tail)
    low = np.where(flat >= 0, below, -above)
    high = np.where(flat >= 0, above, -below)
    return low[inverse].reshape(correlation.shape), high[inverse].reshape(correlation.shape)


def _bisect(rho: np.ndarray, degrees: int, probability: float) -> np.ndarray:
    """The quantile for each ρ ≥ 0; [k] → [k]."""
    from scipy import stats
    from scipy.special import gammainc

    edge = min(probability, 1 - probability) / 100
    first, last = stats.chi2.ppf(min(edge, 1e-14), degrees), stats.chi2.isf(1e-14, degrees)
    points, weights = np.polynomial.legendre.leggauss(400)
    y = first + (last - first) * (points + 1) / 2
    weights = weights * (last - first) / 2 * stats.chi2.pdf(y, degrees)
    weights = weights / weights.sum()
    a, b = (1 + rho) / 2, (1 - rho) / 2
    low = a * first - b * last
    high = a * last - b * first
    for _ in range(60):
        middle = (low + high) / 2
        x = np.maximum(middle[:, None] + b[:, None] * y, 0) / a[:, None]
        reached = gammainc(degrees / 2, x / 2) @ weights < probability
        low, high = np.where(reached, middle, low), np.where(reached, high, middle)
    return (low + high) / 2


def _inside(value: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    slack = ROUNDING * torch.maximum(lower.abs(), upper.abs()) + 1e-12
    return (value >= lower - slack) & (value <= upper + slack)
