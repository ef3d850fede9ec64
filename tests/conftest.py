"""Every test gets a seed and a temporary cache. A test that cannot run here says why."""

import os
import random
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # GPU kernels then run on the CPU, in Python

from deepgat.ops import backends
from deepgat.ops.cpu import kernels

# Tests in any folder import the helper modules beside this file (`import transcription`).
HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


class TorchRandom:
    """torch's generator, in the form in which Hypothesis seeds it before each example."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH_RANDOM = TorchRandom()  # Hypothesis keeps only a weak reference
hypothesis.register_random(TORCH_RANDOM)

# The same examples in every run; `--hypothesis-profile=search` looks for new ones, twice as many.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("DEEPGAT_REQUIRE_KERNELS") == "1":
        require_kernels()
    if hasattr(config, "workerinput"):  # one of several xdist processes
        torch.set_num_threads(1)


def require_kernels() -> None:
    """Without this check, a build that lost its kernels would skip their tests and still pass."""
    missing = []
    if not kernels.available():
        missing.append("the compiled CPU kernels (deepgat/ops/cpu/_kernels*.so)")
    if not backends.BUILT["cuda"]:
        missing.append("Triton, which also interprets the GPU kernels on the CPU")
    if missing:
        raise pytest.UsageError(f"DEEPGAT_REQUIRE_KERNELS=1, but missing: {'; '.join(missing)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {}
    if not torch.cuda.is_available():
        missing["gpu"] = "no CUDA device here"
    if not os.environ.get("DEEPGAT_DATA"):
        missing["data"] = "DEEPGAT_DATA is not set"
    if not os.environ.get("DEEPGAT_BROWSER"):
        missing["browser"] = "needs a browser: make test-browser"
    if not os.environ.get("DEEPGAT_SLOW"):
        missing["slow"] = "slow: make test-all"
    if not os.environ.get("DEEPGAT_DISTRIBUTED"):
        missing["distributed"] = "starts many processes: make test-distributed"
    if not os.environ.get("DEEPGAT_FUZZ_SECONDS"):
        missing["fuzz"] = "looks for new bugs: make fuzz"
    for item in items:
        for mark, reason in missing.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: item.get_closest_marker("lengthy") is None)


@pytest.fixture(scope="session", autouse=True)
def deepgat_cache(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A temporary DEEPGAT_CACHE, shared by the xdist processes of a run. Yours stays untouched."""
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        base = base.parent
    cache = base / "deepgat-cache"
    cache.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEEPGAT_CACHE", str(cache))
        yield cache


@pytest.fixture(scope="session", autouse=True)
def slow_path_already_told() -> None:
    """Warn about missing kernels now, so that tests which read stderr do not see the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backends._warn_once("cpu")


@pytest.fixture(autouse=True)
def seed_zero() -> None:
    """Every test starts from seed 0, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def my_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The documentation's ``my-graph`` folder, inside an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["club.py", "my-graph"])
    script = Path(__file__).parents[1] / "examples" / "club.py"
    runpy.run_path(str(script), run_name="__main__")
    return tmp_path / "my-graph"
