"""Tables and figures that compare systems: with their publications, and at several depths."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepgat.figures.style import COLORS, MARKERS, house_style, legend_below, new_axes
from deepgat.lab.report.scores import (
    Curve,
    Record,
    curves,
    depth_of,
    paired,
    score_on,
    score_on_test,
    signatures,
    signed,
)
from deepgat.lab.report.table import Sourced, Table

NONE, LOST = "–", "diverged"
PARTS = {"test": "Test", "val": "Validation"}
OWN = "DeepGAT"
"""Prefix of our own systems, whose lines are drawn thicker and on top."""
MANY_TICKS = 7
"""Tick labels are small if there are more depths than this."""

_HOW = (
    "Mean ± half-width of the 95% interval, over splits where there are several, else over seeds. "
    "One setting per system for all depths and datasets (G²: one more for each heterophilous "
    "graph; GCNII, as published: its authors' for each); the candidate, where it has several, and "
    f"the epoch are chosen on the validation nodes of every repetition. {NONE}: no run; {LOST}: "
    "none that ended with finite numbers; (2/3): two that did where another system has three."
)


class Printed(NamedTuple):
    """A setting, its runs, and the score its authors published (%)."""

    name: str
    score: float
    spread: float | None
    source: str
    records: Sequence[Record]


def publication_table(rows: Sequence[Printed]) -> Table:
    """Our mean ± standard deviation beside the published one."""
    cells = []
    for row in rows:
        scores = [100 * record["micro_f1"]["test"] for record in row.records]
        printed = f"{row.score:.1f}" + ("" if row.spread is None else f" ± {row.spread:.1f}")
        if not scores:
            cells.append([row.name, NONE, NONE, "0", NONE, printed, NONE, row.source])
            continue
        mean = fmean(scores)
        spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
        first = row.records[0]
        cells.append(
            [
                row.name,
                first["dataset"],
                str(depth_of(first)),
                str(len(scores)),
                Sourced(f"{mean:.1f}{spread}", signatures(row.records)),
                printed,
                signed(mean - row.score),
                row.source,
            ]
        )
    return Table(
        "publications",
        "Systems beside their publications: test micro-F1 (%)",
        ["setting", "dataset", "L", "runs", "ours", "published", "diff.", "source"],
        cells,
        ["Mean ± standard deviation over runs; the epoch is chosen on validation nodes."],
    )


def peer_curves(labelled: Mapping[str, Sequence[Record]]) -> dict[str, dict[str, Curve]]:
    """Dataset → system → curve of the best candidates on validation nodes."""
    found: dict[str, dict[str, Curve]] = {}
    for label, records in labelled.items():
        for (dataset, _, _), curve in curves(records).items():
            found.setdefault(dataset, {})[label] = curve
    return found


Lost = Mapping[str, Collection[tuple[str, int]]]
"""System → pairs of dataset and depth at which all its runs diverged."""
NOTHING_LOST: Lost = {}


def system_tables(
    labelled: Mapping[str, Sequence[Record]],
    target: str,
    part: str = "test",
    lost: Lost = NOTHING_LOST,
) -> list[Table]:
    """A table per dataset: systems by depth, scored on the test or validation nodes."""
    tables = []
    for dataset, systems in _tried(labelled, lost).items():
        depths = sorted({depth for curve in systems.values() for depth in curve})
        most = {d: max(len(curve.get(d, ())) for curve in systems.values()) for d in depths}
        rows = [
            [label, *(_cell(part, curve.get(depth), most[depth]) for depth in depths)]
            for label, curve in systems.items()
        ]
        tables.append(
            Table(
                f"{target}-{dataset}" if part == "test" else f"{target}-{dataset}-{part}",
                f"{PARTS[part]} micro-F1 (%) by depth, {dataset}",
                ["system", *(f"L = {depth}" for depth in depths)],
                rows,
                [_HOW],
            )
        )
    return tables


def _tried(
    labelled: Mapping[str, Sequence[Record]], lost: Lost
) -> dict[str, dict[str, Mapping[int, Sequence[Record]]]]:
    """Like :func:`peer_curves`, with empty lists where all runs diverged."""
    found = peer_curves(labelled)
    for label, places in lost.items():
        for dataset, depth in places:
            found.setdefault(dataset, {}).setdefault(label, {})[depth] = []
    return {
        dataset: {label: systems[label] for label in labelled if label in systems}
        for dataset, systems in found.items()
    }


def _cell(part: str, records: Sequence[Record] | None, most: int) -> str:
    """A score, with the number of repetitions if other systems have more."""
    if not records:
        return NONE if records is None else LOST
    score = score_on(part, records)
    share = f" ({len(records)}/{most})" if len(records) < most else ""
    return Sourced(f"{score}{share}", score.runs)


def overview_tables(
    labelled: Mapping[str, Sequence[Record]],
    target: str,
    part: str = "test",
    lost: Lost = NOTHING_LOST,
) -> list[Table]:
    """A table per depth: systems by dataset, and their mean; none for a single dataset."""
    found = _tried(labelled, lost)
    if len(found) < 2:
        return []
    depths = sorted({d for systems in found.values() for curve in systems.values() for d in curve})
    tables = []
    for depth in depths:
        there = [{label: c.get(depth) for label, c in found[name].items()} for name in found]
        most = [max(len(group or ()) for group in systems.values()) for systems in there]
        rows = []
        for label in labelled:
            groups = [systems.get(label) for systems in there]
            if all(group is None for group in groups):
                continue
            means = [score_on(part, group).mean for group in groups if group]
            mean = f"{fmean(means):.1f}" if all(groups) else NONE
            cells = [_cell(part, group, n) for group, n in zip(groups, most, strict=True)]
            rows.append([label, *cells, mean])
        tables.append(
            Table(
                f"{target}-{depth}" if part == "test" else f"{target}-{depth}-{part}",
                f"{PARTS[part]} micro-F1 (%) at L = {depth}",
                ["system", *found, "mean"],
                rows,
                [_HOW],
            )
        )
    return tables


def pair_tables(labelled: Mapping[str, Sequence[Record]], target: str, base: str) -> list[Table]:
    """A table per dataset: paired differences of each system to ``base``."""
    tables = []
    for dataset, systems in peer_curves(labelled).items():
        if base not in systems:
            continue
        depths = sorted(systems[base])
        rows = []
        for label, curve in systems.items():
            if label == base:
                continue
            cells: list[str] = []
            for depth in depths:
                pair = paired(curve.get(depth, []), systems[base][depth])
                cells.append(NONE if pair is None else str(pair))
            rows.append([label, *cells])
        if not rows:  # only the base
            continue
        tables.append(
            Table(
                f"{target}-{dataset}-pairs",
                f"Points of test micro-F1 above {base}, {dataset}",
                ["system", *(f"L = {depth}" for depth in depths)],
                rows,
                [
                    "Mean difference on the same splits and seeds; in brackets p of the paired "
                    "t-test over splits where there are several, else over seeds."
                ],
            )
        )
    return tables


def system_figures(labelled: Mapping[str, Sequence[Record]], target: str) -> dict[str, Figure]:
    """A figure per dataset: score against depth, with labels at the ends of the lines.

    Datasets with a single depth have none.
    """
    figures = {}
    for dataset, systems in peer_curves(labelled).items():
        if len({depth for curve in systems.values() for depth in curve}) < 2:
            continue
        figure, axes = new_axes(8.4, 5.0)
        ends = _draw_lines(axes, systems, list(labelled))
        axes.set_title(f"Systems against depth, {dataset}", loc="left", fontsize=11)
        axes.set_ylabel("test micro-F1 (%)")
        low, high = axes.get_ylim()
        places = spread_out([y for _, y, _ in ends.values()], (high - low) / 22, low, high)
        for (label, (x, y, color)), place in zip(ends.items(), places, strict=True):
            axes.annotate(
                label,
                (x, y),
                xytext=(1.02, place),
                textcoords=("axes fraction", "data"),
                color=color,
                fontsize=8,
                va="center",
                arrowprops={
                    "arrowstyle": "-",
                    "color": color,
                    "linewidth": 0.6,
                    "linestyle": ":",
                    "relpos": (0, 0.5),
                },
                annotation_clip=False,
            )
        figures[f"{target}-{dataset}"] = figure
    return figures


def overview_figure(labelled: Mapping[str, Sequence[Record]], target: str) -> dict[str, Figure]:
    """The datasets with several depths, side by side; none if there is only one.

    Our own systems have 95% intervals.
    """
    found = {
        dataset: systems
        for dataset, systems in peer_curves(labelled).items()
        if len({depth for curve in systems.values() for depth in curve}) > 1
    }
    if len(found) < 2:
        return {}
    figure = Figure(figsize=(2.6 * len(found), 3.2), dpi=150, layout="constrained")
    for place, (dataset, systems) in enumerate(found.items(), 1):
        axes = figure.add_subplot(1, len(found), place)
        house_style(axes)
        _draw_lines(axes, systems, list(labelled), intervals=True)
        axes.set_title(dataset, loc="left", fontsize=11)
        if place == 1:
            axes.set_ylabel("test micro-F1 (%)")
    legend_below(figure)
    return {f"{target}-datasets": figure}


def _draw_lines(
    axes: Axes, systems: Mapping[str, Curve], order: Sequence[str], intervals: bool = False
) -> dict[str, tuple[int, float, str]]:
    """Draw a line per system, ours thicker and on top, optionally with their intervals.

    The index in ``order`` determines colour and marker, so that a system looks the same on every
    dataset. A line has a gap where there is no run. Returns the end and colour of each line.
    """
    ends = {}
    ticks = sorted({depth for curve in systems.values() for depth in curve})
    for label, curve in systems.items():
        index = order.index(label)
        depths = sorted(curve)
        means, bars, *_ = zip(*(score_on_test(curve[depth]) for depth in depths), strict=True)
        color, own = COLORS[index % len(COLORS)], label.startswith(OWN)
        ends[label] = (depths[-1], means[-1], color)
        known = dict(zip(depths, means, strict=True))
        axes.plot(
            ticks,
            [known.get(depth, math.nan) for depth in ticks],
            color=color,
            marker=MARKERS[(index + index // len(COLORS)) % len(MARKERS)],
            markersize=5,
            linewidth=2.6 if own else 1.2,
            zorder=3 if own else 2,
            label=label,
        )
        if intervals and own:
            axes.errorbar(depths, means, bars, color=color, fmt="none", linewidth=1, capsize=2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(depth) for depth in ticks])
    if len(ticks) > MANY_TICKS:  # they would overlap
        axes.tick_params(axis="x", labelsize="x-small")
    axes.minorticks_off()
    axes.set_xlabel("number of layers L")
    return ends


def spread_out(
    values: Sequence[float], gap: float, low: float = -math.inf, high: float = math.inf
) -> list[float]:
    """Positions near the values, in the same order, at least ``gap`` apart, within the limits."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    places = [0.0] * len(values)
    before = low - gap
    for i in order:
        before = places[i] = max(values[i], before + gap)
    after = high + gap
    for i in reversed(order):
        after = places[i] = min(places[i], after - gap)
    return places
