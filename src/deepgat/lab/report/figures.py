"""Draws the charts of :mod:`deepgat.lab.report.charts` with matplotlib, for files.

The page draws the same charts with ``page/charts.js``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from deepgat.figures.style import COLORS, MARKERS, house_style, legend_below
from deepgat.lab.report.charts import Chart

IN_ONE_ROW = 4
"""More panels than this are drawn in rows of three."""


def draw(charts: Sequence[Chart], title: str = "") -> Figure:
    """One panel per chart, and one legend below them."""
    columns = len(charts) if len(charts) <= IN_ONE_ROW else 3
    rows = -(-len(charts) // columns)
    size = (6.4, 4.0) if len(charts) == 1 else (3.5 * columns, 3.0 * rows + 0.6)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(charts) :]:
        axes.set_visible(False)
    # a system has the same colour in all panels
    keys = list(dict.fromkeys(s["key"] for chart in charts for s in chart.get("series", [chart])))
    for axes, chart in zip(panels, charts, strict=False):
        house_style(axes)
        {"lines": _lines, "bars": _bars, "boxes": _boxes}[chart["kind"]](axes, chart, keys)
        axes.set_title(chart["title"], loc="left", fontsize=10 if len(charts) == 1 else 9)
        axes.set_xlabel(chart.get("x", ""), fontsize=10 if len(charts) == 1 else 8)
        axes.set_ylabel(chart["y"], fontsize=10 if len(charts) == 1 else 8)
    legend_below(figure)
    figure.suptitle(title, fontsize=10)
    return figure


def _lines(axes: Axes, chart: Chart, keys: list[str]) -> None:
    for series in chart["series"]:
        color, marker = _look(series, keys)
        points = [point for point in series["points"] if point[1] is not None]
        x, y = [point[0] for point in points], [point[1] for point in points]
        line = ("--" if series.get("dash") else "-") if series.get("line", True) else ""
        hollow = series.get("hollow", False)
        axes.plot(x, y, color=color, linestyle=line, linewidth=2, label=_label(series),
                  marker=marker if series.get("marker", True) else "",
                  markersize=9 if hollow else 5,
                  markerfacecolor="none" if hollow else color)  # fmt: skip
        banded = [point for point in points if point[2] is not None]
        inside, _, low, high, *_ = zip(*banded, strict=True) if banded else [()] * 4
        if len(banded) == 1:
            axes.vlines(inside, low, high, color=color)
        else:
            axes.fill_between(inside, low, high, color=color, alpha=0.12, linewidth=0)
    values = [p[1] for series in chart["series"] for p in series["points"] if p[1] is not None]
    if chart.get("log") and min(values, default=0) > 0:
        axes.set_yscale("log")
    elif chart.get("floor") is not None:
        top = axes.get_ylim()[1]
        axes.set_ylim(chart["floor"], min(top, 1.02 * (chart.get("ceiling") or top)))
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=8 if len(axes.figure.axes) > 1 else 16, integer=True)
    )


def _bars(axes: Axes, chart: Chart, keys: list[str]) -> None:
    width = 0.8 / len(chart["series"])
    for index, series in enumerate(chart["series"]):
        color, _ = _look(series, keys)
        shown = [(place, v) for place, v in enumerate(series["values"]) if v is not None]
        places = [place + (index + 0.5) * width - 0.4 for place, _ in shown]
        axes.bar(places, [value for _, value in shown], width, label=series["label"],
                 facecolor="none" if series["hollow"] else color, edgecolor=color,
                 linewidth=1.5)  # fmt: skip
    axes.set_xticks(range(len(chart["groups"])), chart["groups"])


def _boxes(axes: Axes, chart: Chart, keys: list[str]) -> None:
    count = len(chart["boxes"])
    _draw_boxes(axes, chart["boxes"], range(1, count + 1), _look(chart, keys)[0])
    _draw_boxes(axes, [["uniform", *chart["uniform"]]], [count + 2.5], "0.5")
    if chart["bounds"] is not None:
        axes.plot(range(1, count + 1), chart["bounds"], color="0.2", linestyle="--",
                  label="bound by construction")  # fmt: skip
    axes.set_ylim(0, None)
    axes.tick_params(axis="x", labelsize=7)


def _draw_boxes(
    axes: Axes, boxes: Sequence[Sequence[Any]], places: Sequence[float], color: str
) -> None:
    names = ("label", "whislo", "q1", "med", "q3", "whishi")
    line = {"color": color}
    axes.bxp([dict(zip(names, box, strict=False)) for box in boxes], positions=places, widths=0.6,
             showfliers=False, boxprops=line, whiskerprops=line, capprops=line,
             medianprops={**line, "linewidth": 2})  # fmt: skip


def _look(series: Chart, keys: list[str]) -> tuple[str, str]:
    """Colour and marker."""
    place = series.get("color", keys.index(series["key"]))
    return COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]


def _label(series: dict[str, Any]) -> str:
    """Published points share one entry of the legend."""
    return "hollow: published" if series["label"].endswith(", published") else series["label"]
