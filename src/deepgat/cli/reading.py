"""Options and notes of all commands that read your own graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from deepgat.cli.show import ERR
from deepgat.data import NodeDataset, ReadOptions, load_graph
from deepgat.errors import UserError, printable

ReadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        metavar="NAME=VALUE",
        help="How to read your own graph, e.g. --read missing=mean; repeatable.",
    ),
]


def parse_reading(texts: Sequence[str] | None) -> dict[str, Any]:
    """["missing=mean", "undirected=no"] → options for reading a graph; unknown ones are refused."""
    given = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--read {text!r}: expected NAME=VALUE, for example missing=mean")
        given[name.strip().replace("-", "_")] = value.strip()
    chosen = ReadOptions.of(given)
    return {name: getattr(chosen, name) for name in given}


def load_data(
    name: str, split: str | None, read: Sequence[str] | None, tell: bool = True
) -> NodeDataset:
    """A dataset by name or path; prints notes on what reading changed."""
    data = load_graph(name, split, **parse_reading(read))
    if tell:
        tell_notes(data)
    return data


def tell_notes(data: NodeDataset) -> None:
    """Print notes on what reading changed in a graph."""
    for note in data.notes:
        ERR.print(f"[yellow]note:[/] {escape(printable(note))}", soft_wrap=True)
