"""The divergence (D_KL) between the attention of a 2-layer network and that of a deep one.

DeepGAT's scores compare class predictions, which bounds D_KL by construction. The tables show this
bound, and the D_KL of uniform attention, beside the measured values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from deepgat.lab.report.table import Sourced, Table
from deepgat.model_folder import to_json, write_whole

REFERENCE_DEPTH = 2
PERCENTILES = (5, 25, 50, 75, 95)

Arrays = Callable[[str], Mapping[str, Tensor] | None]
"""Signature → the arrays of that run, or None if it kept none."""


class Box(NamedTuple):
    """Quartiles of a sample, with its 5th and 95th percentiles as whiskers."""

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
    """D_KL(α² ‖ α^L) of one system on one dataset, over the nodes of all its runs."""

    protocol: str
    dataset: str
    model: str
    score: str
    layers: int
    """L of the deep network."""
    divergence: dict[int, Box]
    """Layer l of the deep network → distribution over nodes."""
    uniform: Box
    """D_KL(α² ‖ 1/|N_v|)."""
    bounds: dict[int, float | None]
    """Layer → the largest possible value, or None if scores are unbounded."""
    runs: tuple[str, ...]
    """Signatures of the deep networks."""

    @property
    def name(self) -> str:
        return system_name(self.model, self.score)


def attention_drifts(records: Iterable[Record], arrays: Arrays, protocol: str) -> list[Drift]:
    """One drift per system and dataset whose runs kept their attention.

    The protocol ``authors`` follows the authors' code: it adds 1e-5 to both attentions and uses
    only the run with the best test score. ``honest`` is the paper's formula over all runs.
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
        edges = torch.stack([target, target])  # D_KL does not depend on the sources
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
    settings = {**curve[deep][0]["settings"], "system": curve[deep][0]["system"]}
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
    """The bound for the wider of the two attentions' score ranges."""
    ranges = [_score_range(settings, dataset, is_last) for is_last in (last, True)]
    known = [length for length in ranges if length is not None]
    return divergence_bound(max(known)) if len(known) == len(ranges) else None


def _score_range(settings: Mapping[str, object], dataset: str, last: bool) -> float | None:
    """The largest difference between two scores of a layer, or None if it is not known."""
    if settings["system"] != "deepgat":
        return None
    try:
        entry = find_entry(dataset)
    except UserError:  # a user's graph, whose number of classes is not in the record
        return None
    # The product of two probability vectors is in [0, 1], of two multi-label vectors in [0, C].
    independent = entry.multi_label and settings["class_activation"] == "by-task"
    length = float(entry.classes) if independent else 1.0
    if settings["score"] == "dp":
        return length
    if settings["sd_scale"] == "width":
        return length / entry.classes
    width = entry.classes if last else settings["hidden_channels"]
    return length / math.sqrt(float(str(width)))


# ------------------------------------------------------------------------------- tables


def attention_tables(drifts: Sequence[Drift], protocol: str) -> list[Table]:
    """The last layer of every system; then, per dataset, every layer."""
    rows = []
    for drift in drifts:
        last = drift.divergence[drift.layers]
        bound = drift.bounds[drift.layers]
        rows.append(
            [
                drift.dataset,
                drift.name,
                str(drift.layers),
                *(Sourced(_three(value), drift.runs) for value in last[1:]),
                "–" if bound is None else _three(bound),
                _three(drift.uniform.median),
                str(len(drift.runs)),
            ]
        )
    notes = [
        "Quartiles and 95th percentile over nodes. Bound: the most that the formula can give for "
        "this score, whatever was learnt; none for GAT. Uniform: the median if the deep network "
        "attended to all neighbours alike. The paper prints no numbers for its figure.",
        "Authors' reading: 1e-5 added to both; of the runs looked at, the one with the best test "
        "score."
        if protocol == "authors"
        else "The paper's formula; nodes of all runs looked at together.",
    ]
    columns = ["dataset", "system", "L", "25%", "median", "75%", "95%", "bound", "uniform", "runs"]
    title = "D_KL of attention, last layer of the 2-layer network to that of the deepest"
    return [Table("attention-kl", title, columns, rows, notes), *_layer_tables(drifts)]


def _layer_tables(drifts: Sequence[Drift]) -> list[Table]:
    tables = []
    for dataset in dict.fromkeys(drift.dataset for drift in drifts):
        own = [drift for drift in drifts if drift.dataset == dataset]
        rows = []
        for layer in range(1, max(drift.layers for drift in own) + 1):
            rows.append([str(layer), *(_median(d.divergence.get(layer)) for d in own)])
        rows.append(["uniform", *(_median(drift.uniform) for drift in own)])
        tables.append(
            Table(
                f"attention-kl-{dataset}",
                f"D_KL from the 2-layer network to each layer of the deepest, {dataset}",
                ["layer", *(drift.name for drift in own)],
                rows,
                ["Median [quartiles] over nodes."],
            )
        )
    return tables


def _median(spread: Box | None) -> str:
    if spread is None:
        return "–"
    return f"{_three(spread.median)} [{_three(spread.first)}, {_three(spread.third)}]"


def _three(value: float) -> str:
    """Three digits; no minus sign before 0.000."""
    return f"{round(value, 3) + 0.0:.3f}"


# ------------------------------------------------------------------------------- files


def drifts_beside(records: Path) -> Path:
    """The file of drifts that belongs to a file of records."""
    return beside(records, "attention")


def write_drifts(path: Path, drifts: Iterable[Drift]) -> None:
    """Write one JSON object per line."""
    write_whole(path, "".join(to_json(asdict(drift)) for drift in drifts))


def read_drifts(path: Path) -> list[Drift]:
    """The drifts in a file, or none if the file does not exist."""
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
