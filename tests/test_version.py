"""The citation file repeats the version, which has its one source in ``deepgat.__version__``."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import deepgat

ROOT = Path(__file__).parents[1]


def test_the_citation_names_the_version():
    found = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found
    assert found[1] == deepgat.__version__


def test_public_names_are_found_where_the_types_say():
    """They are imported when asked for; the imports under TYPE_CHECKING are for type checkers."""
    tree = ast.parse(Path(deepgat.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {name.name: each.module for each in block.body for name in each.names}
    assert sorted(told) == sorted(deepgat.__all__)
    for name, module in told.items():
        assert getattr(deepgat, name) is getattr(import_module(module), name), name
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        deepgat.nonsense  # noqa: B018
