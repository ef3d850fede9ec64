"""The figures of demo, evaluate, inspect and predict, and the style of all figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from deepgat.analysis import Reliability
from deepgat.errors import UserError, printable
from deepgat.files import write_whole

# Okabe and Ito's palette, distinct for any colour vision; markers distinguish lines in grey.
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")


def as_text(name: str) -> str:
    """A name as matplotlib shows it literally, not as mathematics between dollar signs."""
    return printable(name).replace("$", r"\$")


def depth_figure(
    curves: Mapping[str, Mapping[int, float]], title: str, chance: float | None = None
) -> Figure:
    """Micro-F1 against the number of layers, one line per model: {model: {L: share}}."""
    figure, axes = new_axes()
    for index, (name, curve) in enumerate(curves.items()):
        depths = sorted(curve)
        scores = [100 * curve[depth] for depth in depths]
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        axes.plot(depths, scores, color=color, marker=marker, linewidth=2, label=as_text(name))
        axes.annotate(f"{scores[-1]:.1f}", (depths[-1], scores[-1]), xytext=(8, 0),
                      textcoords="offset points", color=color, va="center")  # fmt: skip
    if chance is not None:
        axes.axhline(100 * chance, color="0.6", linewidth=1, linestyle=":", label="chance")
    axes.set_xticks(sorted({depth for curve in curves.values() for depth in curve}))
    axes.set_ylim(0, 102)
    axes.set_xlabel("number of layers L")
    axes.set_ylabel("test micro-F1 (%)")
    axes.set_title(as_text(title), loc="left", fontsize=11)
    axes.margins(x=0.08)
    axes.legend(frameon=False, loc="center left")
    return figure


def reliability_figure(curves: Mapping[str, Reliability], title: str) -> Figure:
    """One line per model; the legend shows the expected calibration error (ECE).

    A calibrated model lies on the diagonal.
    """
    figure, axes = new_axes(5.2, 4.8)
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=":", label="perfect calibration")
    for index, (name, each) in enumerate(curves.items()):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        x, y = each.confidence.tolist(), each.accuracy.tolist()
        label = f"{as_text(name)}: ECE {each.error:.3f}"
        axes.plot(x, y, color=color, linewidth=1, alpha=0.5)
        axes.plot([], [], color=color, marker=marker, linewidth=1, label=label)
        sizes = 12 + 250 * (each.count / each.count.sum()).sqrt()
        axes.scatter(x, y, s=sizes.tolist(), color=color, marker=marker, alpha=0.75, zorder=3)
    axes.set_xlim(0, 1.04)
    axes.set_ylim(-0.02, 1.06)
    axes.set_xlabel("confidence (a marker's area grows with its share of the nodes)")
    axes.set_ylabel("accuracy")
    axes.set_title(as_text(title), loc="left", fontsize=11)
    figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize=9)
    return figure


def confusion_figure(matrix: np.ndarray, classes: Sequence[str], title: str) -> Figure:
    """The confusion matrix [C, C], coloured by the share of each true class; counts up to C = 20.

    Args:
        matrix: rows are true, columns predicted classes.
        classes: names of the C classes.
        title: title of the figure.
    """
    if matrix.ndim != 2:
        raise UserError("the picture of a confusion matrix needs one class per node, not labels")
    count = len(classes)
    side = max(3.6, min(1.6 + 0.42 * count, 24.0))
    figure = Figure(figsize=(side + 1.4, side), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    image = axes.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100)
    figure.colorbar(image, ax=axes, label="% of the true class", shrink=0.8)
    names = [as_text(_short(name)) for name in classes]
    size = 8 if count <= 30 else 5
    turned = 90 if max(map(len, names)) > 3 else 0
    axes.set_xticks(range(count), names, fontsize=size, rotation=turned)
    axes.set_yticks(range(count), names, fontsize=size)
    if count <= 20:
        for row, column in np.ndindex(matrix.shape):
            if matrix[row, column]:
                color = "white" if shares[row, column] > 0.6 else "black"
                axes.text(column, row, str(matrix[row, column]), ha="center", va="center",
                          fontsize=7, color=color)  # fmt: skip
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    right = np.trace(matrix) / max(matrix.sum(), 1)
    axes.set_title(f"{as_text(title)}: {100 * right:.1f}% right", loc="left", fontsize=11)
    return figure


def inspection_figure(
    title: str,
    nodes: Sequence[str],
    classes: Sequence[str],
    predictions: Mapping[int, Sequence[Sequence[float]]],
    attention: Sequence[Sequence[float]],
    layers: Sequence[int],
) -> Figure:
    """Two maps with a row per node and a column per layer: attention, and the predicted class.

    Args:
        title: title of the figure.
        nodes: names of the node and of k − 1 neighbours.
        classes: names of the C classes.
        predictions: {l: [k, C]} probabilities after layer l.
        attention: [L, k], α of layer l in row l − 1.
        layers: the layers to label if there are many.
    """
    depth, count = len(attention), len(nodes)
    best = np.full((count, depth + 1), np.nan)  # NaN: the layer makes no prediction
    for layer, shares in predictions.items():
        best[:, layer] = np.argmax(shares, axis=1)
    used = np.unique(best[~np.isnan(best)]).astype(int)  # colours for these classes alone
    places = np.where(np.isnan(best), np.nan, np.searchsorted(used, best))
    palette = [colormaps["tab20"](place % 20) for place in range(len(used))]
    figure = Figure(figsize=(max(6.4, 3 + 0.2 * depth), 2.6 + 0.44 * count), dpi=150,
                    layout="constrained")  # fmt: skip
    above, below = figure.subplots(2, 1)
    weights = above.imshow(np.transpose(attention), aspect="auto", cmap="Blues", vmin=0,
                           extent=(0.5, depth + 0.5, count - 0.5, -0.5))  # fmt: skip
    figure.colorbar(weights, ax=above, label="attention")
    below.imshow(places, aspect="auto", cmap=ListedColormap(palette), vmin=-0.5,
                 vmax=len(used) - 0.5, interpolation="nearest")  # fmt: skip
    names = [_short(name) for name in nodes]
    names[0] += " (itself)"
    for axes in (above, below):
        axes.set_yticks(range(count), list(map(as_text, names)), fontsize=8)
        if depth > 16:
            axes.set_xticks(list(layers))
    below.set_xlabel("layer")
    handles = [Patch(color=palette[i], label=as_text(classes[c])) for i, c in enumerate(used)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)),
                  frameon=False, fontsize=8, title="class predicted after the layer",
                  title_fontsize=8)  # fmt: skip
    figure.suptitle(as_text(title), fontsize=11, x=0.01, ha="left")
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"


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
    write_whole(path, picture(figure, path.suffix[1:].lower()))
    return path


def picture(figure: Figure, kind: str) -> bytes:
    """The content of a file of this kind ("png", "pdf", "svg").

    In memory, since matplotlib's writers fail in ways of their own where a disk is full.
    """
    drawn = BytesIO()
    figure.savefig(drawn, format=kind)
    return drawn.getvalue()
