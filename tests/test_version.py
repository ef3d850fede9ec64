"""The citation file repeats the version, which has its one source in ``deepgat.__version__``."""

import re
from pathlib import Path

import deepgat

ROOT = Path(__file__).parents[1]


def test_the_citation_names_the_version():
    found = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found
    assert found[1] == deepgat.__version__
