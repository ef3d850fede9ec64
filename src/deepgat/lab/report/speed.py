"""Tables and figures of the rows that ``deepgat bench`` measured.

``python -m deepgat.lab.report.speed FILE.json … [FIGURE.png]`` prints the tables as Markdown and
draws a figure with a part per file. It shows layers and steps, or training on large graphs if the
files have nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepgat.figures import COLORS, MARKERS, house_style, save_figure
from deepgat.lab.report.table import NONE, Table

Row = dict[str, Any]
TITLES = {
    "layer": "One attention layer, 64 → 8 heads of 8, forward and backward",
    "step": "A training step of 15 DeepGAT layers, each with its class loss",
    "epoch": "An epoch of training at 15 layers, validation included",
    "words": "First projection of a bag of words, X W and the gradient of W",
    "growth": "Growth with the edges, the heads and the layers",
    "depth": "A training step of many layers, activations kept or computed again",
    "large": "One training step on a large random graph with hubs",
    "training": "Training to 95% of the reachable accuracy, 4 layers of width 64",
    "files": "Reading a graph from nodes.csv and edges.csv, a node for every ten edges",
}
COLUMNS = {
    "graph": "graph", "edges": "edges", "layers": "layers", "heads": "heads", "way": "way",
    "treatment": "treatment",
    "milliseconds": "ms", "peak_megabytes": "peak MB", "megabytes_per_layer": "MB per layer",
    "times_alike": "× GATConv treated alike", "times_gatconv": "× GATConv",
    "times_plain": "× plain", "memory_times_plain": "memory × plain",
    "times_dense": "× dense", "gather_bound_milliseconds": "gather bound ms",
    "nanoseconds_per_edge": "ns per edge", "largest_degree": "largest degree",
    "times_deepgat": "× deepgat's time",
}  # fmt: skip
TRAINING_COLUMNS = {
    "pairs": ("undirected edges", "{:,}"), "nodes": ("nodes", "{:,}"), "way": ("way", "{}"),
    "reached_seconds": ("s to 95%", "{:,.1f}"), "epochs": ("epochs", "{:,}"),
    "seconds_per_epoch": ("s an epoch", "{:,.2f}"), "prepare_seconds": ("s to prepare", "{:,.1f}"),
    "peak_gigabytes": ("peak GB", "{:,.2f}"), "accuracy": ("accuracy", "{:.1%}"),
    "reachable": ("reachable", "{:.1%}"), "stopped": ("ended", "{}"),
}  # fmt: skip
"""Of a training run: field → column and format."""
PANELS = (("layer", "milliseconds"), ("step", "peak_megabytes"))
OURS, THEIRS = COLORS[1], "0.72"


def machine_name(record: Row) -> str:
    """The GPU, or the processor and its threads."""
    machine = record["machine"]
    return str(machine.get("gpu") or f"{machine['threads']} cores, {machine['processor']}")


def speed_tables(record: Row) -> list[Table]:
    """A table per suite of one file of rows."""
    return [
        suite_table(suite, rows, f" ({machine_name(record)})")
        for suite in TITLES
        if (rows := [row for row in record["rows"] if row["suite"] == suite])
    ]


def suite_table(suite: str, rows: list[Row], where: str = "") -> Table:
    """The columns that any row has."""
    if suite == "training":
        return training_table(rows, TITLES[suite] + where)
    shown = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    cells = [[_cell(row.get(key)) for key in shown] for row in rows]
    return Table(suite, TITLES[suite] + where, [COLUMNS[key] for key in shown], cells)


def speed_figure(records: list[Row]) -> Figure:
    """Per machine: the time of a layer and the memory of a 15-layer step on the largest graph."""
    heights = [
        0.5 + 0.21 * max(len(_shown(record, *panel)) for panel in PANELS) for record in records
    ]
    figure = Figure(figsize=(9.0, sum(heights) + 0.4), dpi=150, layout="constrained")
    axes = figure.subplots(len(records), 2, squeeze=False, height_ratios=heights)
    for record, (left, right) in zip(records, axes, strict=True):
        for place, panel, unit in zip((left, right), PANELS, ("ms", "MB"), strict=True):
            _bars(place, _shown(record, *panel), panel[1], unit)
        left.set_title(f"One layer, ms · {machine_name(record)}", loc="left", fontsize=9)
        right.set_title("15-layer training step, peak MB", loc="left", fontsize=9)
    return figure


def _shown(record: Row, suite: str, key: str) -> list[Row]:
    """The rows of the largest graph, by this number."""
    rows = [row for row in record["rows"] if row["suite"] == suite and row.get(key)]
    most = max((row["edges"] for row in rows), default=0)
    return sorted((row for row in rows if row["edges"] == most), key=lambda row: -row[key])


def _bars(axes: Axes, shown: list[Row], key: str, unit: str) -> None:
    colors = [OURS if row["way"].startswith("deepgat") else THEIRS for row in shown]
    bars = axes.barh([row["way"] for row in shown], [row[key] for row in shown], color=colors)
    axes.bar_label(bars, [f"{_cell(float(row[key]))} {unit}" for row in shown], padding=3, size=8)
    axes.margins(x=0.22)
    axes.tick_params(labelsize=8, left=False)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def training_result(row: Row) -> str:
    """One row in words."""
    found = f"{row['pairs']:,} edges: {row['stopped']}"
    if row.get("reached_seconds") is not None:
        found += f" after {row['reached_seconds']:.1f} s and {row['epochs']} epochs"
    elif row.get("accuracy") is not None:
        found += f", {100 * row['accuracy']:.1f}% of {100 * row['target']:.1f}%"
    return found


def training_table(rows: list[Row], title: str) -> Table:
    """A row per size and way, in the order of measurement."""
    cells = []
    for row in rows:
        peak = row.get("peak_megabytes")
        values = row | {"peak_gigabytes": None if peak is None else peak / 1e3}
        cells.append(
            [
                NONE if values.get(key) is None else form.format(values[key])
                for key, (_, form) in TRAINING_COLUMNS.items()
            ]
        )
    return Table("training", title, [name for name, _ in TRAINING_COLUMNS.values()], cells)


def training_figure(records: list[Row]) -> Figure:
    """Seconds to 95% of the reachable accuracy against edges, both logarithmic.

    A panel per machine, a line per way to train. A cross marks the size at which a way ended
    without reaching the accuracy, at the time it had taken by then.
    """
    figure = Figure(figsize=(4.8 * len(records) + 0.6, 4.4), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(records), squeeze=False)[0]
    for axes, record in zip(panels, records, strict=True):
        _draw_training(axes, [row for row in record["rows"] if row["suite"] == "training"])
        axes.set_title(machine_name(record), loc="left", fontsize=10)
    panels[0].set_ylabel("seconds to 95% of the reachable accuracy")
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _draw_training(axes: Axes, rows: list[Row]) -> None:
    house_style(axes)
    for index, way in enumerate(dict.fromkeys(row["way"] for row in rows)):
        mine = sorted((row for row in rows if row["way"] == way), key=lambda row: row["pairs"])
        reached = [row for row in mine if row.get("reached_seconds") is not None]
        color = COLORS[index]
        axes.plot(
            [row["pairs"] for row in reached],
            [row["reached_seconds"] for row in reached],
            color=color, marker=MARKERS[index], linewidth=2, label=way,
        )  # fmt: skip
        for row in mine:
            if row not in reached:
                _mark_end(axes, row, reached, color, index)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("undirected edges")
    axes.margins(x=0.15, y=0.15)


def _mark_end(axes: Axes, row: Row, reached: list[Row], color: str, index: int) -> None:
    """A cross where the way ended: at its last epoch, or level with the size before."""
    if row.get("curve"):
        height = row["curve"][-1][0]
    elif reached:
        height = reached[-1]["reached_seconds"]
    else:
        height = 1.0
    if reached:
        last = reached[-1]
        axes.plot(
            [last["pairs"], row["pairs"]], [last["reached_seconds"], height], ":", color=color
        )
    axes.plot([row["pairs"]], [height], "x", color=color, markersize=10, markeredgewidth=2)
    reason = row["stopped"].partition(",")[0]
    axes.annotate(
        reason, (row["pairs"], height), xytext=(0, -14 - 10 * (index % 2)),
        textcoords="offset points", color=color, fontsize=8, ha="center",
    )  # fmt: skip


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:] if name.endswith(".json")]
    found = [json.loads(path.read_text()) for path in files]
    for each in found:
        for table in speed_tables(each):
            print(table.markdown())
    suites = {row["suite"] for each in found for row in each["rows"]}
    draw = training_figure if suites == {"training"} else speed_figure
    for name in sys.argv[1:]:
        if name.endswith(".png"):
            save_figure(draw(found), Path(name))
