"""``deepgat bench``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgat.cli.show import ERR, OUT, print_table
from deepgat.errors import UserError, unknown_name
from deepgat.files import to_json, write_whole
from deepgat.lab.bench.large_training import SECONDS
from deepgat.lab.bench.measure import machine
from deepgat.lab.bench.planted_graphs import LEAST_PAIRS, MOST_PAIRS
from deepgat.lab.bench.suites import SUITES, Options
from deepgat.lab.report.speed import suite_table, training_result
from deepgat.training.device import choose_device


def bench(
    tables: Annotated[
        list[str] | None,
        typer.Argument(help=f"Tables to measure: {', '.join(SUITES)}. Default: all."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the rows to this JSON file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small graphs, few rounds.")] = False,
    sizes: Annotated[
        str,
        typer.Option(
            help="training: undirected edges of the graphs, as in 1e6,62e6. "
            "Default: up to 1e7, on a GPU up to 2e8."
        ),
    ] = "",
    seconds: Annotated[
        float, typer.Option(help="training: time budget of each way at each size.")
    ] = SECONDS,
) -> None:
    """Measure speed and memory against PyTorch Geometric and a plain PyTorch implementation.

    The ways of one table are measured in turn, and the fastest of several rounds counts, so that
    ratios hold on a busy machine too. The table training has whole training runs instead, one each,
    and goes from small graphs to large ones until every way to train is out of memory or time.
    Ctrl-C ends the measurement and keeps the rows in the JSON file.
    """
    names = tables or list(SUITES)
    for name in names:
        if name not in SUITES:
            raise unknown_name("table", name, SUITES)
    if out is not None and out.is_dir():
        raise UserError(f"{out} is a folder: --out expects the name of a JSON file")
    if not seconds > 0:
        raise UserError(f"--seconds is {seconds:g}: expected a number above 0")
    asked = read_sizes(sizes)
    where = choose_device(device)
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {"measured": datetime.now(UTC).isoformat(timespec="seconds")}
    record |= {"machine": machine(where), "rows": rows}
    for name in names:
        measured = []
        with ERR.status(name) as status:
            options = Options(where, quick, asked, seconds, status.update)
            for row in SUITES[name](options):
                ERR.print(f"{name}: {row['graph']}, {row['way']}: {_result(row)}")
                measured.append(row)
                rows.append(row)
                if out is not None:  # after every row, so that Ctrl-C keeps what was measured
                    write_whole(out, to_json(record, indent=1))
        table = suite_table(name, measured)
        print_table(table.title, table.columns, table.rows)
    if out is not None:
        OUT.print(f"Rows: {out}", soft_wrap=True)


def read_sizes(text: str) -> tuple[int, ...]:
    """ "1e6,62e6" → numbers of edges."""
    sizes = []
    for part in filter(None, text.split(",")):
        try:
            size = float(part)
        except ValueError:
            size = 0.0
        if not LEAST_PAIRS <= size <= MOST_PAIRS:
            raise UserError(
                f"--sizes has {part.strip()!r}: expected numbers of edges from {LEAST_PAIRS} to "
                f"{MOST_PAIRS:.0e}, as in 1e6,62e6"
            )
        sizes.append(int(size))
    return tuple(sizes)


def _result(row: dict[str, Any]) -> str:
    if "milliseconds" in row:
        return f"{row['milliseconds']:.2f} ms"
    return training_result(row)
