"""``deepgat demo``."""

from __future__ import annotations


def demo() -> None:
    """Watch GAT collapse with depth while DeepGAT does not."""
