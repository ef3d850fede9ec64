"""A few rounds of the soak (tests/soak.py), of which ``make soak`` runs 200."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.distributed
@pytest.mark.lengthy
def test_disturbed_and_resumed_training_ends_with_the_same_bits():
    script = Path(__file__).parents[1] / "soak.py"
    done = subprocess.run(
        [sys.executable, str(script), "12"],  # every disturbance of every kind of work
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "12 rounds" in done.stdout
