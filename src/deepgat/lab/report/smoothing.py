"""Over-smoothing, layer by layer: what each layer of a network still knows and tells apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from deepgat.figures.style import COLORS, MARKERS, house_style, legend_below
from deepgat.lab.report.layout import Sourced, Table
from deepgat.lab.report.scores import Record, Score, curves, mean_score, signatures, system_name

PROFILE, LAYER_SCORES = "over-smoothing", "layer-scores"
ACCURACY = "micro_f1"


class Panel(NamedTuple):
    """One measure as it is shown."""

    measure: str
    title: str
    label: str
    log: bool = False
    floor: float | None = 0.0
    ceiling: float | None = None
    digits: int = 3


PANELS = (
    Panel(ACCURACY, "Accuracy of the layer's own prediction", "test micro-F1 (%)", ceiling=100,
          digits=1),
    Panel("energy", "Dirichlet energy", "energy of hˡ", log=True, floor=None),
    Panel("relative_energy", "Relative energy", "energy / ‖hˡ‖²"),
    Panel("neighbor_distance", "Distance of neighbours", "MAD over neighbours"),
    Panel("effective_rank", "Effective rank", "rank of hˡ", digits=1),
    Panel("same_class_attention", "Attention to one's own class", "share of attention", floor=None),
)  # fmt: skip
"""Of :class:`deepgat.analysis.LayerMeasures`, those that are shown."""
UNIFORM = "uniform_same_class_attention"
COLUMNS = ("system", "layer", "own micro-F1 %", "energy", "relative energy", "MAD neighbours",
           "effective rank", "same-class attention", "if uniform")  # fmt: skip

LayerScores = dict[int, Score]
"""Layer l → the mean over repetitions."""


class Profile(NamedTuple):
    """One system with L layers on one dataset."""

    dataset: str
    model: str
    score: str
    layers: int
    values: dict[str, LayerScores]
    """Measure → its layers."""

    @property
    def name(self) -> str:
        return system_name(self.model, self.score)


def profiles(records: Iterable[Record]) -> list[Profile]:
    """Of every system and depth whose layers were measured; their predictions at least."""
    records = list(records)
    profiled = curves(r for r in records if r["measures"].get(PROFILE))
    depths: dict[str, set[int]] = {}
    for key, curve in profiled.items():
        depths.setdefault(key[0], set()).update(curve)
    found = []
    for (dataset, model, score), curve in curves(records).items():
        measured = profiled.get((dataset, model, score), {})
        # where some depths of a dataset were measured in full, the others would be empty panels
        for layers in sorted(depths.get(dataset, set(curve)).intersection(curve)):
            values = {ACCURACY: _means(curve[layers], ACCURACY)}
            for measure in (*(panel.measure for panel in PANELS[1:]), UNIFORM):
                values[measure] = _means(measured.get(layers, []), measure)
            if any(len(means) > 1 for means in values.values()):
                found.append(Profile(dataset, model, score, layers, values))
    return found


def _means(records: Sequence[Record], measure: str) -> LayerScores:
    by_layer: dict[int, list[tuple[Record, float]]] = {}
    for record in records:
        for layer, value in layer_values(record, measure).items():
            by_layer.setdefault(layer, []).append((record, value))
    return {
        layer: mean_score(
            [(record["split"], value) for record, value in pairs],
            runs=signatures(record for record, _ in pairs),
        )
        for layer, pairs in sorted(by_layer.items())
    }


def layer_values(record: Record, measure: str) -> dict[int, float]:
    """Layer → the number of one run; of several graphs their mean."""
    if measure == ACCURACY:
        own = (record["measures"].get(LAYER_SCORES) or {}).get("test")
        if own is None:  # its layers predict nothing: only the network does
            return {record["model"]["layers"]: 100 * record["micro_f1"]["test"]}
        return {int(layer): 100 * share for layer, share in own.items()}
    found: dict[int, list[float]] = {}
    for graph in record["measures"].get(PROFILE) or []:
        for row in graph:
            if row.get(measure) is not None:
                found.setdefault(row["layer"], []).append(row[measure])
    return {layer: fmean(values) for layer, values in found.items()}


# ------------------------------------------------------------------------------- tables


def smoothing_tables(found: Sequence[Profile]) -> list[Table]:
    """A table per dataset and depth: a row per system and layer."""
    tables = []
    for dataset, layers in dict.fromkeys((p.dataset, p.layers) for p in found):
        own = [p for p in found if (p.dataset, p.layers) == (dataset, layers)]
        rows = []
        for profile in own:
            for layer in sorted({layer for means in profile.values.values() for layer in means}):
                cells = [
                    _cell(profile.values[panel.measure].get(layer), panel.digits)
                    for panel in PANELS
                ]
                uniform = _cell(profile.values[UNIFORM].get(layer), 3)
                rows.append([profile.name, str(layer), *cells, uniform])
        tables.append(
            Table(
                f"over-smoothing-{dataset}-{layers}",
                f"Layer by layer, {dataset}, L = {layers}",
                list(COLUMNS),
                rows,
                [
                    "Means over repetitions. Own micro-F1: of the class prediction that the layer "
                    "itself makes, test nodes; layer 0 is the input. Energy: normalised Dirichlet "
                    "energy of h^l. Same-class attention: the share of attention that goes to "
                    "nodes of one's own class, and what attention to all alike would give."
                ],
            )
        )
    return tables


def _cell(score: Score | None, digits: int) -> str:
    if score is None:
        return "–"
    if 0 < abs(score.mean) < 10**-digits:
        text = f"{score.mean:.1e}"
    else:
        text = f"{score.mean:,.{digits if abs(score.mean) < 1000 else 0}f}"
    return Sourced(text, score.runs)


# ------------------------------------------------------------------------------- figures


def smoothing_figures(found: Sequence[Profile]) -> dict[str, Figure]:
    """A figure per dataset and depth, a panel per measure that any system has."""
    figures = {}
    for dataset, layers in dict.fromkeys((p.dataset, p.layers) for p in found):
        own = [p for p in found if (p.dataset, p.layers) == (dataset, layers)]
        shown = [panel for panel in PANELS if any(p.values[panel.measure] for p in own)]
        columns = min(3, len(shown))
        rows = math.ceil(len(shown) / columns)
        figure = Figure(figsize=(3.4 * columns + 0.4, 2.9 * rows + 0.4), dpi=150,
                        layout="constrained")  # fmt: skip
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        for axes, panel in zip(panels, shown, strict=False):
            for index, profile in enumerate(own):
                means = profile.values[panel.measure]
                color = COLORS[index % len(COLORS)]
                axes.plot(list(means), [score.mean for score in means.values()], color=color,
                          marker=MARKERS[index % len(MARKERS)], markersize=4,
                          label=profile.name)  # fmt: skip
            if panel.measure == "same_class_attention" and own[0].values[UNIFORM]:
                even = own[0].values[UNIFORM]
                axes.plot(list(even), [score.mean for score in even.values()], color="0.5",
                          linestyle="--", label="uniform")  # fmt: skip
            if panel.log and all(
                score.mean > 0 for p in own for score in p.values[panel.measure].values()
            ):
                axes.set_yscale("log")
            elif panel.floor is not None:
                axes.set_ylim(panel.floor, None)
            axes.set_title(panel.title, loc="left", fontsize=9)
            axes.set_xlabel("layer l", fontsize=8)
            axes.set_ylabel(panel.label, fontsize=8)
            axes.tick_params(which="both", labelsize=7)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            house_style(axes)
        legend_below(figure)
        figure.suptitle(f"Over-smoothing, {dataset}, L = {layers}", fontsize=10)
        figures[f"over-smoothing-{dataset}-{layers}"] = figure
    return figures
