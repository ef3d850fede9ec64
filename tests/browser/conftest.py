"""Tests here import the helper module beside this file, and those in tests/lab that make runs."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "lab" / "report", HERE.parent / "lab"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
