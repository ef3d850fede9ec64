"""Runs as MLflow keeps them, in its database or on a server."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepgat.errors import UserError
from deepgat.tracking.tracked import Described, Tracked, Tracker, missing, tracking_folder

EXPERIMENT = "deepgat"
"""Unless MLFLOW_EXPERIMENT_NAME or MLFLOW_EXPERIMENT_ID says otherwise."""
KEY = "deepgat.key"
SECONDS = 1.0
"""Between two messages with epochs."""
MOST_METRICS, MOST_PARAMS, MOST_LETTERS = 900, 90, 500
"""Of one message, and of a value: MLflow's limits are 1000, 100 and 500 in its oldest stores."""
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
MODEL = "model"
"""Name of the model among a run's artifacts."""


class MLflow(Tracker):
    """Runs of one experiment, through a client of our own: no global state of MLflow changes.

    ``to`` is a tracking URI, or a folder, which then holds a database and the artifacts. Left out,
    it is MLflow's: ``MLFLOW_TRACKING_URI``, or ``mlflow.db`` in the current folder. Inside an
    active run the new run is nested in it.
    """

    def __init__(self, to: str | os.PathLike[str] | None = None) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise missing("tracking by MLflow", "mlflow", "mlflow") from error
        uri, artifacts = _address(to)
        try:
            self.client = mlflow.MlflowClient(uri)
            self.experiment = self._experiment(artifacts)
            active = mlflow.active_run()
        except Exception as error:  # of a server, a database, a name: MLflow's are many
            told = " ".join(str(error).split())[:300]
            raise UserError(
                f"track_to is {uri or 'left out'!r}, which MLflow cannot use ({told}): name its "
                "server, a database such as sqlite:///mlflow.db, or a folder"
            ) from error
        self.parent = None if active is None else active.info.run_id

    def _experiment(self, artifacts: str | None) -> str:
        """The id of the experiment, which is made if it does not exist."""
        if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return str(self.client.get_experiment(given).experiment_id)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        return str(self.client.create_experiment(name, artifact_location=artifacts))

    def begin(self, described: Described) -> Tracked:
        return _Run(self, described, self.parent)


class _Run(Tracked):
    def __init__(self, tracker: MLflow, described: Described, parent: str | None) -> None:
        super().__init__(described)
        self.tracker, self.client = tracker, tracker.client
        self.waiting: list[Any] = []
        self.sent = time.monotonic()
        self.params: dict[str, str] = {}
        found = self._unfinished() if described.resumed else None
        if found is None:
            tags = {KEY: described.key} | ({"mlflow.parentRunId": parent} if parent else {})
            run = self.client.create_run(tracker.experiment, tags=tags, run_name=described.name)
            self.id = run.info.run_id
        else:
            self.id = found
            self.client.update_run(self.id, status="RUNNING")
            told = self.client.get_metric_history(self.id, "train/loss")
            self.last = max((metric.step for metric in told), default=0)
        self._write_params(described.settings)

    def _unfinished(self) -> str | None:
        """The last run with this key that has not finished."""
        runs = self.client.search_runs(
            [self.tracker.experiment],
            f"tags.`{KEY}` = '{self.described.key}' and attributes.status != 'FINISHED'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return runs[0].info.run_id if runs else None

    def write_epoch(self, number: int, values: Mapping[str, float]) -> None:
        self._wait(values, number)
        if time.monotonic() - self.sent > SECONDS or len(self.waiting) >= MOST_METRICS:
            self._send()

    def child(self, described: Described) -> Tracked:
        return _Run(self.tracker, described, self.id)

    def write_result(
        self, settings: Mapping[str, Any], values: Mapping[str, float], facts: Mapping[str, Any]
    ) -> None:
        self._write_params({k: v for k, v in settings.items() if k not in self.params})
        self._wait(values, int(values.get("best_epoch", self.last)))
        self._send()
        for name, value in facts.items():
            self.client.set_tag(self.id, f"deepgat.{name}", str(value)[:MOST_LETTERS])

    def write_model(self, folder: Path) -> None:
        from deepgat.tracking.mlflow_folder import write_mlflow_model

        with tempfile.TemporaryDirectory(prefix="deepgat-") as work:
            whole = Path(work) / MODEL
            write_mlflow_model(folder, whole, run_id=self.id)
            self.client.log_artifacts(self.id, str(whole), MODEL)

    def close(self, status: str) -> None:
        self._send()
        self.client.set_terminated(self.id, STATUS[status])

    def _write_params(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        fresh = {name: str(value)[:MOST_LETTERS] for name, value in settings.items()}
        self.params |= fresh
        params = [Param(name, value) for name, value in fresh.items()]
        for first in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.id, params=params[first : first + MOST_PARAMS])

    def _wait(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.waiting += [Metric(name, value, now, step) for name, value in values.items()]

    def _send(self) -> None:
        for first in range(0, len(self.waiting), MOST_METRICS):
            self.client.log_batch(self.id, metrics=self.waiting[first : first + MOST_METRICS])
        self.waiting, self.sent = [], time.monotonic()


def _address(to: str | os.PathLike[str] | None) -> tuple[str | None, str | None]:
    """The tracking URI, and where artifacts go if that is not MLflow's choice."""
    if to is None:
        return None, None
    text = os.fspath(to)
    if "://" in text or text == "databricks":
        return text, None
    folder = tracking_folder(text, "a folder, or the address of an MLflow server").absolute()
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
