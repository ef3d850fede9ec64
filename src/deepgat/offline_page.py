"""HTML pages that need no network: one file with its style, its scripts and its data.

A page's security policy allows no request, and only its own scripts and style, identified by their
checksums. Text from a graph or a record is data: it is never parsed as markup, and never executed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from deepgat.files import to_json


def offline_page(
    package: str, scripts: Sequence[str], contents: Mapping[str, Any], **more: str
) -> str:
    """The page whose template and style are in the folder ``page`` of a package.

    Args:
        package: name of the package.
        scripts: the text of each script, in order.
        contents: what the scripts show, with a ``title``.
        more: other texts of the template, by name.
    """
    style = read_source(package, "page", "style.css")
    parts = {
        "title": html.escape(contents["title"].encode("utf-8", "replace").decode()),
        "policy": f"default-src 'none'; img-src data:; style-src {_checksum(style)}; "
        f"script-src {' '.join(map(_checksum, scripts))}; base-uri 'none'; form-action 'none'",
        "style": style,
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
        # without <, > and &, which could end the script element that holds the data
        "data": re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", to_json(contents)),
        **{name: html.escape(text) for name, text in more.items()},
    }
    template = read_source(package, "page", "page.html")
    # one pass, so that braces in the inserted text are not replaced
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def read_source(package: str, folder: str, name: str) -> str:
    """A file of a page, from a package."""
    return (files(package) / folder / name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
