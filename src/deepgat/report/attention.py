"""How attention changes from the 2-layer network to the deepest: tables and box plots of D_KL.

DeepGAT compares class predictions, so its scores lie in an interval and its D_KL is bounded by
construction; the bound, and what uniform attention would give, stand beside what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from deepgat.analysis import attention_divergence, divergence_bound
from deepgat.data.entries import find_entry
from deepgat.report.figures import COLORS, legend_below
from deepgat.report.layout import Sourced, Table
from deepgat.report.scores import Curve, Record, curves, system_name

REFERENCE_DEPTH = 2
UNIFORM = "uniform"
WHISKERS = (5, 95)
"""Percentiles; outliers are not drawn."""

Arrays = Callable[[str], Mapping[str, Tensor] | None]
"""Signature → the arrays of that run, None where there are none."""


@dataclass(frozen=True, eq=False)
class Drift:
    """D_KL(α² ‖ α^L) of one system on one dataset, all nodes of all runs looked at together."""

    dataset: str
    model: str
    score: str
    layers: int
    """L of the deep network."""
    divergence: dict[int, np.ndarray]
    """Layer l of the deep network → one number per node."""
    uniform: np.ndarray
    """D_KL(α² ‖ 1/|N_v|) per node."""
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
        dataset,
        model,
        score,
        deep,
        {layer: torch.cat(parts).numpy() for layer, parts in layers.items()},
        torch.cat(uniform).numpy(),
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


# ------------------------------------------------------------------------------- tables


def attention_tables(drifts: Sequence[Drift], protocol: str) -> list[Table]:
    """The last layer of every system, and every layer of each dataset."""
    rows = []
    for drift in drifts:
        last = drift.divergence[drift.layers]
        bound = drift.bounds[drift.layers]
        rows.append(
            [
                drift.dataset,
                drift.name,
                str(drift.layers),
                *(
                    Sourced(_three(value), drift.runs)
                    for value in np.percentile(last, (25, 50, 75, 95))
                ),
                "–" if bound is None else _three(bound),
                _three(float(np.median(drift.uniform))),
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
        rows.append([UNIFORM, *(_median(drift.uniform) for drift in own)])
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


def _median(values: np.ndarray | None) -> str:
    if values is None:
        return "–"
    low, middle, high = np.percentile(values, (25, 50, 75))
    return f"{_three(middle)} [{_three(low)}, {_three(high)}]"


def _three(value: float) -> str:
    """Three digits; what rounds to zero has no sign."""
    return f"{round(value, 3) + 0.0:.3f}"


# ------------------------------------------------------------------------------- figures


def attention_figures(drifts: Sequence[Drift]) -> dict[str, Figure]:
    """A figure per dataset, a panel per system: boxes per layer, uniform attention, the bound."""
    figures = {}
    for dataset in dict.fromkeys(drift.dataset for drift in drifts):
        own = [drift for drift in drifts if drift.dataset == dataset]
        figure = Figure(figsize=(3.6 * len(own), 3.8), dpi=150, layout="constrained")
        panels = figure.subplots(1, len(own), squeeze=False)[0]
        for index, (axes, drift) in enumerate(zip(panels, own, strict=True)):
            boxes = [_box(values, str(layer)) for layer, values in drift.divergence.items()]
            color = COLORS[index % len(COLORS)]
            _boxes(axes, boxes, list(range(1, len(boxes) + 1)), color)
            _boxes(axes, [_box(drift.uniform, UNIFORM)], [len(boxes) + 2.5], "0.5")
            bounds = [drift.bounds[layer] for layer in drift.divergence]
            if None not in bounds:
                axes.plot(range(1, len(boxes) + 1), bounds, color="0.2", linestyle="--",
                          label="bound by construction")  # fmt: skip
            axes.set_title(drift.name, loc="left", fontsize=10)
            axes.set_xlabel(f"layer of the {drift.layers}-layer network")
            axes.set_ylim(0, None)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(axis="x", labelsize=7)
        panels[0].set_ylabel("D_KL from the 2-layer network's attention")
        if any(axes.get_legend_handles_labels()[0] for axes in panels):
            legend_below(figure)
        figures[f"attention-kl-{dataset}"] = figure
    return figures


def _boxes(axes: Axes, boxes: list[dict[str, object]], places: list[float], color: str) -> None:
    line = {"color": color}
    axes.bxp(boxes, positions=places, widths=0.6, showfliers=False, boxprops=line,
             whiskerprops=line, capprops=line, medianprops={**line, "linewidth": 2})  # fmt: skip


def box(values: np.ndarray) -> tuple[float, ...]:
    """Lower whisker, quartiles, upper whisker."""
    return tuple(np.percentile(values, (WHISKERS[0], 25, 50, 75, WHISKERS[1])).tolist())


def _box(values: np.ndarray, label: str) -> dict[str, object]:
    low, first, middle, third, high = box(values)
    return {"label": label, "whislo": low, "q1": first, "med": middle, "q3": third, "whishi": high}
