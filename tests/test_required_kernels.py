"""DEEPGAT_REQUIRE_KERNELS=1 turns missing kernels into an error instead of skipped tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import deepgat

ROOT = Path(__file__).parents[1]
PACKAGE = Path(deepgat.__file__).parent


def collect(*path: Path) -> subprocess.CompletedProcess[str]:
    """Collect the tests of one kernel with ``path`` as PYTHONPATH and its plugin ``hide``."""
    variables = {"DEEPGAT_REQUIRE_KERNELS": "1", "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "hide", "--collect-only",
         "tests/ops/test_products.py"],
        cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_missing_library_fails_the_run(tmp_path):
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "deepgat", ignore=ignored)
    (tmp_path / "hide.py").touch()
    ran = collect(tmp_path)
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "missing: the compiled CPU kernels" in ran.stderr


@pytest.mark.slow
def test_missing_triton_fails_the_run(tmp_path):
    (tmp_path / "hide.py").write_text("import sys\n\nsys.modules['triton'] = None\n")
    ran = collect(tmp_path, PACKAGE.parent)
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "missing: Triton" in ran.stderr or "; Triton" in ran.stderr
