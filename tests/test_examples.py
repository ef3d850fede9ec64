"""The example scripts, and every example that users copy from the documentation, must run."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from deepgat.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IN_PYTHON = [
    (page.stem, number, code)
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
NEW_USER = {"README": "## Your own graph", "index": "## Five minutes"}
"""Where pages tell a new user's path, from a graph to one of its nodes."""


@pytest.mark.slow
def test_grid_search(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grid_search.py", "--epochs", "3"])
    runpy.run_path(str(ROOT / "examples" / "grid_search.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert out.count("%") == 5
    assert "best: {'lr': " in out
    assert out.count("'num_layers': ") == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number", "code"), [row for row in IN_PYTHON if row[0] != "export"]
)
def test_python_in_the_documentation_runs(page, number, code, my_graph):
    """Those of export.md run in tests/export/test_export.py, with what they write."""
    exec(compile(code, f"{page}.md, example {number}", "exec"), {})


def test_there_are_examples():
    assert {page for page, _, _ in IN_PYTHON} >= {"README", "index", "own-graph", "predict"}


@pytest.mark.parametrize("page", ["README", pytest.param("index", marks=pytest.mark.slow)])
def test_a_new_users_path(page, my_graph, monkeypatch, capsys):
    """Every command as the page prints it; only the training is made short."""
    text = next(path for path in PAGES if path.stem == page).read_text()
    block = re.search(r"```\w+\n(.*?)```", text[text.index(NEW_USER[page]) :], re.DOTALL)
    assert block is not None
    lines = [line.removeprefix("$ ") for line in block[1].splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    commands = [words[1:] for words in commands if words[0] == "deepgat"]
    assert [words[0] for words in commands] == ["check", "train", "predict", "inspect"]
    for words in commands:
        short = ["--epochs", "5", "--device", "cpu"] if words[0] == "train" else []
        monkeypatch.setattr(sys, "argv", ["deepgat", *words, *short])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code, capsys.readouterr().err
    assert (my_graph.parent / "labels.csv").read_text().startswith("node,label,confidence\n")
    assert (my_graph.parent / "member-007.png").stat().st_size > 10_000
