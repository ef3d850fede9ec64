"""The example scripts and the examples in the documentation must run."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("estimator", "predict")
EXAMPLES = [
    (page, number, code)
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    )
]


def test_grid_search(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grid_search.py", "--epochs", "3"])
    runpy.run_path(str(ROOT / "examples" / "grid_search.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert out.count("%") == 5
    assert "best: {'layers': " in out


@pytest.mark.parametrize(("page", "number", "code"), EXAMPLES)
def test_documented_example_runs(page, number, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"docs/{page}.md example {number}", "exec"), {})


def test_there_are_examples():
    assert {page for page, _, _ in EXAMPLES} == set(PAGES)
