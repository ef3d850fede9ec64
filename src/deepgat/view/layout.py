"""The map of a graph: a position in two dimensions for every node."""

from __future__ import annotations

import numpy as np
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from deepgat.errors import unknown_name

LAYOUTS = ("auto", "tsne", "pca")
MOST_TSNE = 5_000
"""Nodes up to which "auto" is t-SNE, which takes minutes on many more."""
LEAST_TSNE = 10
OUTLIERS = 0.005
"""Share of the nodes at each end of an axis that do not determine its length."""
ROUNDS = 500
"""Steps of t-SNE."""
WIDEST = 50
"""Columns that t-SNE compares; wider states are reduced by PCA first."""


def check_layout(name: str) -> None:
    if name not in LAYOUTS:
        raise unknown_name("layout", name, LAYOUTS)


def chosen_layout(name: str, num_nodes: int) -> str:
    """ "tsne" or "pca"."""
    check_layout(name)
    if name == "auto":
        name = "tsne" if num_nodes <= MOST_TSNE else "pca"
    return name if num_nodes >= LEAST_TSNE else "pca"


def positions(h: np.ndarray, layout: str) -> np.ndarray:
    """[n, 2] from the states h [n, m] of the nodes, by "tsne" or "pca"."""
    h = np.nan_to_num(h.astype(np.float64))
    n = len(h)
    if layout == "pca" or n < LEAST_TSNE or not np.ptp(h, axis=0).any():
        return _drawn_in(_principal(h, 2))
    columns = _principal(h, WIDEST) if h.shape[1] > WIDEST else h
    nearest = min(30.0, (n - 1) / 3)
    return TSNE(2, perplexity=nearest, max_iter=ROUNDS, random_state=0).fit_transform(columns)


def _principal(h: np.ndarray, count: int) -> np.ndarray:
    """The first principal components [n, count]; those that h does not have are 0."""
    have = min(count, *h.shape)
    found = np.zeros((len(h), count))
    if len(h) > 1 and np.ptp(h, axis=0).any():
        found[:, :have] = PCA(have, random_state=0).fit_transform(h)
    return found


def _drawn_in(places: np.ndarray) -> np.ndarray:
    """The same, with outliers moved to a border: one of them would shrink all others to a dot."""
    low, high = np.quantile(places, [OUTLIERS, 1 - OUTLIERS], axis=0)
    margin = (high - low) / 4
    return np.clip(places, low - margin, high + margin)
