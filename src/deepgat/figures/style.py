"""The common style of all figures, and the depth figure of the demo."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, distinct for any colour vision; markers distinguish lines in grey.
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")


def depth_figure(
    curves: Mapping[str, Mapping[int, float]], title: str, chance: float | None = None
) -> Figure:
    """Micro-F1 against the number of layers, one line per model: {model: {L: share}}."""
    figure, axes = new_axes()
    for index, (name, curve) in enumerate(curves.items()):
        depths = sorted(curve)
        scores = [100 * curve[depth] for depth in depths]
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        axes.plot(depths, scores, color=color, marker=marker, linewidth=2, label=name)
        axes.annotate(
            f"{scores[-1]:.1f}",
            (depths[-1], scores[-1]),
            xytext=(8, 0),
            textcoords="offset points",
            color=color,
            va="center",
            # hides the chance line, which a collapsed network reaches
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    if chance is not None:
        axes.axhline(100 * chance, color="0.6", linewidth=1, linestyle=":", label="chance")
    axes.set_xticks(sorted({depth for curve in curves.values() for depth in curve}))
    axes.set_ylim(0, 102)
    axes.set_xlabel("number of layers L")
    axes.set_ylabel("test micro-F1 (%)")
    axes.set_title(title, loc="left", fontsize=11)
    axes.margins(x=0.08)
    axes.legend(frameon=False, loc="center left")
    return figure


def legend_below(figure: Figure) -> None:
    """One legend for all axes, below them; none if nothing is labelled."""
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        columns = min(3 if len(figure.axes) == 1 else 6, len(handles))
        figure.legend(list(handles.values()), list(handles), loc="outside lower center",
                      ncols=columns, frameon=False, fontsize=9)  # fmt: skip


def new_axes(width: float = 6.4, height: float = 4.0) -> tuple[Figure, Axes]:
    """An empty figure in the house style."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    house_style(axes)
    return figure, axes


def house_style(axes: Axes) -> None:
    """No top and right spines, and faint horizontal grid lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure atomically; the suffix of the path sets the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as work:
        finished = Path(work) / path.name
        figure.savefig(finished)
        os.replace(finished, path)
    return path
