"""How training turned each column into features, so that another graph gets the same features.

A plan consists of plain values and is saved with a model as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepgat.errors import UserError

KINDS = ("number", "category", "words", "structure")
JOINS = {"category": "=", "words": ":"}


@dataclass(frozen=True)
class ColumnPlan:
    """One column of a table, or one structural feature, and how it becomes features.

    A number a becomes (a / ``unit`` − ``low``) / ``width``, or 0 if the width is 0. ``mean``
    replaces a missing number first. In a column of texts, each of the ``terms`` is a feature.
    """

    name: str
    kind: str
    """One of "number", "category", "words" and "structure"."""
    terms: tuple[str, ...] = ()
    """The categories or words, in the order of the features."""
    unit: float = 1.0
    low: float = 0.0
    width: float = 1.0
    mean: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its features."""
        if self.kind not in JOINS:
            return (self.name,)
        return tuple(f"{self.name}{JOINS[self.kind]}{term}" for term in self.terms)

    @staticmethod
    def of_numbers(
        name: str, kind: str, numbers: np.ndarray, scale: str, fill: bool = False
    ) -> ColumnPlan:
        """Scale to mean 0 and deviation 1, or to 0 … 1 ("unit").

        Gaps are ignored, or count as the mean (``fill``). A binary column does not change, and a
        constant column becomes 0.
        """
        gaps = np.isnan(numbers)
        if gaps.all():
            return ColumnPlan(name, kind)
        mean = float(numbers[~gaps].mean())
        numbers = np.where(gaps, mean, numbers) if fill else numbers
        if scale == "none" or ((numbers == 0) | (numbers == 1)).all():
            return ColumnPlan(name, kind, mean=mean)
        numbers = numbers[~np.isnan(numbers)]
        largest = float(np.abs(numbers).max()) or 1.0
        numbers = numbers / largest  # so that squares of large numbers do not overflow
        if scale == "unit":
            low, width = float(numbers.min()), float(numbers.max() - numbers.min())
        else:
            low, width = float(numbers.mean()), float(numbers.std())
        return ColumnPlan(name, kind, (), largest, low, 0.0 if width < 1e-12 else width, mean)

    def scaled(self, numbers: np.ndarray) -> np.ndarray:
        """Scale numbers [n] as in training; gaps stay gaps."""
        if not self.width:
            return np.where(np.isnan(numbers), numbers, 0.0)
        return (numbers / self.unit - self.low) / self.width


@dataclass(frozen=True)
class FeaturePlan:
    """The plans of all columns, in the order of the features."""

    columns: tuple[ColumnPlan, ...] = ()

    def plain(self) -> list[dict[str, Any]]:
        """Plain values for JSON, without defaults."""
        usual = vars(ColumnPlan("", ""))
        return [
            {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in vars(item).items()
                if value != usual[key]
            }
            for item in self.columns
        ]

    @staticmethod
    def of(plain: Sequence[Mapping[str, Any]]) -> FeaturePlan:
        """From plain values; a :class:`UserError` if they are not a plan."""
        return FeaturePlan(tuple(_column(item) for item in plain))


def _column(item: Mapping[str, Any]) -> ColumnPlan:
    try:
        plan = ColumnPlan(**{**item, "terms": tuple(item.get("terms", ()))})
        sound = (
            plan.kind in KINDS
            and all(isinstance(text, str) for text in (plan.name, *plan.terms))
            and all(map(math.isfinite, (plan.unit, plan.low, plan.width, plan.mean)))
        )
    except (TypeError, AttributeError):
        sound = False
    if not sound:
        raise UserError(
            f"the plan of a column is damaged ({str(item)[:40]}): train the model again"
        )
    return plan
