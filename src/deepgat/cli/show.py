"""What the commands print: tables on standard output, progress on standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from deepgat.files import to_json

# What is printed names files and splits, which may hold brackets and colons: no markup, no emoji.
OUT = Console(highlight=False, markup=False, emoji=False)
ERR = Console(stderr=True, highlight=False, emoji=False)

PARTS = ("test", "val", "train")


def percent(share: float | None) -> str:
    return "–" if share is None or math.isnan(share) else f"{100 * share:.2f}"


def echo_json(value: Any) -> None:
    """One line of JSON on standard output."""
    typer.echo(to_json(value), nl=False)


def plain_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    footer: Sequence[str] = (),
    **options: Any,
) -> Table:
    """Cells of text in 80 columns, numbers to the right; ``options`` are those of rich's Table."""
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_footer=bool(footer),
        **options,
    )
    for index, name in enumerate(columns):
        numbers = any(row[index][:1].isdigit() for row in rows)
        short = not numbers and max((len(row[index]) for row in rows), default=0) <= 14
        whole = index < 2 and short  # names are not broken where there is room for them
        last = footer[index] if footer else ""
        table.add_column(name, last, justify="right" if numbers else "left", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    return table


def records_table(title: str, records: Sequence[Mapping[str, Any]]) -> Table:
    """A row per run of a store."""

    def order(record: Mapping[str, Any]) -> tuple[Any, ...]:
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

    rows = [
        [
            record["signature"][:8],
            record["dataset"],
            record["split"],
            f"{record['system']} {record['settings'].get('score', '')}".strip(),
            str(record["settings"]["num_layers"]),
            str(record["seed"]),
            *(percent(record["micro_f1"].get(part)) for part in ("test", "val")),
            f"{record['wall_seconds']:.0f} s",
        ]
        for record in sorted(records, key=order)
    ]
    names = ["run", "dataset", "split", "model", "L", "seed", "test", "val", "time"]
    return plain_table(title, names, rows)


def score_table(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """A row per name with micro-F1 of each part."""
    cells = [[name, *(percent(scores.get(part)) for part in PARTS)] for name, scores in rows]
    return plain_table(title, ["model", *PARTS], cells)


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar for whoever looks at a terminal.

    Call what it yields with the name of the work, the share of it that is done, and a remark.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[remark]}"),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    hidden = quiet or not ERR.is_terminal
    with Progress(*columns, console=ERR, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=1.0, remark="")

        def show(what: str, share: float, remark: str = "") -> None:
            bar.update(task, description=what, completed=share, remark=remark)

        yield show
