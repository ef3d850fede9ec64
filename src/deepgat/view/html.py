"""The HTML of a model's page: one file with its style, its scripts, its libraries and its data.

The page's security policy allows only these scripts and this style, identified by their
checksums, and no request. Names from a graph are data: they are never parsed as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from deepgat.data import NodeDataset
from deepgat.files import to_json
from deepgat.view.contents import TrainedModel, page_contents

LIBRARIES = (
    "graphology.umd.min.js",
    "sigma.min.js",
    "d3-dispatch.min.js",
    "d3-quadtree.min.js",
    "d3-timer.min.js",
    "d3-force.min.js",
)
SCRIPTS = ("core.js", "search.js", "map.js", "neighborhood.js", "node.js", "charts.js", "main.js")
"""Each uses those before it."""


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
    style = _source("page", "style.css")
    scripts = [_source("vendor", name) for name in LIBRARIES]
    scripts.append("\n".join(_source("page", name) for name in SCRIPTS))
    parts = {
        "title": html.escape(contents["title"].encode("utf-8", "replace").decode()),
        "policy": f"default-src 'none'; img-src data:; style-src {_checksum(style)}; "
        f"script-src {' '.join(map(_checksum, scripts))}; base-uri 'none'; form-action 'none'",
        "style": style,
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
        "licences": html.escape(_source("vendor", "LICENSES.txt")),
        # without <, > and &, which could end the script element that holds the data
        "data": re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", to_json(contents)),
    }
    # one pass, so that braces in the inserted text are not replaced
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page", "page.html"))


def _source(folder: str, name: str) -> str:
    return (files("deepgat.view") / folder / name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
