"""Training runs in TensorBoard or MLflow: settings, a curve per epoch, final scores.

``deepgat train --track`` and ``deepgat.fit(track=…)`` use it; both packages are optional.
"""

from __future__ import annotations

import os

from deepgat.errors import UserError, unknown_name
from deepgat.tracking.tracked import Tracker, tracked_run, tracked_search

__all__ = ["TRACKERS", "Tracker", "open_tracker", "tracked_run", "tracked_search"]

TRACKERS = ("tensorboard", "mlflow")


def open_tracker(name: str | None, to: str | os.PathLike[str] | None = None) -> Tracker:
    """The tracker of this name; None: one that tracks nothing.

    ``to`` is its folder or address, left out: the usual one.

    Raises:
        UserError: for an unknown name, a missing package, or a place that cannot be used.
    """
    if name is None:
        if to is not None:
            raise UserError("track_to is where a tracker writes: name it too, as track")
        return Tracker()
    if name not in TRACKERS:
        raise unknown_name("tracker", str(name), TRACKERS)
    if name == "tensorboard":
        from deepgat.tracking.tensorboard import TensorBoard  # here: it loads the package

        return TensorBoard(to)
    from deepgat.tracking.mlflow_runs import MLflow

    return MLflow(to)
