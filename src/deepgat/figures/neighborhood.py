"""A node and its neighbours: predicted classes and attention in every layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from deepgat.figures.style import COLORS

STARS = 4
"""Maximum number of layers drawn as stars; the heat map shows all layers."""
UNITS_PER_INCH, UNITS_PER_LETTER = 1.3, 0.13
"""Scale of a star, whose rays have length 1, and the width of a letter in its units."""
NEUTRAL = "0.75"


def inspection_figure(
    title: str,
    nodes: Sequence[str],
    classes: Sequence[str],
    predictions: Mapping[int, Sequence[Sequence[float]]],
    attention: Sequence[Sequence[float]],
    layers: Sequence[int],
) -> Figure:
    """Stars of some layers, above a heat map of the attention in all layers.

    Args:
        title: title of the figure.
        nodes: names of the node and of k − 1 neighbours.
        classes: names of the C classes.
        predictions: {l: [k, C]} probabilities after layer l.
        attention: [L, k], α of layer l in row l − 1.
        layers: the most interesting layers; up to four of them are drawn as stars.
    """
    chosen = _few(layers)
    depth, count = len(attention), len(nodes)
    reach = _reach(nodes)
    width = max(6.4, 2 * reach / UNITS_PER_INCH * len(chosen))
    figure = Figure(figsize=(width, 4.4 + 0.24 * count), dpi=150, layout="constrained")
    grid = figure.add_gridspec(2, len(chosen), height_ratios=[2.6, 0.7 + 0.24 * count])
    used: set[int] = set()
    for place, layer in enumerate(chosen):
        axes = figure.add_subplot(grid[0, place])
        shares = predictions.get(layer - 1)  # layer l attends by these
        used |= _star(axes, nodes, shares, attention[layer - 1])
        axes.set_xlim(-reach, reach)
        axes.set_title(f"layer {layer}", fontsize=10)
    below = figure.add_subplot(grid[1, :])
    by_node = list(zip(*attention, strict=True))
    image = below.imshow(by_node, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    ticks = range(depth) if depth <= 16 else [layer - 1 for layer in layers]
    below.set_xticks(list(ticks), [str(tick + 1) for tick in ticks])
    last = predictions[max(predictions)]
    names = [f"{name}  [{classes[_best(share)]}]" for name, share in zip(nodes, last, strict=True)]
    names[0] += "  (itself)"
    below.set_yticks(range(count), names, fontsize=8)
    below.set_xlabel("layer; brackets show the final class")
    figure.colorbar(image, ax=below, label="attention", shrink=0.9)
    figure.suptitle(f"{title}: {_story(predictions, classes)}", fontsize=11, x=0.01, ha="left")
    if used:
        handles = [
            Line2D([], [], linestyle="", marker="o", ms=8, color=_color(c), label=classes[c])
            for c in sorted(used)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)),
                      frameon=False, fontsize=8,
                      title="class predicted by the previous layer", title_fontsize=8)  # fmt: skip
    return figure


def _star(
    axes: Axes,
    nodes: Sequence[str],
    shares: Sequence[Sequence[float]] | None,
    weights: Sequence[float],
) -> set[int]:
    """The node in the centre and its neighbours around it; line width shows attention."""
    around = len(nodes) - 1
    strongest = max([*weights, 1e-9])
    used = set()
    for place, name in enumerate(nodes):
        angle = math.pi / 2 - 2 * math.pi * (place - 1) / max(around, 1)
        x, y = (0.0, 0.0) if place == 0 else (math.cos(angle), math.sin(angle))
        color = NEUTRAL
        if shares is not None:
            best = _best(shares[place])
            used.add(best)
            color = _color(best)
        if place:
            width = 0.3 + 5.7 * weights[place] / strongest
            axes.plot([0, x], [0, y], color="0.45", linewidth=width, zorder=1)
            side = "center" if abs(x) < 0.3 else "left" if x > 0 else "right"
            beside = (1.14 * x, 1.26 * y)
            axes.annotate(_short(name), beside, fontsize=7, ha=side, va="center")
        axes.plot(x, y, linestyle="", marker="o", markersize=15 if place == 0 else 9, color=color,
                  markeredgecolor="0.2" if place == 0 else color, zorder=2)  # fmt: skip
    axes.annotate(f"itself {100 * weights[0]:.0f}%", (0, -1.62), fontsize=8, ha="center")
    axes.set_ylim(-1.75, 1.5)
    axes.set_aspect("equal")
    axes.axis("off")
    return used


def _story(predictions: Mapping[int, Sequence[Sequence[float]]], classes: Sequence[str]) -> str:
    """ "A after layer 0, B from layer 3 on"."""
    told: list[str] = []
    before = None
    for layer in sorted(predictions):
        best = _best(predictions[layer][0])
        if best != before:
            told.append(f"{classes[best]} from layer {layer} on")
            before = best
    return "class " + ", ".join(told[-4:])


def _few(layers: Sequence[int]) -> list[int]:
    if len(layers) <= STARS:
        return list(layers)
    step = (len(layers) - 1) / (STARS - 1)
    return [layers[round(index * step)] for index in range(STARS)]


def _best(shares: Sequence[float]) -> int:
    return max(range(len(shares)), key=lambda c: shares[c])


def _color(c: int) -> str:
    """Colours repeat after the palette; the heat map names every class."""
    return COLORS[c % len(COLORS)]


def _reach(nodes: Sequence[str]) -> float:
    """Half the width of a star with its longest name."""
    return 1.3 + UNITS_PER_LETTER * max(len(_short(name)) for name in nodes)


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"
