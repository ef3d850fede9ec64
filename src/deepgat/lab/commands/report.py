"""``deepgat report``."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from deepgat.cli.show import ERR, OUT
from deepgat.data import list_datasets
from deepgat.errors import UserError, printable
from deepgat.lab.experiments import Store
from deepgat.lab.paper.experiments import dataset_statistics
from deepgat.lab.paper.lemmas import check_lemmas
from deepgat.lab.report.attention_drift import find_drifts
from deepgat.lab.report.records import read_any_records, with_short_names
from deepgat.lab.report.report_folder import check_report_folder, write_report
from deepgat.lab.report.sections import make_report, make_section


def report(
    source: Annotated[
        Path,
        typer.Argument(
            help="A store of runs, or a .jsonl or .jsonl.gz file of records, written by deepgat "
            "store export, deepgat reproduce or deepgat train --json."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the report; replaces an earlier report.")
    ] = Path("report"),
    records_only: Annotated[
        bool,
        typer.Option(
            "--records-only", help="Leave out Table 1 and the lemmas, which need no runs."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress display.")] = False,
) -> None:
    """Turn finished runs into one HTML page that works offline, tables, and figures.

    Writes report.html (sortable tables, interactive figures, how each number was made), tables as
    Markdown and CSV, and figures as PDF and PNG. Trains nothing.

    Example: deepgat report deepgat-runs --out report
    """
    check_report_folder(out)
    status = ERR.status("reading")
    with nullcontext() if quiet else status:
        store = Store(source, create=False) if source.is_dir() else None
        records = list(store.records()) if store else read_any_records(source)
        if not records:
            raise UserError(
                f"{source} has no finished run to report: make some with deepgat reproduce or "
                "deepgat run"
            )
        named = with_short_names([*records, *(store.failures().values() if store else ())])
        records, failures = named[: len(records)], named[len(records) :]
        common = []
        if not records_only:
            status.update("Table 1 and the lemmas")
            here = {listing.key for listing in list_datasets() if listing.at_hand}
            names = sorted(here & {record["dataset"] for record in records})
            common = [make_section("lemmas", list(check_lemmas(quick=True)))]
            if names:
                common.insert(0, make_section("table1", dataset_statistics(names)))
        status.update("tables and figures")
        find = partial(find_drifts, source)
        made = make_report(printable(source.resolve().name), records, failures, find, common)
        page = write_report(made, out)
    OUT.print(f"{len(records)} runs in {page}", soft_wrap=True)
