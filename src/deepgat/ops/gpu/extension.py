"""Builds and loads ``fused_layer.cpp``.

It uses torch's C++ interface, which differs from version to version, so the package ships the
source only. The first call of a layer on a GPU starts a compiler in the background; it takes half a
minute, once for every version of torch. Until then, and where there is no compiler, the same
kernels are launched from Python. ``DEEPGAT_BUILD=0`` disables the build.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import warnings
from pathlib import Path
from types import ModuleType

import torch

SOURCE = Path(__file__).with_name("fused_layer.cpp")
NAME = "deepgat_fused_layer"
_lock = threading.Lock()
_loader: threading.Thread | None = None
_module: ModuleType | None = None


def loaded() -> ModuleType | None:
    """The extension, if it is there. The first call starts to build it."""
    global _loader
    if _loader is None:
        with _lock:
            if _loader is None:
                thread = threading.Thread(target=_load, name="deepgat-build", daemon=True)
                thread.start()
                if _file().exists():
                    thread.join()
                _loader = thread
    return _module


def wait() -> ModuleType | None:
    """The extension, once it is built; None if that is not possible."""
    loaded()
    assert _loader is not None
    _loader.join()
    return _module


def _load() -> None:
    global _module
    if os.environ.get("DEEPGAT_BUILD") == "0":
        return
    try:
        path = _file()
        if not path.exists() and not _build(path):
            return
        spec = importlib.util.spec_from_file_location(NAME, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _module = module
    except (OSError, ImportError) as error:
        warnings.warn(
            "layers on a GPU are called from Python, which is slower, because "
            f"{SOURCE.name} cannot be used: {error}",
            stacklevel=2,
        )


def _file() -> Path:
    """Where the extension is kept: a file for every version of it, of torch and of Python."""
    versions = SOURCE.read_text(), torch.__version__, sys.version, sysconfig.get_platform()
    name = hashlib.sha256(repr(versions).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "deepgat" / f"fused-layer-{name}.so"


def _build(path: Path) -> bool:
    """Whether the extension could be built, by this process or by another that was faster.

    The compiler outlives this process, so that even a short program completes a build. It holds the
    lock: while it runs, no other process starts a second.
    """
    import fcntl

    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    made, log, failed = (path.with_suffix(end) for end in (f".{os.getpid()}", ".log", ".failed"))
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() or failed.exists():
            return path.exists()
        compile_it = shlex.join([compiler, *_arguments(made)])
        keep, give_up = (
            shlex.join(["mv", *map(str, pair)]) for pair in ((made, path), (log, failed))
        )
        with log.open("w") as said:
            subprocess.Popen(
                ["/bin/sh", "-c", f"{compile_it} && {keep} || {give_up}"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            ).wait()
    if not path.exists():
        raise OSError(f"{compiler} failed, and says why in {failed}; delete that file to try again")
    return True


def _arguments(target: Path) -> list[str]:
    from torch.utils.cpp_extension import include_paths, library_paths

    includes = [*include_paths(), sysconfig.get_paths()["include"]]
    return [
        *("-std=c++20", "-O2", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={NAME}"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(f"-isystem{path}" for path in includes),
        *(str(SOURCE), "-o", str(target)),
        *(f"-L{path}" for path in library_paths()),
        *("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]
