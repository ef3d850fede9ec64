"""The CPU kernels under AddressSanitizer and UBSan: ``make sanitize``.

Run as a script, this file builds the kernels with the sanitizers into build/sanitize, beside a copy
of the package, shows that both sanitizers are on, and runs the tests of the operators on that copy.
In that run pytest loads this file once more, as a plugin that counts graphs and calls.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "sanitize"
KERNELS = Path("deepgat", "ops", "cpu")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
FLAGS = (
    *("-std=c++17", "-O1", "-g1", "-fno-omit-frame-pointer", "-fPIC", "-fopenmp", "-Wno-psabi"),
    *("-march=native", *SANITIZERS),  # one copy: the one of this processor
)
TESTS = [
    f"tests/ops/test_{name}.py"
    for name in ("malformed_calls", "sampling", "neighbors", "features", "products", "named_draws")
] + ["tests/ops/test_differences.py", "tests/ops/test_backends.py"]
LEFT_OUT = " and ".join(
    f"not {word}"  # what is about other things than memory, or large
    for word in (
        *("triton", "compile", "registered", "gradcheck", "ragged", "ten_thousand", "half"),
        *("ends_the_process", "without_preference"),
        "(are_cut and float32)",  # sums of another rounding than the tolerance is for
    )
)
FAULTS = {
    "heap-buffer-overflow": "int fault(int n) { return (new int[n])[n]; }",
    "signed integer overflow": "int fault(int n) { return n + 2147483647; }",
}


def main() -> int:
    began = time.monotonic()
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        environment = os.environ | {
            "LD_PRELOAD": " ".join(runtime(compiler, name) for name in ("libasan", "libubsan")),
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",  # Python keeps what it has
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            "OMP_NUM_THREADS": "2",
            "OMP_WAIT_POLICY": "passive",  # threads that wait leave their core to others
            "PYTHONPATH": os.pathsep.join([str(BUILD), str(ROOT / "tests")]),
        }
        faults = {name: shared(compiler, name.split()[0], code) for name, code in FAULTS.items()}
    except (OSError, subprocess.CalledProcessError, LookupError) as error:
        print(f"SKIPPED: {' '.join(compiler)} builds nothing with {SANITIZERS[0]} here: {error}")
        return 0
    for name, library in faults.items():
        call = f"import ctypes; ctypes.CDLL({str(library)!r})._Z5faulti(8)"
        done = subprocess.run([sys.executable, "-c", call], env=environment, capture_output=True)
        if done.returncode == 0 or name.encode() not in done.stderr:
            print(f"the sanitizers do not report a {name}:\n{done.stderr.decode()}")
            return 1
    print(f"both sanitizers report a fault made on purpose: {', '.join(faults)}")
    build_kernels(compiler)
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    options = ["-x", "-p", "sanitize", "-p", "no:cacheprovider", "--capture=sys", "-k", LEFT_OUT]
    options += sys.argv[1:]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *TESTS], env=environment, cwd=ROOT
    ).returncode


def runtime(compiler: list[str], name: str) -> str:
    """The path of a sanitizer's library, which Python itself was not linked with."""
    asked = [*compiler, f"-print-file-name={name}.so"]
    path = Path(subprocess.check_output(asked, text=True).strip())
    if not path.is_absolute():
        raise LookupError(f"no {name}.so")
    return str(path.resolve())


def shared(compiler: list[str], name: str, code: str) -> Path:
    """A library of a few lines, compiled as the kernels are."""
    path = BUILD / f"{name}.so"
    subprocess.run(
        [*compiler, *FLAGS, "-shared", "-x", "c++", "-", "-o", str(path)],
        input=code.encode(), check=True, stderr=subprocess.PIPE,
    )  # fmt: skip
    return path


def build_kernels(compiler: list[str]) -> None:
    """A copy of the package with kernels of this build, compiled again when a source changes."""
    source = ROOT / "src"
    package = BUILD / "deepgat"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(source / "deepgat", package, ignore=shutil.ignore_patterns("*.so", "__pyc*"))
    files = sorted((source / KERNELS).glob("*.cpp"))
    newest = max(path.stat().st_mtime for path in (source / KERNELS).glob("*.[ch]*"))

    def compile_one(path: Path) -> Path:
        made = BUILD / f"{path.stem}.o"
        if not made.exists() or made.stat().st_mtime < newest:
            fresh = made.with_suffix(".new")
            subprocess.run([*compiler, *FLAGS, "-c", str(path), "-o", str(fresh)], check=True)
            fresh.replace(made)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, files))
    target = BUILD / KERNELS / "_kernels.so"
    linked = [*compiler, *FLAGS, "-shared", *map(str, objects), "-o", str(target)]
    subprocess.run(linked, check=True)


COUNTS: Counter[str] = Counter()


def pytest_configure() -> None:
    """Count what is run on the kernels, and make sure that it is on these."""
    from deepgat.ops import neighbors
    from deepgat.ops.cpu import kernels

    library = kernels.library()
    assert library is not None
    assert Path(library._name).is_relative_to(BUILD), library._name
    find, build = kernels.function, neighbors.Neighbors.from_edge_index

    def function(*name: Any) -> Any:
        COUNTS["kernel calls"] += 1
        return find(*name)

    def from_edge_index(*edges: Any) -> Any:
        COUNTS["graphs"] += 1
        return build(*edges)

    function.cache_clear = find.cache_clear  # type: ignore[attr-defined]
    kernels.function = function  # type: ignore[assignment]
    neighbors.Neighbors.from_edge_index = staticmethod(from_edge_index)  # type: ignore[method-assign]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    from test_malformed_calls import hand_made, malformed, operators

    COUNTS["malformed calls"] = sum(
        len(list(calls())) for calls in (malformed, hand_made, operators)
    )
    told = ", ".join(f"{count:,} {what}" for what, count in sorted(COUNTS.items()))
    terminalreporter.write_line(f"under AddressSanitizer and UBSan: {told}")


if __name__ == "__main__":
    sys.exit(main())
