"""How attention changes with depth: tables and box plots of :mod:`deepgat.lab.report.drifts`."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepgat.figures.style import COLORS, legend_below
from deepgat.lab.report.drifts import Box, Drift
from deepgat.lab.report.layout import Sourced, Table

UNIFORM = "uniform"


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


def _median(spread: Box | None) -> str:
    if spread is None:
        return "–"
    return f"{_three(spread.median)} [{_three(spread.first)}, {_three(spread.third)}]"


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
            boxes = [_drawn(spread, str(layer)) for layer, spread in drift.divergence.items()]
            color = COLORS[index % len(COLORS)]
            _boxes(axes, boxes, list(range(1, len(boxes) + 1)), color)
            _boxes(axes, [_drawn(drift.uniform, UNIFORM)], [len(boxes) + 2.5], "0.5")
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


def _drawn(spread: Box, label: str) -> dict[str, object]:
    low, first, middle, third, high = spread
    return {"label": label, "whislo": low, "q1": first, "med": middle, "q3": third, "whishi": high}
