"""Makes ``docs/tutorial.ipynb`` from ``docs/tutorial.md``, so that the two never differ.

    python docs/hooks/tutorial_notebook.py

Text stays text. Commands become cells that run in bash, tables with a file's name become cells that
write the file, Python stays Python. The cell that installs packages is tagged ``skip-execution``.
``tests/test_notebook.py`` checks that the notebook is up to date, and runs it.
"""

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "tutorial.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
BLOCK = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SKIPPED = "skip-execution"
"""The tag by which nbclient and others leave a cell out."""


def notebook(page: str) -> dict[str, Any]:
    """The notebook of a page in Markdown, without outputs."""
    cells: list[dict[str, Any]] = []
    end = 0
    for block in BLOCK.finditer(page):
        code = _code(*block.groups())
        if code:
            _add_text(cells, page[end : block.start()])
            end = block.end()
        for source in code:
            tags = {"tags": [SKIPPED]} if source.startswith("%pip") else {}
            cells.append(
                {"cell_type": "code", "execution_count": None, "metadata": tags, "outputs": [],
                 "source": source}
            )  # fmt: skip
    _add_text(cells, page[end:])
    for number, cell in enumerate(cells, start=1):
        cell["id"] = f"cell-{number:02d}"
        cell["source"] = cell["source"].splitlines(keepends=True)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _code(language: str, title: str | None, block: str) -> list[str]:
    """The cells of a block; none for one that stays text."""
    block = block.rstrip("\n")
    if language == "python":
        return [block]
    if title is not None:
        return [f"%%writefile {title}\n{block}"]
    if language != "bash":
        return []
    lines = block.splitlines()
    installed = [line for line in lines if line.startswith("pip ")]
    ran = [line for line in lines if line not in installed]
    # The notebook lies in docs/. A cell that starts a service must go on to stop it.
    shell = "%%bash" if any(line.endswith(" &") for line in ran) else "%%bash -e"
    commands = "\n".join(ran).replace("python examples/", "python ../examples/")
    return [f"%{line}" for line in installed] + ([f"{shell}\n{commands}"] if ran else [])


def _add_text(cells: list[dict[str, Any]], text: str) -> None:
    paragraphs = [each for each in text.split("\n\n") if f"({NOTEBOOK.name})" not in each]
    text = "\n\n".join(paragraphs).strip()
    if text:
        cells.append({"cell_type": "markdown", "metadata": {}, "source": text})


def as_text(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(as_text(notebook(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
