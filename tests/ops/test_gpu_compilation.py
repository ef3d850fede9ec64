"""The Triton kernels compile for a GPU, also where there is none to run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed here")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="here they run: tests/test_gpu.py")
def test_every_kernel_compiles_for_a_gpu(tmp_path):
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_kernels.py"))],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert {"sparse_matmul_kernel", "row_dot"} <= set(ran.stdout.split())
