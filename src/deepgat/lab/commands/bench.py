"""``deepgat bench``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgat.cli.show import ERR, OUT, print_table
from deepgat.errors import UserError, unknown_name
from deepgat.files import to_json, write_whole
from deepgat.lab.bench.measure import machine
from deepgat.lab.bench.suites import SUITES, Options
from deepgat.lab.report.speed import suite_table
from deepgat.training.device import choose_device


def bench(
    tables: Annotated[
        list[str] | None,
        typer.Argument(help=f"Tables to measure: {', '.join(SUITES)}. Default: all."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the rows to this JSON file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small graphs, few rounds.")] = False,
) -> None:
    """Measure speed and memory against PyTorch Geometric and a plain PyTorch implementation.

    The ways of one table are measured in turn, and the fastest of several rounds counts, so that
    ratios hold on a busy machine too.
    """
    names = tables or list(SUITES)
    for name in names:
        if name not in SUITES:
            raise unknown_name("table", name, SUITES)
    if out is not None and out.is_dir():
        raise UserError(f"{out} is a folder: --out expects the name of a JSON file")
    where = choose_device(device)
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {"measured": datetime.now(UTC).isoformat(timespec="seconds")}
    record |= {"machine": machine(where), "rows": rows}
    for name in names:
        measured = []
        for row in SUITES[name](Options(where, quick)):
            ERR.print(f"{name}: {row['graph']}, {row['way']}: {row['milliseconds']:.2f} ms")
            measured.append(row)
            rows.append(row)
            if out is not None:  # after every row, so that Ctrl-C keeps what was measured
                write_whole(out, to_json(record, indent=1))
        table = suite_table(name, measured)
        print_table(table.title, table.columns, table.rows)
    if out is not None:
        OUT.print(f"Rows: {out}", soft_wrap=True)


app = typer.Typer(add_completion=False, rich_markup_mode="rich")
app.command()(bench)
