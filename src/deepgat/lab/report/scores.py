"""Scores from records: repetitions grouped, candidates selected, means with 95% intervals.

There are two protocols. ``authors`` follows the paper: the best depth is the one with the best mean
*test* score. ``honest`` selects the learning rate, and the depth where the best depth is asked for,
in every repetition on its validation nodes; it only averages test scores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from deepgat.analysis import confidence_interval, paired_p_value
from deepgat.analysis.metrics import ERRORS, METRICS
from deepgat.lab.report.table import Sourced

Record = Mapping[str, Any]


class Score(NamedTuple):
    """A mean over repetitions in %, with the half-width of its 95% interval (NaN for one)."""

    mean: float
    half_width: float
    repeats: int
    layers: str = ""
    """The selected depths, if depths were selected."""
    runs: tuple[str, ...] = ()
    """Signatures of its runs."""

    def __str__(self) -> str:
        spread = "" if math.isnan(self.half_width) else f" ± {self.half_width:.1f}"
        return f"{self.mean:.1f}{spread}"

    def cell(self, more: str = "", *published: float) -> Sourced:
        """A table cell: the text, then ``more``; its numbers include the published ones."""
        ends = (self.mean - self.half_width, self.mean + self.half_width)
        return Sourced(f"{self}{more}", self.runs, (self.mean, *ends, *published))


class System(NamedTuple):
    """A model and its attention score, which is empty where the model has none."""

    model: str
    score: str

    @property
    def name(self) -> str:
        model = {"deepgat": "DeepGAT", "gat": "GAT", "gcn": "GCN"}.get(self.model, self.model)
        return f"{model} {self.score.upper() if len(self.score) == 2 else self.score}".strip()


Curve = dict[int, list[Record]]
"""Depth → one record per repetition."""


def signed(difference: float) -> str:
    """A difference of scores with its sign; no minus sign before 0.0."""
    return f"{round(difference, 1) + 0.0:+.1f}"


def depth_of(record: Record) -> int:
    return int(record["settings"]["num_layers"])


def system_of(record: Record) -> System:
    return System(record["system"], record["settings"].get("score", ""))


def curves(records: Iterable[Record]) -> dict[str, dict[System, Curve]]:
    """Dataset → system → curve of the best candidates on validation nodes."""
    candidates: dict[tuple[str, System, int], list[Record]] = {}
    for record in records:
        cell = (record["dataset"], system_of(record), depth_of(record))
        candidates.setdefault(cell, []).append(record)
    found: dict[str, dict[System, Curve]] = {}
    for dataset, system, layers in sorted(candidates, key=lambda cell: (_in_order(cell[0]), *cell)):
        runs = _best_of_each_repetition(candidates[dataset, system, layers])
        found.setdefault(dataset, {}).setdefault(system, {})[layers] = runs
    return found


def _in_order(name: str) -> list[tuple[str, int]]:
    """A key by which hops-4 comes before hops-16."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def depths_of(group: Iterable[Mapping[int, Any]]) -> list[int]:
    """All depths of some curves."""
    return sorted({layers for curve in group for layers in curve})


def best_on_validation(candidates: Sequence[Record]) -> Record:
    """The highest validation score; ties go to the lower loss, then to fewer layers.

    The score is micro-F1, or the metric by which the runs chose their epoch.
    """
    monitor, *others = {record.get("training", {}).get("monitor") for record in candidates}
    metric = monitor if monitor in METRICS and not others else "micro_f1"
    sign = 1 if metric in ERRORS else -1

    def order(record: Record) -> tuple[float, float, int]:
        loss = record["loss"].get("val")
        score = sign * value_of(record, metric, "val")
        return score, math.inf if loss is None else loss, depth_of(record)

    return min(candidates, key=order)


def _best_of_each_repetition(records: Iterable[Record]) -> list[Record]:
    repeats: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        repeats.setdefault((record["split"], record["seed"]), []).append(record)
    return [best_on_validation(repeats[key]) for key in sorted(repeats)]


def best_depth(curve: Curve, protocol: str) -> Score:
    """The score at the best depth, selected as the protocol says."""
    if protocol == "authors":
        scores = [score_of(runs, layers=str(layers)) for layers, runs in curve.items()]
        return max(scores, key=lambda score: score.mean)
    chosen = _best_of_each_repetition(run for runs in curve.values() for run in runs)
    depths = sorted({depth_of(record) for record in chosen})
    return score_of(chosen, layers=",".join(map(str, depths)))


def deepest(curve: Curve) -> Score:
    return score_of(curve[max(curve)], layers=str(max(curve)))


def value_of(record: Record, metric: str, part: str) -> float:
    """A metric on the nodes of a part; micro-F1 is in records of every version."""
    found = record["micro_f1"] if metric == "micro_f1" else record["metrics"][metric]
    return math.nan if found[part] is None else float(found[part])


def f1_on_test(record: Record) -> float:
    return 100 * value_of(record, "micro_f1", "test")


def score_of(
    records: Sequence[Record], value: Callable[[Record], float] = f1_on_test, layers: str = ""
) -> Score:
    """The mean of a value in %."""
    score = mean_score([(record["split"], value(record)) for record in records])
    return score._replace(layers=layers, runs=signatures(records))


def mean_score(values: Sequence[tuple[str, float]]) -> Score:
    """The mean of pairs (split, value in %), with its interval."""
    return Score(*confidence_interval(_independent(values)), len(values))


class Paired(NamedTuple):
    """A mean difference of test scores in points, and p of the paired t-test (NaN for one pair)."""

    difference: float
    p_value: float

    @property
    def p_text(self) -> str:
        """p in brackets, after a space; empty for one pair."""
        if math.isnan(self.p_value):
            return ""
        return " (p < 0.001)" if self.p_value < 0.001 else f" (p = {self.p_value:.3f})"

    def __str__(self) -> str:
        return signed(self.difference) + self.p_text


def paired(records: Sequence[Record], others: Sequence[Record]) -> Paired | None:
    """The mean difference on the repetitions that both have; None if they share none."""
    own = {(r["split"], r["seed"]): f1_on_test(r) for r in records}
    pairs = [
        (r["split"], own[r["split"], r["seed"]] - f1_on_test(r))
        for r in others
        if (r["split"], r["seed"]) in own
    ]
    units = _independent(pairs)
    return Paired(fmean(units), paired_p_value(units)) if units else None


def _independent(values: Iterable[tuple[str, float]]) -> list[float]:
    """The means of the splits, or the values of the only split.

    Seeds of one split are not independent draws of the data.
    """
    by_split: dict[str, list[float]] = {}
    for split, value in values:
        by_split.setdefault(split, []).append(value)
    if len(by_split) == 1:
        return next(iter(by_split.values()))
    return [fmean(group) for group in by_split.values()]


def mean_and_deviation(scores: Sequence[float]) -> str:
    """The mean ± the standard deviation; the mean alone for one score."""
    spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{fmean(scores):.1f}{spread}"


def signatures(records: Iterable[Record]) -> tuple[str, ...]:
    return tuple(record["signature"] for record in records)
