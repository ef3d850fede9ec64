"""What the commands print: tables on standard output, progress on standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from deepgat.analysis import confidence_interval
from deepgat.data import Listing
from deepgat.demo import DepthPoint
from deepgat.models import System
from deepgat.training.loop import Epoch, TrainSettings

# What is printed names files and splits, which may hold brackets and colons: no markup, no emoji.
OUT = Console(highlight=False, markup=False, emoji=False)
ERR = Console(stderr=True, highlight=False, emoji=False)

PARTS = ("test", "val", "train")


_ENDINGS = {"patience": "patience", "epochs": "the limit", "interrupted": "Ctrl-C"}

Record = Mapping[str, Any]


def percent(share: float | None) -> str:
    return "–" if share is None or math.isnan(share) else f"{100 * share:.2f}"


def run_table(title: str, records: Sequence[Record]) -> Table:
    """A row per seed, and the mean with its 95% interval."""
    table = _table(title)
    table.show_footer = len(records) > 1
    table.add_column("seed", "mean", justify="right")
    for part in PARTS:
        table.add_column(part, _mean(records, part), justify="right", no_wrap=True)
    for name in ("best", "epochs", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    early = any(record["stopped"] != "patience" for record in records)
    if early:
        table.add_column("ended by", no_wrap=True)
    for record in records:
        table.add_row(
            str(record["seed"]),
            *(percent(record["micro_f1"].get(part)) for part in PARTS),
            str(record["best_epoch"]),
            str(record["epochs"]),
            f"{record['seconds']:.0f} s",
            *([_ENDINGS[record["stopped"]]] if early else []),
        )
    return table


def records_table(title: str, records: Sequence[Record]) -> Table:
    """A row per run of a store."""
    table = _table(title)
    for name in ("run", "dataset", "split", "model"):
        table.add_column(name, no_wrap=True)
    for name in ("L", "seed", "test", "val", "time"):
        table.add_column(name, justify="right", no_wrap=True)

    def order(record: Record) -> tuple[Any, ...]:
        settings = record["settings"]
        return (
            record["dataset"],
            record["system"],
            settings.get("score", ""),
            settings["num_layers"],
            record["split"],
            record["seed"],
            record["signature"],
        )

    for record in sorted(records, key=order):
        settings = record["settings"]
        table.add_row(
            record["signature"][:8],
            record["dataset"],
            record["split"],
            f"{record['system']} {settings.get('score', '')}".strip(),
            str(settings["num_layers"]),
            str(record["seed"]),
            *(percent(record["micro_f1"].get(part)) for part in ("test", "val")),
            f"{record['wall_seconds']:.0f} s",
        )
    return table


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Cells of text; numbers to the right."""
    table = _table(title)
    for index, name in enumerate(columns):
        numbers = any(row[index][:1].isdigit() for row in rows)
        short = not numbers and max((len(row[index]) for row in rows), default=0) <= 14
        whole = index < 2 and short  # names are not broken where there is room for them
        table.add_column(name, justify="right" if numbers else "left", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    return table


def fact_table(title: str, rows: Sequence[Sequence[str]]) -> Table:
    """Two columns, without a head: what, and how it is."""
    table = _table(title)
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def score_table(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """A row per name with micro-F1 of each part."""
    table = _table(title)
    table.add_column("model")
    for part in PARTS:
        table.add_column(part, justify="right")
    for name, scores in rows:
        table.add_row(name, *(percent(scores.get(part)) for part in PARTS))
    return table


def dataset_table(listings: Sequence[Listing], wide: bool) -> Table:
    """The catalogue of datasets and which are available; with notes where there is room."""
    table = _table("Datasets")
    table.add_column("name", no_wrap=True)
    for name in ("nodes", "edges", "features", "classes"):
        table.add_column(name, justify="right")
    table.add_column("split")
    table.add_column("at hand")
    if wide:
        table.add_column("what it is")
    for entry in listings:
        numbers = (entry.nodes, entry.edges, entry.features, entry.classes)
        table.add_row(
            entry.key,
            *("–" if number is None else f"{number:,}" for number in numbers),
            entry.default_split,
            entry.source or "no",
            *([f"{entry.title}: {entry.note}"] if wide else []),
        )
    return table


def model_table(rows: Sequence[tuple[System, Sequence[str]]]) -> Table:
    """A block per model: equation, paper, note, and its shipped settings."""
    table = _table("Models")
    table.add_column("name", no_wrap=True)
    table.add_column("what it computes, where it is from, and settings to run it with")
    for system, settings in rows:
        lines = [system.equation, system.paper, system.note]
        lines.append(f"--config {', '.join(settings)}" if settings else "")
        table.add_row(system.name, "\n".join(line for line in lines if line), end_section=True)
    return table


def settings_table(system: System) -> Table:
    """A row per setting of a model: its default, and what it means."""
    table = _table(f"Settings of {system.name}, for --set NAME=VALUE")
    table.add_column("name", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for field in fields(system.config):
        value, options = getattr(system.config, field.name), field.metadata["options"]
        words = {True: "yes", False: "no"}
        shown = words[value] if isinstance(value, bool) else str(value)
        choices = f" ({', '.join(options)})" if options else ""
        table.add_row(field.name, shown, field.metadata["meaning"] + choices)
    return table


def demo_table(points: Sequence[DepthPoint]) -> Table:
    """A row per depth, a column per model."""
    models = list(dict.fromkeys(point.model for point in points))
    table = _table("Test micro-F1 (%)")
    table.add_column("layers", justify="right")
    for model in models:
        table.add_column(model, justify="right")
    found = {(point.model, point.layers): point for point in points}
    for layers in sorted({point.layers for point in points}):
        row = [percent(found[model, layers].test_f1) for model in models]
        table.add_row(str(layers), *row)
    return table


class BatchProgress:
    """A bar over several training runs: the current run's epoch and score, and the time left."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total = total
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[scores]}"),
            TimeElapsedColumn(),
            TextColumn("elapsed"),
            console=ERR,
            transient=True,
            disable=quiet or not ERR.is_terminal,
        )
        self.task = self.bar.add_task("", total=total, scores="")

    def __enter__(self) -> BatchProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def follow(self, what: str, number: int, epochs: int) -> Callable[[Epoch], None]:
        """What to call after every epoch of training ``number`` (from 1)."""

        def update(epoch: Epoch) -> None:
            self.bar.update(
                self.task,
                description=f"{what} ({number} of {self.total})",
                completed=number - 1 + epoch.number / epochs,
                scores=f"epoch {epoch.number}  val F1 {percent(epoch.val_f1)}",
            )

        return update


@contextmanager
def epoch_progress(
    what: str, training: TrainSettings, quiet: bool
) -> Iterator[Callable[[Epoch], None] | None]:
    """A bar that follows one training: loss, validation score, best epoch, time left.

    How long early stopping will take is unknown until it happens. The bar ends where training
    would end at the earliest, as far as the best epoch tells, so the time left is "at least".
    """
    if quiet or not ERR.is_terminal:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[scores]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=ERR, transient=True) as progress:
        task = progress.add_task(what, total=training.patience, scores="")

        def update(epoch: Epoch) -> None:
            end = min(training.epochs, epoch.best_number + training.patience)
            end = max(end, epoch.number)  # a second stage, or another monitor, goes on beyond it
            elapsed = progress.tasks[0].elapsed or 0.0
            left = elapsed / epoch.number * (end - epoch.number)
            progress.update(
                task,
                completed=epoch.number,
                total=end,
                scores=(
                    f"loss {epoch.loss:.3f}  val F1 {percent(epoch.val_f1)}  "
                    f"best epoch {epoch.best_number}  ≥ {left:.0f} s left"
                ),
            )

        yield update


@contextmanager
def share_progress() -> Iterator[Callable[[str, float], None]]:
    """A bar for a job of several stages, told the name of each and the share of it that is done."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:.0f}%"),
        TimeElapsedColumn(),
    )
    hidden = not ERR.is_terminal
    with Progress(*columns, console=ERR, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, share: progress.update(task, description=what, completed=share)


def _table(title: str) -> Table:
    """A table that fits 80 columns: rules above and below, none between."""
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)


def _mean(records: Sequence[Record], part: str) -> str:
    values = [record["micro_f1"][part] for record in records if part in record["micro_f1"]]
    if not values:
        return "–"
    mean, half_width = confidence_interval(values)
    interval = "" if math.isnan(half_width) else f" ±{100 * half_width:.1f}"
    return percent(mean) + interval
