"""Charts as plain values, and how matplotlib draws them for files.

``page/charts.js`` draws the same values on the page. A chart has series of points ``[x, y, low,
high, text, runs]``: the ends of a point's band (None without one), the text of its tooltip, and a
tuple with the signatures of its runs.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from deepgat.figures import COLORS, MARKERS, as_text, house_style
from deepgat.lab.report.table import NONE, Sourced, Table

Chart = dict[str, Any]
IN_ONE_ROW = 3
"""The most panels that fit into a row and stay legible."""
MANY_LINES = 6
"""With more lines than this, bands would hide them."""


def lines(cells: Mapping[str, Mapping[int, str]], title: str, x: str, y: str, **more: Any) -> Chart:
    """{system: {x: cell of a table}} as a line per system; published values are hollow points."""
    series = []
    for key, row in cells.items():
        points, published = [], []
        for place, cell in row.items():
            own = cell if isinstance(cell, Sourced) else Sourced(cell, (), (None, None, None))
            ends = [number(value) for value in own.numbers[:3]]
            printed = own.numbers[3:]
            points.append([place, *ends, str(cell), own.runs])
            published += [[place, value, None, None, f"{value:.1f}", ()] for value in printed]
        dash = key.startswith(("oracle", "uniform"))
        series.append({"key": key, "label": key, "points": points, "dash": dash})
        if published:
            label = f"{key}, published"
            series.append({"key": key, "label": label, "points": published, "hollow": True})
    return {"title": title, "x": x, "y": y, "series": series, **more}


def table_by_x(
    name: str,
    title: str,
    cells: Mapping[str, Mapping[int, str]],
    notes: list[str],
    axes: tuple[str, str],
    **chart: Any,
) -> Table:
    """{system: {x: cell}} as a table with a row per x, and its chart."""
    rows = [
        [str(x), *(column.get(x, NONE) for column in cells.values())]
        for x in sorted({x for column in cells.values() for x in column})
    ]
    drawn = lines(cells, title, *axes, name=name, floor=0, **chart)
    return Table(name, title, [axes[0].split()[-1], *cells], rows, notes, [drawn])


def number(value: float | None) -> float | None:
    """Six digits; None for what JSON has no word for."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def draw(charts: Sequence[Chart]) -> Figure:
    """One panel per chart, and one legend below them; a system looks the same in all panels."""
    alone = len(charts) == 1
    figure, panels = panel_grid(len(charts), 0.6)
    font = 10 if alone else 8
    keys = list(dict.fromkeys(series["key"] for chart in charts for series in chart["series"]))
    for axes, chart in zip(panels, charts, strict=True):
        _draw_lines(axes, chart, keys)
        title = textwrap.fill(as_text(chart["title"]), 84 if alone else 48)
        axes.set_title(title, loc="left", fontsize=font)
        axes.set_xlabel(chart["x"], fontsize=font)
        axes.set_ylabel(chart["y"], fontsize=font)
    shared_legend(figure, 3 if alone else 6)
    return figure


def panel_grid(count: int, legend_inches: float) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels in the house style, and room for a legend below them."""
    columns = 2 if count == 4 else min(count, IN_ONE_ROW)
    rows = -(-count // columns)
    width, height = (6.4, 3.8) if count == 1 else (3.5 * columns, 3.0 * rows)
    size = (width, height + legend_inches)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in panels[:count]:
        house_style(axes)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def shared_legend(figure: Figure, columns: int, order: Sequence[str] = ()) -> None:
    """One legend for all panels: a line per label, those of ``order`` first."""
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = sorted(handles, key=lambda label: order.index(label) if label in order else len(order))
    figure.legend([handles[label] for label in labels], labels, loc="outside lower center",
                  ncols=columns, frameon=False, fontsize=9)  # fmt: skip


def _draw_lines(axes: Axes, chart: Chart, keys: list[str]) -> None:
    for series in chart["series"]:
        place = keys.index(series["key"])
        color = COLORS[place % len(COLORS)]
        marker = MARKERS[(place + place // len(COLORS)) % len(MARKERS)]  # new pairs for later lines
        hollow = series.get("hollow", False)
        ours = len(keys) <= MANY_LINES or series["key"].startswith(("DeepGAT", "PreNorm"))
        x, y, low, high, *_ = zip(*series["points"], strict=True)
        axes.plot(
            x,
            [math.nan if value is None else value for value in y],  # a gap
            color=color,
            linestyle="" if hollow else "--" if series.get("dash") else "-",
            linewidth=1.8 if ours else 0.9,
            marker=marker,
            markersize=9 if hollow else 5 if ours else 4,
            markerfacecolor="none" if hollow else color,
            label="hollow: published" if hollow else as_text(series["label"]),
        )
        banded = [ends for ends in zip(x, low, high, strict=True) if None not in ends]
        if banded and len(keys) <= MANY_LINES:
            inside, lower, upper = zip(*banded, strict=True)
            axes.fill_between(inside, lower, upper, color=color, alpha=0.12, linewidth=0)
            if len(banded) == 1:
                axes.vlines(inside, lower, upper, color=color)
    values = [p[1] for series in chart["series"] for p in series["points"] if p[1] is not None]
    if chart.get("log") and min(values, default=0) > 0:
        axes.set_yscale("log")
    elif chart.get("floor") is not None:
        top = axes.get_ylim()[1]
        axes.set_ylim(chart["floor"], min(top, 1.02 * (chart.get("ceiling") or top)))
    elif values:  # wide bands may run off, so that the lines can be told apart
        margin = 0.15 * (max(values) - min(values)) or 1.0
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, min(values) - margin), min(top, max(values) + margin))
    if chart.get("log_x"):
        ticks = sorted({point[0] for series in chart["series"] for point in series["points"]})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize="x-small")
        axes.minorticks_off()
    else:
        bins = 8 if len(axes.figure.axes) > 1 else 16
        places = {point[0] for series in chart["series"] for point in series["points"]}
        if len(places) == 1:
            only = places.pop()
            axes.set_xlim(only - 1, only + 1)  # so that ticks are whole numbers
        axes.xaxis.set_major_locator(MaxNLocator(nbins=bins, integer=True))
