"""The HTML of a model's page; see :mod:`deepgat.offline_page`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deepgat.data import NodeDataset
from deepgat.offline_page import offline_page, read_source
from deepgat.view.contents import TrainedModel, page_contents

PACKAGE = "deepgat.view"
LIBRARIES = (
    "graphology.umd.min.js",
    "sigma.min.js",
    "d3-dispatch.min.js",
    "d3-quadtree.min.js",
    "d3-timer.min.js",
    "d3-force.min.js",
)
SCRIPTS = ("elements.js", "core.js", "search.js", "map.js", "neighborhood.js", "node.js",
           "charts.js", "main.js")  # fmt: skip
"""Each uses those before it. The page of a report uses the first one, too."""


def page(
    model: TrainedModel,
    data: NodeDataset | None = None,
    *,
    layout: str = "auto",
    on_step: Callable[[str, float], None] | None = None,
) -> str:
    """The page of a model: HTML text that needs no network and no other file.

    Args:
        model: a :class:`deepgat.Model`.
        data: the graph to show, as ``model.data_for`` reads it; left out: the training graph.
        layout: of the map: "tsne", "pca", or "auto", t-SNE for graphs of up to 5,000 nodes.
        on_step: called with what is being done and the share that is done.
    """
    return html_of(page_contents(model, data, layout, on_step))


def html_of(contents: dict[str, Any]) -> str:
    """The page that shows these contents."""
    scripts = [read_source(PACKAGE, "vendor", name) for name in LIBRARIES]
    scripts.append("\n".join(read_source(PACKAGE, "page", name) for name in SCRIPTS))
    licences = read_source(PACKAGE, "vendor", "LICENSES.txt")
    return offline_page(PACKAGE, scripts, contents, licences=licences)
