"""How attention changes from the 2-layer network to the deepest: D_KL, computed and kept.

DeepGAT compares class predictions, so its scores lie in an interval and its D_KL is bounded by
construction; the bound, and what uniform attention would give, stand beside what was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepgat.analysis import attention_divergence, divergence_bound
from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError
from deepgat.files import beside
from deepgat.lab.report.scores import Curve, Record, curves, system_name
from deepgat.model_folder import to_json, write_whole

REFERENCE_DEPTH = 2
PERCENTILES = (5, 25, 50, 75, 95)

Arrays = Callable[[str], Mapping[str, Tensor] | None]
"""Signature → the arrays of that run, None where there are none."""


class Box(NamedTuple):
    """How numbers spread: whiskers at the 5th and 95th percentile, quartiles; no outliers."""

    low: float
    first: float
    median: float
    third: float
    high: float


def box(values: Tensor) -> Box:
    shares = torch.tensor(PERCENTILES, dtype=torch.float64) / 100
    return Box(*torch.quantile(values.double(), shares).tolist())


@dataclass(frozen=True)
class Drift:
    """D_KL(α² ‖ α^L) of one system on one dataset, all nodes of all runs looked at together."""

    protocol: str
    dataset: str
    model: str
    score: str
    layers: int
    """L of the deep network."""
    divergence: dict[int, Box]
    """Layer l of the deep network → how its nodes spread."""
    uniform: Box
    """D_KL(α² ‖ 1/|N_v|)."""
    bounds: dict[int, float | None]
    """Layer → the largest value possible; None where scores are unbounded."""
    runs: tuple[str, ...]
    """Signatures of the deep networks."""

    @property
    def name(self) -> str:
        return system_name(self.model, self.score)


def attention_drifts(records: Iterable[Record], arrays: Arrays, protocol: str) -> list[Drift]:
    """The divergences of every system and dataset whose runs have kept their attention.

    ``authors``: 1e-5 is added to both attentions, and of the runs looked at only the one with the
    best test score counts, as in their code; ``honest``: the paper's formula, and all of them.
    """
    found = []
    for (dataset, model, score), curve in curves(records).items():
        drift = _drift(dataset, model, score, curve, arrays, protocol)
        if drift is not None:
            found.append(drift)
    return found


def _drift(
    dataset: str, model: str, score: str, curve: Curve, arrays: Arrays, protocol: str
) -> Drift | None:
    deep = max(curve)
    if REFERENCE_DEPTH not in curve or deep == REFERENCE_DEPTH:
        return None
    shallow_runs = {(r["split"], r["seed"]): r for r in curve[REFERENCE_DEPTH]}
    pairs = [
        (shallow_runs[key], r)
        for r in curve[deep]
        if (key := (r["split"], r["seed"])) in shallow_runs
    ]
    if protocol == "authors" and pairs:
        pairs = [max(pairs, key=lambda pair: pair[1]["micro_f1"]["test"])]
    layers: dict[int, list[Tensor]] = {}
    uniform: list[Tensor] = []
    seen: list[str] = []
    for shallow, deepest in pairs:
        one, other = arrays(shallow["signature"]), arrays(deepest["signature"])
        if one is None or other is None:
            continue
        seen.append(deepest["signature"])
        degree = one["attention.ptr"].long().diff()
        target = torch.arange(len(degree)).repeat_interleave(degree)
        edges = torch.stack([target, target])  # who is listened to plays no part
        reference = one[f"attention.{REFERENCE_DEPTH}"].unsqueeze(1)
        reading = "authors" if protocol == "authors" else "paper"
        for layer in range(1, deep + 1):
            weight = other[f"attention.{layer}"].unsqueeze(1)
            layers.setdefault(layer, []).append(
                attention_divergence(edges, reference, weight, reading)
            )
        even = (1 / degree)[target].unsqueeze(1)
        uniform.append(attention_divergence(edges, reference, even, reading))
    if not uniform:
        return None
    settings = curve[deep][0]["model"]
    return Drift(
        protocol,
        dataset,
        model,
        score,
        deep,
        {layer: box(torch.cat(parts)) for layer, parts in layers.items()},
        box(torch.cat(uniform)),
        {layer: _bound(settings, dataset, layer == deep) for layer in layers},
        tuple(seen),
    )


def _bound(settings: Mapping[str, object], dataset: str, last: bool) -> float | None:
    """Both attentions' scores lie in an interval as long as the longer of theirs."""
    ranges = [_score_range(settings, dataset, is_last) for is_last in (last, True)]
    known = [length for length in ranges if length is not None]
    return divergence_bound(max(known)) if len(known) == len(ranges) else None


def _score_range(settings: Mapping[str, object], dataset: str, last: bool) -> float | None:
    """How far the scores of a layer can lie apart; None where there is no limit."""
    if settings["model"] != "deepgat":
        return None
    entry = find_entry(dataset)
    # Two vectors of probabilities have a product in [0, 1], two of independent labels in [0, C].
    independent = entry.multi_label and settings["class_activation"] == "by-task"
    length = float(entry.classes) if independent else 1.0
    if settings["score"] == "dp":
        return length
    if settings["sd_scale"] == "width":
        return length / entry.classes
    width = entry.classes if last else settings["hidden"]
    return length / math.sqrt(float(str(width)))


# ------------------------------------------------------------------------------- on disk


def drifts_beside(records: Path) -> Path:
    """Where the divergences are kept that belong to a file of records, which has no attention."""
    return beside(records, "attention")


def write_drifts(path: Path, drifts: Iterable[Drift]) -> None:
    """One per line, so that files can be joined."""
    write_whole(path, "".join(to_json(asdict(drift)) for drift in drifts))


def read_drifts(path: Path) -> list[Drift]:
    """What :func:`write_drifts` wrote; nothing where there is no such file."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            found.append(_drift_from(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number}, is not a divergence of attention: write the file anew "
                "with deepgat reproduce attention-kl"
            ) from error
    return found


def _drift_from(values: dict[str, Any]) -> Drift:
    boxes = {int(layer): Box(*numbers) for layer, numbers in values["divergence"].items()}
    bounds = {int(layer): bound for layer, bound in values["bounds"].items()}
    return Drift(
        **{
            **values,
            "divergence": boxes,
            "uniform": Box(*values["uniform"]),
            "bounds": bounds,
            "runs": tuple(values["runs"]),
        }
    )
