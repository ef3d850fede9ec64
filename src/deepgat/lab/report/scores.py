"""Scores from records: repetitions grouped, candidates selected, means with 95% intervals.

There are two protocols. ``authors`` follows the paper: the best depth is the one with the best mean
*test* score. ``honest`` selects the learning rate, and the depth where the best depth is asked for,
in every repetition on its validation nodes; it only averages test scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from deepgat.analysis import confidence_interval, paired_p_value

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
        return f"{self.mean:.1f}" + (
            "" if math.isnan(self.half_width) else f" ± {self.half_width:.1f}"
        )


Curve = dict[int, list[Record]]
"""Depth → one record per repetition."""


def signed(difference: float) -> str:
    """A difference of scores with its sign; no minus sign before 0.0."""
    return f"{round(difference, 1) + 0.0:+.1f}"


def system_name(model: str, score: str) -> str:
    names = {"deepgat": "DeepGAT", "gat": "GAT", "gcn": "GCN", "oracle": "oracle"}
    return f"{names.get(model, model)} {score.upper() if len(score) == 2 else score}".strip()


def depth_of(record: Record) -> int:
    return int(record["settings"]["num_layers"])


def system_of(record: Record) -> tuple[str, str]:
    """(system, score), the score empty where the system has none."""
    return record["system"], record["settings"].get("score", "")


def curves(records: Iterable[Record]) -> dict[tuple[str, str, str], Curve]:
    """(dataset, model, score) → curve of the best candidates on validation nodes."""
    candidates: dict[tuple[str, str, str, int], dict[tuple[str, int], list[Record]]] = {}
    for record in records:
        cell = (record["dataset"], *system_of(record), depth_of(record))
        repeat = (record["split"], record["seed"])
        candidates.setdefault(cell, {}).setdefault(repeat, []).append(record)
    found: dict[tuple[str, str, str], Curve] = {}
    for (*system, layers), repeats in sorted(candidates.items()):
        dataset, model, score = system
        curve = found.setdefault((dataset, model, score), {})
        curve[layers] = [best_on_validation(repeats[key]) for key in sorted(repeats)]
    return found


def best_on_validation(candidates: Sequence[Record]) -> Record:
    """The highest validation micro-F1; ties go to the lower loss, then to fewer layers."""
    return min(
        candidates,
        key=lambda r: (-r["micro_f1"]["val"], _or_inf(r["loss"]["val"]), depth_of(r)),
    )


def mean_score(
    values: Sequence[tuple[str, float]], layers: str = "", runs: Sequence[str] = ()
) -> Score:
    """The mean of pairs (split, value in %), with its interval over :func:`_independent` units."""
    by_split: dict[str, list[float]] = {}
    for split, value in values:
        by_split.setdefault(split, []).append(value)
    mean, half = confidence_interval(_independent(by_split))
    return Score(mean, half, len(values), layers, tuple(runs))


def score_on(part: str, records: Sequence[Record], layers: str = "") -> Score:
    values = [(r["split"], 100 * r["micro_f1"][part]) for r in records]
    return mean_score(values, layers, signatures(records))


def score_on_test(records: Sequence[Record], layers: str = "") -> Score:
    return score_on("test", records, layers)


class Paired(NamedTuple):
    """A mean difference of test scores in points, and p of the paired t-test (NaN for one pair)."""

    difference: float
    p_value: float

    def __str__(self) -> str:
        certain = "" if math.isnan(self.p_value) else f" ({_p(self.p_value)})"
        return signed(self.difference) + certain


def paired(records: Sequence[Record], others: Sequence[Record]) -> Paired | None:
    """The mean difference on the repetitions that both have; None if they share none."""
    own = {(r["split"], r["seed"]): 100 * r["micro_f1"]["test"] for r in records}
    by_split: dict[str, list[float]] = {}
    for other in others:
        repeat = (other["split"], other["seed"])
        if repeat in own:
            difference = own[repeat] - 100 * other["micro_f1"]["test"]
            by_split.setdefault(other["split"], []).append(difference)
    if not by_split:
        return None
    units = _independent(by_split)
    return Paired(fmean(units), paired_p_value(units))


def _independent(by_split: Mapping[str, list[float]]) -> list[float]:
    """The means of the splits, or the values of the only split.

    Seeds of one split are not independent draws of the data.
    """
    if len(by_split) == 1:
        return next(iter(by_split.values()))
    return [fmean(group) for group in by_split.values()]


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def signatures(records: Iterable[Record]) -> tuple[str, ...]:
    return tuple(record["signature"] for record in records)


def best_depth(curve: Curve, protocol: str) -> Score:
    """The score at the best depth, selected as the protocol says."""
    if protocol == "authors":
        scores = {layers: score_on_test(records, str(layers)) for layers, records in curve.items()}
        return max(scores.values(), key=lambda score: score.mean)
    repeats: dict[tuple[str, int], list[Record]] = {}
    for records in curve.values():
        for record in records:
            repeats.setdefault((record["split"], record["seed"]), []).append(record)
    chosen = [best_on_validation(group) for group in repeats.values()]
    depths = Counter(depth_of(record) for record in chosen)
    return score_on_test(chosen, ",".join(str(layers) for layers in sorted(depths)))


def deepest(curve: Curve) -> Score:
    return score_on_test(curve[max(curve)], str(max(curve)))


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value
