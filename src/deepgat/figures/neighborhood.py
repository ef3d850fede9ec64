"""A node and its neighbours: attention and predicted classes in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch


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
        axes.set_yticks(range(count), names, fontsize=8)
        if depth > 16:
            axes.set_xticks(list(layers))
    below.set_xlabel("layer")
    handles = [Patch(color=palette[i], label=classes[c]) for i, c in enumerate(used)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)),
                  frameon=False, fontsize=8, title="class predicted after the layer",
                  title_fontsize=8)  # fmt: skip
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"
