"""Every test of this room has empty folders of its own; the real files only for who asks."""

import os
from pathlib import Path

import pytest

REAL_DATA = os.environ.get("DEEPGAT_DATA")


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DEEPGAT_DATA", raising=False)
    monkeypatch.setenv("DEEPGAT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real raw files."""
    if not REAL_DATA:
        pytest.skip("DEEPGAT_DATA is not set: no real datasets to test")
    return Path(REAL_DATA)
