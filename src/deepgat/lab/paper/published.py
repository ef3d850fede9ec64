"""Published numbers, to compare ours with."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """Micro-F1 in % as printed in the DeepGAT paper, at the best and at the largest depth."""

    best: float
    best_layers: int
    deepest: float
    deepest_layers: int


DEEPGAT_PAPER: dict[tuple[str, str, str], Published] = {
    ("deepgat", "dp", "cs"): Published(91.5, 2, 83.1, 15),
    ("deepgat", "dp", "physics"): Published(93.6, 4, 91.8, 15),
    ("deepgat", "dp", "flickr"): Published(54.6, 2, 53.2, 9),
    ("deepgat", "dp", "ppi"): Published(98.9, 7, 98.8, 9),
    ("deepgat", "sd", "cs"): Published(90.4, 2, 82.7, 15),
    ("deepgat", "sd", "physics"): Published(93.6, 5, 90.8, 15),
    ("deepgat", "sd", "flickr"): Published(53.8, 4, 47.2, 9),
    ("deepgat", "sd", "ppi"): Published(99.2, 8, 99.2, 9),
    ("gat", "dp", "cs"): Published(90.5, 2, 9.3, 15),
    ("gat", "dp", "physics"): Published(93.4, 2, 28.1, 15),
    ("gat", "dp", "flickr"): Published(52.4, 3, 42.3, 9),
    ("gat", "dp", "ppi"): Published(92.5, 3, 44.0, 9),
    ("gat", "sd", "cs"): Published(90.6, 2, 4.6, 15),
    ("gat", "sd", "physics"): Published(92.5, 2, 12.3, 15),
    ("gat", "sd", "flickr"): Published(52.9, 3, 42.3, 9),
    ("gat", "sd", "ppi"): Published(99.1, 6, 98.9, 9),
}
"""(model, score, dataset) → a row of the paper's Table 2."""


def published_score(model: str, score: str, dataset: str, layers: int) -> float | None:
    """The paper's micro-F1 (%) for this system at this depth; None if it prints none."""
    row = DEEPGAT_PAPER.get((model, score, dataset))
    if row is None:
        return None
    return {row.best_layers: row.best, row.deepest_layers: row.deepest}.get(layers)


class PublishedGraph(NamedTuple):
    """A row of the paper's Table 1; shares in %, None where it prints none."""

    nodes: int
    edges: int
    features: int
    classes: int
    mean_degree: float
    largest_degree: int
    hub_rate: float
    diameter: int | None
    density: float | None
    clustering: float


TABLE1: dict[str, PublishedGraph] = {
    "cora": PublishedGraph(2708, 10_556, 1433, 7, 9.8, 338, 2.18, 19, 0.18, 24.07),
    "citeseer": PublishedGraph(3327, 9104, 3703, 6, 7.5, 200, 1.23, 28, 0.11, 14.15),
    "cs": PublishedGraph(18_333, 163_788, 6805, 15, 19.9, 274, 18.04, 24, 0.05, 34.25),
    "physics": PublishedGraph(34_493, 495_924, 8415, 3, 30.8, 766, 36.40, 17, 0.04, 37.76),
    "flickr": PublishedGraph(89_250, 899_756, 500, 7, 22.2, 10_852, 11.57, 8, 0.01, 3.30),
    "ppi": PublishedGraph(56_944, 818_716, 50, 121, 28.3, 721, 27.43, None, None, 27.06),
}
"""Dataset → a row of the paper's Table 1. It prints 3 classes for Physics; the data has 5."""
