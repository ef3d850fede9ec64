"""Class separation: the nearest-neighbour error and the Bayes error it bounds."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from deepgat.errors import UserError


def nearest_neighbor_error(
    representation: Tensor, y: Tensor, prototypes: Tensor, queries: Tensor
) -> float:
    """e_N: the share of queries whose nearest prototype (Euclidean) has another class.

    Args:
        representation: [n, m], h^L.
        y: [n] classes.
        prototypes: [n] bool; training nodes, in the authors' code also validation nodes.
        queries: [n] bool, usually the test nodes.
    """
    if y.dim() != 1:
        raise UserError("the nearest-neighbour error needs one class per node, not several labels")
    for name, mask in (("prototypes", prototypes), ("queries", queries)):
        if not mask.any():
            raise UserError(f"{name} has no node: the nearest-neighbour error needs at least one")
    if not representation.isfinite().all():
        raise UserError("representation is not finite: it has no nearest neighbours")
    from sklearn.neighbors import KNeighborsClassifier  # here: importing it takes a second

    points = representation.detach().cpu().numpy()
    classes, known, asked = y.cpu().numpy(), prototypes.cpu().numpy(), queries.cpu().numpy()
    classifier = KNeighborsClassifier(n_neighbors=1).fit(points[known], classes[known])
    return float((classifier.predict(points[asked]) != classes[asked]).mean())


class ErrorBounds(NamedTuple):
    """lower ≤ e_B ≤ upper."""

    lower: float
    upper: float


def bayes_error_bounds(nearest_error: float, num_classes: int) -> ErrorBounds:
    """(1 − sqrt(1 − π e_N)) / π ≤ e_B ≤ e_N with π = C / (C − 1) (Cover and Hart).

    The lower bound holds for e_N ≤ 1/π. A larger e_N is worse than guessing, and the bound is NaN.
    """
    if num_classes < 2:
        return ErrorBounds(0.0, nearest_error)
    ratio = num_classes / (num_classes - 1)
    inside = 1 - ratio * nearest_error
    if inside < -1e-12:  # beyond rounding
        return ErrorBounds(math.nan, nearest_error)
    return ErrorBounds((1 - math.sqrt(max(inside, 0.0))) / ratio, nearest_error)
