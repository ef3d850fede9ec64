"""What a request may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from deepgat.errors import UserError

EDGES_PER_NODE = 20
"""A request may have so many edges for every node that it may have."""


@dataclass(frozen=True)
class Limits:
    """Bounds on one request, and on how many are answered at a time."""

    max_body: int = 2 * 2**20
    """Bytes of a request's body."""
    max_nodes: int = 1000
    """Nodes that one request may name or add."""
    timeout: float = 30.0
    """Seconds that a body may take to arrive, and again that its answer may take."""
    waiting: int = 128
    """Requests of a kind that may wait or be computed at a time; more are turned away."""
    threads: int = 1
    """Requests that are computed at a time."""

    def __post_init__(self) -> None:
        for name in ("max_body", "max_nodes", "waiting", "threads"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UserError(f"{name} is {value!r}: expected a whole number of at least 1")
        if not 0 < self.timeout <= 3600:
            raise UserError(f"timeout is {self.timeout!r}: expected seconds, from above 0 to 3600")

    @property
    def max_edges(self) -> int:
        return EDGES_PER_NODE * self.max_nodes
