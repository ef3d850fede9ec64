"""Homophily of edges, plain and adjusted for class sizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Homophily(NamedTuple):
    """Homophily of the edges between labelled nodes; NaN without such edges."""

    edge: float
    """h: the share of edges within a class (with several labels, the mean Jaccard overlap)."""
    adjusted: float
    """(h − Σ_k D_k²/(2E)²) / (1 − Σ_k D_k²/(2E)²), D_k the total degree of class k: 0 for random
    edges, 1 if all edges are within classes."""


def homophily(edge_index: np.ndarray, y: np.ndarray) -> Homophily:
    """From edges [2, e], in one or both directions, and y [n] or [n, C]."""
    a, b = edge_index
    once = a != b
    a, b = a[once], b[once]
    if y.ndim == 2:
        labelled = np.asarray(y.any(1))
        both = labelled[a] & labelled[b]
        if not both.any():
            return Homophily(float("nan"), float("nan"))
        first, second = y[a[both]] > 0, y[b[both]] > 0
        overlap = (first & second).sum(1) / np.maximum((first | second).sum(1), 1)
        return Homophily(float(overlap.mean()), float("nan"))
    both = (y[a] >= 0) & (y[b] >= 0)
    a, b = y[a[both]], y[b[both]]
    if not len(a):
        return Homophily(float("nan"), float("nan"))
    edge = float((a == b).mean())
    degrees = np.bincount(np.concatenate([a, b])) / (2 * len(a))
    chance = float((degrees**2).sum())
    adjusted = (edge - chance) / (1 - chance) if chance < 1 else float("nan")
    return Homophily(edge, adjusted)
