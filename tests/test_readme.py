"""The examples that users copy must run."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number, capsys):
    exec(compile(EXAMPLES[number], f"README example {number}", "exec"), {})


def test_there_are_examples():
    assert len(EXAMPLES) == 2
