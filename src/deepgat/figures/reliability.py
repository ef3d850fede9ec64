"""Reliability diagram: accuracy against confidence."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from deepgat.analysis import Reliability
from deepgat.figures.style import COLORS, MARKERS, new_axes


def reliability_figure(curves: Mapping[str, Reliability], title: str) -> Figure:
    """One line per model; the legend shows the expected calibration error (ECE).

    A calibrated model lies on the diagonal.
    """
    figure, axes = new_axes(5.2, 4.8)
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=":", label="perfect calibration")
    for index, (name, each) in enumerate(curves.items()):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        x, y = each.confidence.tolist(), each.accuracy.tolist()
        label = f"{name}: ECE {each.error:.3f}"
        axes.plot(x, y, color=color, linewidth=1, alpha=0.5)
        axes.plot([], [], color=color, marker=marker, linewidth=1, label=label)
        sizes = 12 + 250 * (each.count / each.count.sum()).sqrt()
        axes.scatter(x, y, s=sizes.tolist(), color=color, marker=marker, alpha=0.75, zorder=3)
    axes.set_xlim(0, 1.04)
    axes.set_ylim(-0.02, 1.06)
    axes.set_xlabel("confidence (a marker's area grows with its share of the nodes)")
    axes.set_ylabel("accuracy")
    axes.set_title(title, loc="left", fontsize=11)
    figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize=9)
    return figure
