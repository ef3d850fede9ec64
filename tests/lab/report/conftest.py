"""Tests in this folder import the helper module beside this file, and the one a folder above."""

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
