"""Ctrl-C in a team stops all processes after the same epoch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from deepgat.distributed.team import Team


@contextmanager
def stop_asked(team: Team | None) -> Iterator[Callable[[], bool]]:
    """A function that all processes call together: was any of them interrupted?

    An interrupt is recorded instead of raised, since a process that stops alone leaves the others
    waiting. Without a team, or outside the main thread, interrupts raise as usual.
    """
    if team is None or threading.current_thread() is not threading.main_thread():
        yield lambda: team is not None and team.highest(0.0) > 0
        return
    told = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: team.highest(float(told)) > 0
    finally:
        signal.signal(signal.SIGINT, before)
