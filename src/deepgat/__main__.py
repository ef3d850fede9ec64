"""``python -m deepgat``."""

from deepgat.cli import main

main()
