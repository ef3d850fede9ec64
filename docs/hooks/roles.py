"""Docstrings name things as Sphinx does, :func:`x`; the site shows the name alone."""

import re

ROLE = re.compile(r":(?:func|class|mod|meth|data|attr):<code>~?(?:[\w.]*\.)?(\w+)</code>")


def on_page_content(html: str, **_: object) -> str:
    return ROLE.sub(r"<code>\1</code>", html)
