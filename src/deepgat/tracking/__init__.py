"""Training runs in TensorBoard or MLflow: settings, a curve per epoch, final scores.

``deepgat train --track`` and ``deepgat.fit(track=…)`` use it; both packages are optional.
"""

from deepgat.tracking.tracked import (
    TRACKERS,
    EpochWatch,
    SearchWatch,
    Tracked,
    Tracker,
    open_tracker,
    tracked_run,
    tracked_search,
)

__all__ = [
    "TRACKERS",
    "EpochWatch",
    "SearchWatch",
    "Tracked",
    "Tracker",
    "open_tracker",
    "tracked_run",
    "tracked_search",
]
