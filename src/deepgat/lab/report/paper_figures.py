"""The paper's figures from records, the published numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from deepgat.figures.style import COLORS, MARKERS, depth_figure, legend_below, new_axes
from deepgat.lab.paper.published import DEEPGAT_PAPER
from deepgat.lab.report.paper_tables import degradations, nearest_score
from deepgat.lab.report.scores import Record, curves, score_on_test, system_name


def depth_figures(records: Iterable[Record]) -> dict[str, Figure]:
    """Micro-F1 against L, a figure per dataset; published points hollow."""
    figures = {}
    found = curves(records)
    for dataset in dict.fromkeys(key[0] for key in found):
        lines: dict[str, dict[int, float]] = {}
        bars: dict[str, dict[int, float]] = {}
        published: dict[str, dict[int, float]] = {}
        for (name, model, score), curve in found.items():
            if name != dataset:
                continue
            label = system_name(model, score)
            scores = {layers: score_on_test(records) for layers, records in curve.items()}
            lines[label] = {layers: s.mean / 100 for layers, s in scores.items()}
            bars[label] = {
                layers: 0.0 if math.isnan(s.half_width) else s.half_width / 100
                for layers, s in scores.items()
            }
            if row := DEEPGAT_PAPER.get((model, score, dataset)):
                published[label] = {
                    row.best_layers: row.best / 100,
                    row.deepest_layers: row.deepest / 100,
                }
        figures[f"depth-{dataset}"] = depth_figure(
            lines, f"Micro-F1 against depth, {dataset}", half_widths=bars, published=published
        )
    return figures


def degradation_figure(records: Iterable[Record], protocol: str) -> Figure:
    """Points lost from the best depth to the largest, for GAT: bars, published hollow."""
    bars: Mapping[str, Mapping[str, float]] = degradations(records, protocol)
    datasets = list(dict.fromkeys(dataset for row in bars.values() for dataset in row))
    figure, axes = new_axes()
    width = 0.8 / max(len(bars), 1)
    for index, (name, row) in enumerate(bars.items()):
        places = [datasets.index(dataset) + (index + 0.5) * width - 0.4 for dataset in row]
        color = COLORS[[n for n in bars if not n.endswith("published")].index(name.split(",")[0])]
        printed = name.endswith("published")
        axes.bar(
            places,
            list(row.values()),
            width,
            label=name,
            facecolor="none" if printed else color,
            edgecolor=color,
            linewidth=1.5,
        )
    axes.set_xticks(range(len(datasets)), datasets)
    axes.set_ylabel("points of micro-F1 lost")
    axes.set_title("Best depth minus largest depth", loc="left", fontsize=11)
    if bars:
        legend_below(figure)
    return figure


def nearest_figures(records: Iterable[Record], prototypes: str) -> dict[str, Figure]:
    """e_N against L, a figure per dataset: lines e_N, bands down to the Bayes error's bound."""
    figures = {}
    found = curves(r for r in records if r["measures"].get("nearest-neighbor"))
    for dataset in dict.fromkeys(key[0] for key in found):
        figure, axes = new_axes()
        own = [(key[1:], curve) for key, curve in found.items() if key[0] == dataset]
        for index, (system, curve) in enumerate(own):
            depths = sorted(curve)
            upper = [nearest_score(curve, d, prototypes, "error") for d in depths]
            lower = [nearest_score(curve, d, prototypes, "bayes_lower") for d in depths]
            color = COLORS[index % len(COLORS)]
            oracle = system[0] == "oracle"
            axes.plot(
                depths,
                [math.nan if s is None else s.mean for s in upper],
                color="0.3" if oracle else color,
                linestyle="--" if oracle else "-",
                marker=None if oracle else MARKERS[index % len(MARKERS)],
                linewidth=2,
                label=system_name(*system),
            )
            axes.fill_between(
                depths,
                [math.nan if s is None else s.mean for s in lower],
                [math.nan if s is None else s.mean for s in upper],
                color="0.3" if oracle else color,
                alpha=0.12,
                linewidth=0,
            )
        axes.set_xticks(sorted({depth for _, curve in own for depth in curve}))
        axes.set_ylim(0, None)
        axes.set_xlabel("number of layers L")
        axes.set_ylabel("error of the nearest prototype, e_N (%)")
        axes.set_title(
            f"e_N on h^L, prototypes {prototypes}, {dataset}; shaded: where the Bayes error lies",
            loc="left",
            fontsize=10,
        )
        legend_below(figure)
        figures[f"nearest-neighbor-{dataset}"] = figure
    return figures
