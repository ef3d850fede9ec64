"""Table and figure of the rows of ``deepgat bench training``.

``python -m deepgat.lab.report.large_training FILE.json … FIGURE.png`` draws the figure, a panel per
file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepgat.errors import UserError
from deepgat.figures import COLORS, MARKERS, house_style, save_figure
from deepgat.lab.report.table import NONE, Table

Row = dict[str, Any]
COLUMNS = (
    "undirected edges", "nodes", "way", "s to 95%", "epochs", "s an epoch", "s to prepare",
    "peak GB", "accuracy", "reachable", "ended",
)  # fmt: skip


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
    cells = [
        [
            f"{row['pairs']:,}",
            _cell(row.get("nodes"), "{:,}"),
            row["way"],
            _cell(row.get("reached_seconds"), "{:,.1f}"),
            _cell(row.get("epochs"), "{:,}"),
            _cell(row.get("seconds_per_epoch"), "{:,.2f}"),
            _cell(row.get("prepare_seconds"), "{:,.1f}"),
            _cell(row.get("peak_megabytes"), "{:,.2f}", 1e-3),
            _cell(row.get("accuracy"), "{:.1f}%", 100),
            _cell(row.get("reachable"), "{:.1f}%", 100),
            row["stopped"],
        ]
        for row in rows
    ]
    return Table("training", title, list(COLUMNS), cells)


def training_figure(records: list[Row], names: list[str]) -> Figure:
    """Seconds to 95% of the reachable accuracy against edges, both logarithmic.

    A panel per machine and a line per way. A cross marks the size at which a way ended without
    reaching the accuracy, at the time it had taken by then.
    """
    figure = Figure(figsize=(4.8 * len(records) + 0.6, 4.4), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(records), squeeze=False)[0]
    for axes, record, name in zip(panels, records, names, strict=True):
        rows = [row for row in record["rows"] if row["suite"] == "training"]
        if not rows:
            raise UserError(
                f"the rows of {name} have no suite training: measure it with deepgat bench training"
            )
        _panel(axes, rows)
        axes.set_title(name, loc="left", fontsize=10)
    panels[0].set_ylabel("seconds to 95% of the reachable accuracy")
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, rows: list[Row]) -> None:
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


def _cell(value: float | None, form: str, factor: float = 1) -> str:
    return NONE if value is None else form.format(value if factor == 1 else factor * value)


if __name__ == "__main__":
    from deepgat.lab.report.speed import machine_name

    found = [json.loads(Path(name).read_text()) for name in sys.argv[1:-1]]
    titles = [machine_name(record) for record in found]
    save_figure(training_figure(found, titles), Path(sys.argv[-1]))
