"""Tables and figures of the ladder: accuracy against the share of right classes in attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepgat.figures import COLORS, MARKERS, as_text
from deepgat.lab.paper.ladder import DEEP, MEASURE, NO_ATTENTION, RUNGS
from deepgat.lab.report.charts import IN_ONE_ROW, panel_grid, shared_legend
from deepgat.lab.report.scores import (
    Record,
    depths_of,
    f1_on_test,
    mean_and_deviation,
    signatures,
)
from deepgat.lab.report.systems_by_depth import LOST, Labelled, Lost, labelled_curves
from deepgat.lab.report.table import NONE, Sourced, Table
from deepgat.models.registry import find_system

BELOW, ABOVE = "below the ladder", "above the ladder"
EQUAL = "p of equal accuracy"
OUTPUT = "output"
GIVEN = "given classes, a share p of them right"
OWN = "accuracy of its own q, one mark per layer l"

Runs = Mapping[str, Mapping[str, Sequence[Record]]]
"""Dataset → row → runs at one depth; no runs where all diverged."""


def ladder_tables(labelled: Labelled, lost: Lost) -> list[Table]:
    """For every depth: scores by row and dataset, and the predictions q beside them."""
    tables = []
    for depth, runs in _by_depth(labelled, lost).items():
        tables.append(_scores(depth, runs, list(labelled)))
        if any(runs[dataset].get(DEEP) for dataset in runs):
            tables.append(_predictions(depth, runs))
    return tables


def ladder_figures(labelled: Labelled) -> dict[str, Figure]:
    """For every depth: a panel per dataset whose runs make a line."""
    figures = {}
    for depth, runs in _by_depth(labelled, {}).items():
        drawn = {dataset: rows for dataset, rows in runs.items() if len(_line(rows)) > 1}
        if drawn:
            figures[f"ladder-{depth}"] = _figure(drawn, depth)
    return figures


def share_of_equal_accuracy(line: Mapping[float, float], score: float) -> float | str:
    """The smallest p at which a line through {p: score} has ``score``; in words if there is none.

    ``line`` is in ascending order of p and linear between its points.
    """
    points = list(line.items())
    if score == points[0][1]:
        return points[0][0]
    for (left, low), (right, high) in pairwise(points):
        if min(low, high) <= score <= max(low, high):
            return right if low == high else left + (right - left) * (score - low) / (high - low)
    return BELOW if score < min(line.values()) else ABOVE


def _by_depth(labelled: Labelled, lost: Lost) -> dict[int, Runs]:
    found = labelled_curves(labelled, lost)
    depths = depths_of(curve for rows in found.values() for curve in rows.values())
    return {
        depth: {
            dataset: {label: curve[depth] for label, curve in rows.items() if depth in curve}
            for dataset, rows in found.items()
        }
        for depth in depths
    }


def _line(rows: Mapping[str, Sequence[Record]]) -> dict[float, float]:
    """p → mean test score, in ascending order of p."""
    return {p: fmean(map(f1_on_test, rows[label])) for label, p in RUNGS.items() if rows.get(label)}


def _scores(depth: int, runs: Runs, labels: Sequence[str]) -> Table:
    rows = []
    for label in labels:
        rows.append([label, *(_score(of_dataset, label) for of_dataset in runs.values())])
    return Table(
        f"ladder-{depth}",
        f"Test micro-F1 (%) by the classes that attention compares, L = {depth}",
        ["attention", *runs],
        rows,
        [
            "Mean ± standard deviation over runs; the epoch is chosen on validation nodes. Rows p: "
            "attention compares given classes. The class of a share p of the nodes, test nodes "
            "included, is the true one; that of the others is drawn from the wrong ones. "
            f"{NONE}: no run; {LOST}: none that ended with finite numbers; (2/3): two that did "
            "where another row has three."
        ],
    )


def _score(rows: Mapping[str, Sequence[Record]], label: str) -> str:
    runs = rows.get(label)
    if not runs:
        return NONE if runs is None else LOST
    scores = [f1_on_test(record) for record in runs]
    most = max(map(len, rows.values()))
    fewer = f" ({len(scores)}/{most})" if len(scores) < most else ""
    return Sourced(mean_and_deviation(scores) + fewer, signatures(runs))


def _predictions(depth: int, runs: Runs) -> Table:
    shares = {dataset: _right_by_layer(rows.get(DEEP) or ()) for dataset, rows in runs.items()}
    layers = sorted({layer for found in shares.values() for layer in found})
    rows = []
    for layer in layers:
        name = OUTPUT if layer == depth else f"q, layer {layer + 1}"
        cells = [f"{found[layer]:.1f}" if layer in found else NONE for found in shares.values()]
        rows.append([name, *cells])
    rows.append([EQUAL, *(_equal(found) for found in runs.values())])
    return Table(
        f"ladder-{depth}-layers",
        f"Nodes outside the training set (%) whose class the network's own q names, L = {depth}",
        ["prediction", *runs],
        rows,
        [
            "Means over the runs of deep, for the layers that attend by class. q, layer l: the "
            f"prediction from h^(l-1), by which layer l attends. {EQUAL}: where the line through "
            "the mean scores of the ladder has the mean score of deep, the smallest p if there are "
            f"several; {BELOW}: deep scores less than any p on it."
        ],
    )


def _right_by_layer(runs: Sequence[Record]) -> dict[int, float]:
    """l → mean share in % of right classes in q^l, for layers l + 1 that attend, and the output."""
    found: dict[int, list[float]] = {}
    for record in runs:
        config = find_system(record["system"]).config.with_changes(record["settings"])
        depth = record["settings"]["num_layers"]
        for layer, share in (record["measures"].get(MEASURE) or {}).items():
            if int(layer) == depth or config.attends(int(layer) + 1):  # type: ignore[attr-defined]
                found.setdefault(int(layer), []).append(100 * share)
    return {layer: fmean(shares) for layer, shares in sorted(found.items())}


def _equal(rows: Mapping[str, Sequence[Record]]) -> str:
    line, deep = _line(rows), rows.get(DEEP)
    if not deep or len(line) < 2:
        return NONE
    found = share_of_equal_accuracy(line, fmean(map(f1_on_test, deep)))
    return found if isinstance(found, str) else f"{100 * found:.1f}"


def _figure(runs: Runs, depth: int) -> Figure:
    figure, panels = panel_grid(len(runs), 0.8)
    font = 10 if len(runs) == 1 else 8
    for axes, (dataset, rows) in zip(panels, runs.items(), strict=True):
        _draw(axes, rows, depth)
        axes.set_title(as_text(f"{dataset}, L = {depth}"), loc="left", fontsize=font)
        axes.set_xlabel("right classes in the attention (%)", fontsize=font)
        axes.set_ylabel("test micro-F1 (%)", fontsize=font)
    shared_legend(figure, 2 if len(runs) < IN_ONE_ROW else 4, (GIVEN, DEEP, OWN, NO_ATTENTION))
    return figure


def _draw(axes: Axes, rows: Mapping[str, Sequence[Record]], depth: int) -> None:
    line = _line(rows)
    shares = [100 * p for p in line]
    spread = [
        stdev(scores) if len(scores) > 1 else 0.0
        for label in RUNGS
        if (scores := [f1_on_test(record) for record in rows.get(label, ())])
    ]
    axes.errorbar(shares, list(line.values()), spread, color=COLORS[0], marker=MARKERS[0],
                  linewidth=1.8, markersize=5, elinewidth=1, capsize=2,
                  label=GIVEN)  # fmt: skip
    for place, label in enumerate((DEEP, NO_ATTENTION), start=1):
        if runs := rows.get(label):
            score = fmean(map(f1_on_test, runs))
            dash = "-" if label == DEEP else "--"
            axes.axhline(score, color=COLORS[place], linewidth=1.5, linestyle=dash, label=label)
    found = _right_by_layer(rows.get(DEEP) or ())
    own = {layer: share for layer, share in found.items() if layer != depth}
    if own:
        score = fmean(map(f1_on_test, rows[DEEP]))
        axes.plot(list(own.values()), [score] * len(own), color=COLORS[1], linestyle="", marker="|",
                  markersize=11, markeredgewidth=1.2, label=OWN)  # fmt: skip
        layers, middle = (min(own) + 1, max(own) + 1), fmean((min(own.values()), max(own.values())))
        axes.annotate("l = {} … {}".format(*layers), (middle, score), xytext=(0, 8), ha="center",
                      textcoords="offset points", color=COLORS[1], fontsize=7)  # fmt: skip
