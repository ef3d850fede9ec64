"""The Triton kernels compile for a GPU, also where there is none to run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed here")


@pytest.mark.slow
@pytest.mark.lengthy
@pytest.mark.skipif(torch.cuda.is_available(), reason="here they run: tests/test_gpu.py")
def test_every_kernel_compiles_for_a_gpu(tmp_path):
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_kernels.py"))],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert {"sparse_matmul_kernel", "row_dot"} <= set(ran.stdout.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="here they run: tests/test_gpu.py")
def test_repeated_launches_are_those_that_triton_would_make():
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("prepared_launches.py"))],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 1000
