"""Tests in this folder import the helper modules beside it, and those that make runs."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "report", HERE.parent / "experiments"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
