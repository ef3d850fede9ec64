"""Printing a page of tables, and writing it with its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from deepgat.cli.show import OUT, plain_table
from deepgat.lab.report.targets import Page, write_page

QUICK_NOTE = (
    "--quick: small graphs, narrow models, short training; not to be compared with the paper."
)


def show_page(page: Page, out: Path, quick: bool = False) -> None:
    """Print the tables of a page, and write them with its figures."""
    if quick:
        tables = [replace(table, notes=[*table.notes, QUICK_NOTE]) for table in page.tables]
        page = replace(page, tables=tables)
    for table in page.tables:
        OUT.print(plain_table(table.title, table.columns, table.rows))
        for note in table.notes:
            OUT.print(note)
        OUT.print()
    write_page(page, out)
