"""One HTML page that needs nothing else: style, script and data are in it.

The sources are in ``page/``. The page may run its own script only, known by its checksum, and may
load nothing from anywhere: whatever a run is called, it stays text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from deepgat.model_folder import to_json

SCRIPTS = ("core.js", "charts.js", "tables.js", "main.js")
"""In the order in which they use each other."""


def html_page(title: str, data: Mapping[str, Any]) -> str:
    """The page that shows ``data`` (see :mod:`deepgat.lab.report.contents`)."""
    style = _source("style.css")
    script = "\n".join(_source(name) for name in SCRIPTS)
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; img-src data:; style-src {_checksum(style)}; "
        f"script-src {_checksum(script)}; base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "data": _inside_script(to_json(data)),
    }
    # in one pass, so that nothing inserted is taken for a place of its own
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page.html"))


def _source(name: str) -> str:
    return (files("deepgat.lab.report") / "page" / name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _inside_script(text: str) -> str:
    """JSON that cannot end its element: every < is written as an escape, which JSON allows."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
