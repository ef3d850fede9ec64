"""Building the C++ layer: once, in the background, in nobody's way. The compiler is a script."""

import importlib
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from deepgat.ops.gpu import extension as original


@pytest.fixture
def extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is in a new process, with a cache and a compiler of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(tmp_path / "compiler"))
    monkeypatch.delenv("DEEPGAT_BUILD", raising=False)
    spec = importlib.util.find_spec(original.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiler(tmp_path: Path, script: str) -> Path:
    """``script`` has the target in $target; all calls are counted."""
    path, calls = tmp_path / "compiler", tmp_path / "calls"
    target = 'while [ "$1" != -o ]; do shift; done\ntarget=$2'
    path.write_text(f"#!/bin/sh\necho call >> {calls}\n{target}\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return calls


def test_no_compiler_is_no_error(extension: ModuleType) -> None:
    assert extension.wait() is None


def test_building_can_be_forbidden(
    extension: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = compiler(tmp_path, 'touch "$target"')
    monkeypatch.setenv("DEEPGAT_BUILD", "0")
    assert extension.wait() is None
    assert not calls.exists()


def when_told(tmp_path: Path, script: str) -> str:
    return f"while [ ! -e {tmp_path / 'go'} ]; do sleep .05; done; {script}"


def test_nobody_waits_for_the_compiler(extension: ModuleType, tmp_path: Path) -> None:
    compiler(tmp_path, when_told(tmp_path, "exit 1"))
    assert extension.loaded() is None
    assert extension.loaded() is None
    (tmp_path / "go").touch()
    with pytest.warns(UserWarning, match="called from Python"):
        assert extension.wait() is None


def test_a_failure_is_told_once_and_not_repeated(extension: ModuleType, tmp_path: Path) -> None:
    calls = compiler(tmp_path, "echo no such header >&2; exit 1")
    with pytest.warns(UserWarning, match=r"called from Python.*\.failed; delete that file"):
        extension._load()
    (failed,) = (tmp_path / "cache/deepgat").glob("*.failed")
    assert "no such header" in failed.read_text()
    extension._load()
    assert calls.read_text() == "call\n"
    assert extension.loaded() is None


def test_a_file_that_cannot_be_loaded_is_told(extension: ModuleType, tmp_path: Path) -> None:
    compiler(tmp_path, 'echo nonsense > "$target"')
    with pytest.warns(UserWarning, match="cannot be used"):
        extension._load()
    assert extension._file().read_text() == "nonsense\n"


@pytest.mark.slow
def test_processes_share_one_compiler(extension: ModuleType, tmp_path: Path) -> None:
    """The one that started it may end before it has finished."""
    calls = compiler(tmp_path, when_told(tmp_path, 'echo nonsense > "$target"'))
    begin = "from deepgat.ops.gpu import extension as e; "
    start = (
        f"import os, time; e.loaded()\nwhile not os.path.exists({str(calls)!r}): time.sleep(.05)"
    )
    subprocess.run([sys.executable, "-c", begin + start], check=True)
    others = [
        subprocess.Popen([sys.executable, "-c", begin + "assert e._build(e._file())"])
        for _ in range(2)
    ]
    (tmp_path / "go").touch()
    assert [other.wait() for other in others] == [0, 0]
    assert extension._file().read_text() == "nonsense\n"
    assert calls.read_text() == "call\n"
