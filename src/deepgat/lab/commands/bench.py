"""``deepgat bench``."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from deepgat.cli.show import ERR, OUT
from deepgat.errors import UserError, unknown_name
from deepgat.lab.bench import SUITES, machine, memory_comes_back, run_suites
from deepgat.lab.bench.suites import Options
from deepgat.lab.report.speed import COLUMNS, TITLES, cell
from deepgat.training.loop import choose_device


def bench(
    tables: Annotated[
        list[str] | None, typer.Argument(help=f"Which tables: {', '.join(SUITES)}; all by default.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the rows to this JSON file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small graphs, few rounds.")] = False,
    compiled: Annotated[
        bool, typer.Option(help="Measure torch.compile of the peers too (minutes to compile).")
    ] = True,
) -> None:
    """Measure speed and memory against PyTorch Geometric and the plain form.

    Everything in one table is measured in turn in one run, fastest of several rounds, so that
    the ratios hold on a busy machine too.
    """
    names = tables or list(SUITES)
    for name in names:
        if name not in SUITES:
            raise unknown_name("table", name, SUITES)
    if out is not None and out.is_dir():
        raise UserError(f"{out} is a folder: --out expects the name of a JSON file")
    where = choose_device(device)
    if where.type == "cpu" and not memory_comes_back():
        ERR.print(
            "torch's allocator keeps what is freed, so the peaks of memory below are too low: set "
            "MIMALLOC_PURGE_DELAY=0 and start again to measure them (the times may then differ)",
            markup=False,
        )
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {"measured": datetime.now(UTC).isoformat(timespec="seconds")}
    record |= {"machine": machine(where), "rows": rows}
    for name in names:
        measured = []
        for row in run_suites([name], Options(where, quick, compiled)):
            ERR.print(f"{name}: {row['graph']}, {row['way']}: {row['milliseconds']:.2f} ms")
            measured.append(row)
            rows.append(row)
            if out is not None:  # after every row: some take minutes, and Ctrl-C keeps them
                _write(out, record)
        OUT.print(_table(name, measured))
    if out is not None:
        OUT.print(f"Rows: {out}", soft_wrap=True)


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=TITLES[name], title_justify="left")
    shown = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    for key in shown:
        table.add_column(COLUMNS[key], justify="left" if key in ("graph", "way") else "right")
    for row in rows:
        table.add_row(*(cell(row.get(key)) for key in shown))
    return table


def _write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(part, path)


app = typer.Typer(add_completion=False, rich_markup_mode="rich")
app.command()(bench)
