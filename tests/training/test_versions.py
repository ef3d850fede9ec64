"""What a record says of the code that made it."""

import subprocess
from pathlib import Path

import pytest

import deepgat
from deepgat.training.run import versions

CHECKOUT = Path(__file__).resolve().parents[2]


def test_a_checkout_tells_its_commit(monkeypatch):
    monkeypatch.delenv("DEEPGAT_COMMIT", raising=False)
    command = ["git", "-C", str(CHECKOUT), "rev-parse", "HEAD"]
    try:
        head = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the tests do not run from a checkout with its history")
    if Path(deepgat.__file__).resolve() != CHECKOUT / "src" / "deepgat" / "__init__.py":
        pytest.skip("deepgat is an installed copy, which has no history")
    assert versions()["commit"] == head


def test_a_copy_of_a_checkout_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("DEEPGAT_COMMIT", "0123abc")
    assert versions()["commit"] == "0123abc"
