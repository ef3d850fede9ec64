"""What becomes of finished runs: they are saved, and shown as a table."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from deepgat.analysis import METRICS, confidence_interval
from deepgat.cli.show import ERR, PARTS, percent, print_table
from deepgat.data import NodeDataset
from deepgat.errors import UserError
from deepgat.model_folder import save_run
from deepgat.training.run import Run

ENDINGS = {
    "patience": "patience",
    "epochs": "the limit",
    "time": "the time limit",
    "interrupted": "Ctrl-C",
}


def save_anywhere(folder: Path, run: Run, data: NodeDataset, keep_graph: bool = False) -> Path:
    """Save a trained model; where that fails, elsewhere, rather than to lose it. Says where."""
    place = folder
    while True:
        try:
            save_run(place, run, data, keep_graph)
            if place != folder:
                ERR.print(f"saved to {place}", soft_wrap=True, markup=False)
            return place
        except (UserError, OSError) as error:
            problem = error
        if not (sys.stdin.isatty() and ERR.is_terminal):
            break
        ERR.print(str(problem), soft_wrap=True, markup=False)
        try:
            place = Path(typer.prompt("Save the trained model to another folder", err=True))
        except typer.Abort:
            break
    try:
        spare = Path(tempfile.mkdtemp(prefix="deepgat-")) / "model"
        copy = save_run(spare, run, data, keep_graph)
    except OSError as error:
        told = f"a copy in {tempfile.gettempdir()} failed too ({error.strerror or error})"
        raise UserError(f"{problem}; {told}") from problem
    raise UserError(f"{problem}; the trained model is in {copy}") from problem


def print_runs(title: str, records: Sequence[Mapping[str, Any]]) -> None:
    """A row per seed, and the mean with its 95% interval."""
    columns = ["seed", *PARTS, "best", "epochs", "time"]
    rows = [
        [
            str(record["seed"]),
            *(percent(_scores(record).get(part)) for part in PARTS),
            str(record["best_epoch"]),
            str(record["epochs"]),
            f"{record['seconds']:.0f} s",
        ]
        for record in records
    ]
    if any(record["stopped"] != "patience" for record in records):
        columns.append("ended by")
        for row, record in zip(rows, records, strict=True):
            row.append(ENDINGS[record["stopped"]])
    footer = ["mean", *(_mean(records, part) for part in PARTS), *[""] * (len(columns) - 4)]
    print_table(title, columns, rows, footer if len(records) > 1 else ())


def title_metric(record: Mapping[str, Any]) -> str:
    """The name of the score that :func:`print_runs` shows."""
    monitor = record["training"]["monitor"]
    return str(monitor) if monitor in METRICS else "micro-F1"


def _scores(record: Mapping[str, Any]) -> Mapping[str, float | None]:
    """The metric that picked the epoch in every part; without one, micro-F1."""
    monitor = record["training"]["monitor"]
    scores = record["metrics"][monitor] if monitor in METRICS else record["micro_f1"]
    return dict(scores)


def _mean(records: Sequence[Mapping[str, Any]], part: str) -> str:
    found = [_scores(record).get(part) for record in records]
    values = [value for value in found if value is not None]
    if not values:
        return "–"
    mean, half_width = confidence_interval(values)
    return percent(mean) + ("" if math.isnan(half_width) else f" ±{100 * half_width:.1f}")
