"""What the commands print: tables on standard output, progress on standard error."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from deepgat.errors import cut_middle, printable
from deepgat.files import to_json

# What is printed names files and splits, which may hold brackets and colons: no markup, no emoji.
OUT = Console(highlight=False, markup=False, emoji=False)
ERR = Console(stderr=True, highlight=False, emoji=False)

PARTS = ("test", "val", "train")
NUMBER = re.compile(r"[-+]?\d[\d.,e+-]*%?(\s|$)")
SECONDS_BETWEEN_LINES = 60.0
"""Of progress, where nobody sees a bar."""
WIDE = 110
"""Columns of a terminal that show the bar of a training run beside its remark."""
SHORT, LEAST, MOST = 14, 8, 40
"""Texts of at most SHORT columns are not cut, longer ones keep LEAST; numbers have at most MOST."""


READING = re.compile(
    r"(?<![\w./'=-])(?<!--read )"
    r"(?=(?:id|label|source|target|drop|structure|missing|rare|text|undirected|nodes)=[\w…])"
)
"""Where a sentence of the library names a choice of how to read a graph."""


OWN_OPTIONS = {"num_layers": "layers", "hidden_channels": "hidden", "seed": "seeds"}
"""Settings with an option of their own."""


def as_options(sentence: str, typed: Sequence[str] = ()) -> str:
    """The sentence for the command line: "read with rare=unlabel" names ``--read``.

    A setting that it begins with gets the name of its option, if that is what was ``typed``.
    """
    name, _, rest = sentence.partition(" ")
    option = f"--{OWN_OPTIONS.get(name, name.replace('_', '-'))}"
    if rest.startswith("is ") and any(word.split("=")[0] == option for word in typed):
        sentence = f"{option} {rest}"
    return READING.sub("--read ", sentence)


def percent(share: float | None) -> str:
    return "–" if share is None or math.isnan(share) else f"{100 * share:.2f}"


def echo_json(value: Any) -> None:
    """One line of JSON on standard output."""
    typer.echo(to_json(value), nl=False)


def note(text: str) -> None:
    """A sentence on standard error that is no mistake."""
    ERR.print(f"[yellow]note:[/] {escape(printable(text))}", soft_wrap=True)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    footer: Sequence[str] = (),
    **options: Any,
) -> None:
    """Print cells of text: on a terminal as a table, else one tab-separated line per row.

    On a narrow terminal names are cut in the middle and prose is wrapped; numbers are never cut.
    Without ``columns`` there is no header. ``options`` are those of rich's Table.
    """
    if not OUT.is_terminal:
        if title:
            typer.echo(f"# {printable(title)}")
        for row in ([columns] if columns else []) + [*rows] + ([footer] if footer else []):
            typer.echo("\t".join("; ".join(map(printable, cell.split("\n"))) for cell in row))
        return
    if title:
        OUT.print(title, style="italic", soft_wrap=True)
    OUT.print(_fitted(columns, rows, footer, **options), crop=False)


def _fitted(
    columns: Sequence[str], rows: Sequence[Sequence[str]], footer: Sequence[str], **options: Any
) -> Table:
    """A table as wide as the terminal, or wider where numbers need it."""
    rows = [["\n".join(map(printable, cell.split("\n"))) for cell in row] for row in rows]
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        show_header=bool(columns),
        show_footer=bool(footer),
        **options,
    )
    heads, feet = columns or [""] * len(rows[0]), footer or [""] * len(columns or rows[0])
    places = list(enumerate(zip(heads, feet, strict=True)))
    texts = [[*ends, *(row[i] for row in rows)] for i, ends in places]
    widths = [
        max(cell_len(line) for cell in column for line in cell.split("\n")) for column in texts
    ]
    numeric = [
        width <= MOST and _mostly_numbers(column[2:])
        for width, column in zip(widths, texts, strict=True)
    ]
    long = [i for i, _ in places if not numeric[i] and widths[i] > SHORT]
    room = OUT.width - 2 * (len(widths) - 1) - sum(w for i, w in enumerate(widths) if i not in long)
    for place, i in enumerate(sorted(long, key=widths.__getitem__)):  # short ones keep their width
        widths[i] = min(widths[i], max(LEAST, room // (len(long) - place)))
        room -= widths[i]
    if room < 0:
        table.width = OUT.width - room
    for i, (head, foot) in places:
        justify: Any = "right" if numeric[i] else "left"
        table.add_column(head, foot, justify=justify, width=widths[i], no_wrap=i not in long)
    for row in rows:
        table.add_row(*(_cut_words(cell, width) for cell, width in zip(row, widths, strict=True)))
    return table


def _mostly_numbers(cells: Sequence[str]) -> bool:
    """Whether more than half of the cells begin with a number, not counting empty ones."""
    filled = [cell for cell in cells if cell.strip() not in ("", "–")]
    return 2 * sum(map(bool, map(NUMBER.match, filled))) > len(filled)


def _cut_words(text: str, width: int) -> str:
    return re.sub(r"\S+", lambda word: cut_middle(word[0], width), text)


def print_records(title: str, records: Sequence[Mapping[str, Any]]) -> None:
    """A row per run of a store."""

    def told(record: Mapping[str, Any]) -> list[Any]:
        settings = record["settings"]
        return [settings[name] for name in ("score", "quality") if name in settings]

    def order(record: Mapping[str, Any]) -> tuple[Any, ...]:
        settings = record["settings"]
        return (
            record["dataset"],
            record["system"],
            told(record),
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
            " ".join([record["system"], *map(str, told(record))]),
            str(record["settings"]["num_layers"] or "–"),
            str(record["seed"]),
            *(percent(record["micro_f1"].get(part)) for part in ("test", "val")),
            f"{record['wall_seconds']:.0f} s",
        ]
        for record in sorted(records, key=order)
    ]
    names = ["run", "dataset", "split", "model", "L", "seed", "test", "val", "time"]
    print_table(title, names, rows)


def print_scores(
    title: str, rows: Sequence[tuple[str, Mapping[str, float | None]]], what: str = "model"
) -> None:
    """A row per name with its score in each part."""
    cells = [[name, *(percent(scores.get(part)) for part in PARTS)] for name, scores in rows]
    print_table(title, [what, *PARTS], cells)


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar for whoever looks at a terminal; through a pipe, a line a minute.

    Call what it yields with the name of the work, the share of it that is done, and a remark.
    """
    told = time.monotonic()
    name = TextColumn("{task.description}", markup=False)
    remark = TextColumn("{task.fields[remark]}")
    columns: list[ProgressColumn] = [SpinnerColumn(), name, remark, TimeRemainingColumn()]
    if ERR.width >= WIDE:
        columns[2:2] = [BarColumn(bar_width=20)]
        columns[4:4] = [TimeElapsedColumn(), TextColumn("elapsed,")]
        columns.append(TextColumn("left"))
    hidden = quiet or not ERR.is_terminal
    with Progress(*columns, console=ERR, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=1.0, remark="")

        def show(what: str, share: float, remark: str = "") -> None:
            nonlocal told
            bar.update(task, description=what, completed=share, remark=remark)
            now = time.monotonic()
            if not quiet and not ERR.is_terminal and now - told >= SECONDS_BETWEEN_LINES:
                told = now
                line = f"{share:.0%} done: {what}  {remark}".rstrip()
                ERR.print(line, soft_wrap=True, markup=False)

        yield show
