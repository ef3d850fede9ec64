"""``deepgat report``."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgat.cli.show import ERR, OUT
from deepgat.data import list_datasets
from deepgat.errors import UserError
from deepgat.lab.experiments import Record, Store, read_records
from deepgat.lab.experiments.store_entry import DamagedEntry, parse_record
from deepgat.lab.paper.experiments import dataset_statistics
from deepgat.lab.paper.lemma_graphs import check_lemmas
from deepgat.lab.report.drifts import drifts_beside, read_drifts

TITLE = "Deep graph attention: results"
NEEDED: dict[str, type | tuple[type, ...]] = {
    "dataset": str,
    "split": str,
    "seed": int,
    "micro_f1": dict,
    "loss": dict,
    "best_epoch": int,
    "epochs": int,
    "stopped": str,
    "seconds": (int, float),
    "model": dict,
    "training": dict,
}
"""What a line of ``deepgat train --json`` has."""


def report(
    source: Annotated[
        Path,
        typer.Argument(
            help="A store of runs, or records as .jsonl or .jsonl.gz: of deepgat store export, "
            "deepgat reproduce, or deepgat train --json."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the report; an earlier one is replaced.")
    ] = Path("report"),
    title: Annotated[str, typer.Option(help="The title of the page.")] = TITLE,
    records_only: Annotated[
        bool,
        typer.Option(
            "--records-only", help="Leave out what no run is needed for: Table 1 and the lemmas."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress display.")] = False,
) -> None:
    """Turn finished runs into one HTML page that works offline, tables, and figures.

    Writes report.html (sortable tables, interactive figures, how each number was made), tables as
    Markdown and CSV, and figures as PDF and PNG. Trains nothing.

    Example: deepgat report deepgat-runs --out report
    """
    write_page(source, out, title, records_only, quiet)


def check_page(out: Path) -> None:
    """Refuse a folder that holds something else than an earlier report."""
    from deepgat.lab.report.writing import check_report_folder  # here: it loads a plotting library

    check_report_folder(out)


def write_page(
    source: Path, out: Path, title: str = TITLE, records_only: bool = False, quiet: bool = False
) -> None:
    """The report of a store or of records, into a folder; it says where."""
    from deepgat.lab.report import contents, writing

    check_page(out)
    status = ERR.status("reading")
    with nullcontext() if quiet else status:
        records, failures, store = _read(source)
        if not records:
            raise UserError(
                f"{source} has no finished run to report: make some with deepgat reproduce or "
                "deepgat run"
            )
        statistics: list[dict[str, Any]] = []
        lemmas: list[Any] = []
        if not records_only:
            status.update("Table 1 and the lemmas")
            here = {listing.key for listing in list_datasets() if listing.at_hand}
            names = dict.fromkeys(record["dataset"] for record in records)
            statistics = dataset_statistics(sorted(here.intersection(names)))
            lemmas = list(check_lemmas(quick=True))
        status.update("tables and figures")
        made = contents.make_contents(
            contents.Source(
                source.resolve().name,
                records,
                failures,
                None if store is None else store.arrays,
                statistics,
                lemmas,
                [] if store is not None else read_drifts(drifts_beside(source)),
            ),
            title,
        )
        page = writing.write_report(made, out, on_file=status.update)
    OUT.print(f"{len(records)} runs in {page}", soft_wrap=True)


def _read(source: Path) -> tuple[list[Record], list[Record], Store | None]:
    """(records, failures, the store that has the arrays if it is one)."""
    if source.is_dir():
        store = Store(source, create=False)
        return list(store.records()), list(store.failures().values()), store
    found = {record["signature"]: record for record in read_records(source, _record)}
    return list(found.values()), [], None


def _record(line: str) -> Record:
    """A record with a checksum is held against it; one of deepgat train is named by its text."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DamagedEntry("it is not JSON") from error
    if not isinstance(record, dict):
        raise DamagedEntry("it is not a JSON object")
    if "checksum" in record:
        return parse_record(line)
    for name, kind in NEEDED.items():
        if not isinstance(record.get(name), kind):
            raise DamagedEntry(f"it has no {name}" if name not in record else f"its {name} is odd")
    for name, kind in (("model", str), ("score", str), ("layers", int)):
        if not isinstance(record["model"].get(name), kind):
            raise DamagedEntry(f"its model has no {name}")
    scores = [*record["micro_f1"].values(), *record["loss"].values()]
    if not all(score is None or isinstance(score, int | float) for score in scores):
        raise DamagedEntry("its scores are no numbers")
    signature = hashlib.sha256(line.strip().encode()).hexdigest()[:16]
    return {"measures": {}, **record, "signature": signature}


app = typer.Typer(add_completion=False, rich_markup_mode="rich")
app.command()(report)
