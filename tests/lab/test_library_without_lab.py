"""The library and its command line do not import the laboratory."""

import json
import subprocess
import sys

import pytest

IMPORTED = """
import json, sys
import deepgat, deepgat.cli, deepgat.estimator, deepgat.model
print(json.dumps(list(sys.modules)))
"""


@pytest.mark.slow
def test_the_library_does_not_import_the_laboratory():
    """In a process of its own: other tests import the laboratory."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True
    )
    imported = json.loads(done.stdout)
    assert {"deepgat.cli", "deepgat.model", "deepgat.estimator"} <= set(imported)
    assert [name for name in imported if name.startswith("deepgat.lab")] == []
