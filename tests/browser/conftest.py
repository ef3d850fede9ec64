"""Tests here import the helper module beside this file, and those in tests/lab that make runs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "lab" / "report", HERE.parent / "lab"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from chromium import Page, chromium  # noqa: E402 - found by the lines above


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    with chromium(os.environ["DEEPGAT_BROWSER"], folder / "profile") as page:
        yield page
