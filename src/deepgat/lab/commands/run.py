"""``deepgat run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from deepgat.cli import options as opt
from deepgat.cli.show import ERR, echo_json, print_records
from deepgat.lab.commands.watch import RunsView, describe
from deepgat.lab.experiments import Outcome, RunSpec, Store, read_specs, run_all

StoreOption = Annotated[
    Path, typer.Option("--store", help="Folder of finished runs; created if missing.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(help="Parallel runs, which share a GPU. Default: depends on the device."),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Make the runs on a Ray cluster that sees the store: its address, auto, or local.",
    ),
]
RetryOption = Annotated[
    bool, typer.Option("--retry-failed", help="Also retry runs that failed before.")
]
STORE = Path("deepgat-runs")


def run(
    files: Annotated[
        list[str],
        typer.Argument(
            help="TOML files that describe runs, or names of shipped ones (see deepgat models).",
            metavar="SPEC.toml...",
        ),
    ],
    store: StoreOption = STORE,
    workers: WorkersOption = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    retry_failed: RetryOption = False,
    ray: RayOption = None,
    json: opt.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress display.")] = False,
) -> None:
    """Make the runs that files describe, unless the store has them.

    A file has the sections \\[data], \\[settings], \\[training] and \\[analysis] of a run; its
    system and preset supply what they do not name. \\[sweep] lists values of dotted names, as in
    training.seed = \\[0, 1, 2], for one run per combination. deepgat store show prints any run in
    this form.

    Ctrl-C stops; the same command continues. Exit code 1 if some runs failed.

    Example: deepgat run gcnii-cora
    """
    specs = list(dict.fromkeys(spec for path in files for spec in read_specs(path)))
    outcome = run_with_view(specs, Store(store), workers, device, retry_failed, quiet, ray)
    records = [outcome.records[s.signature] for s in specs if s.signature in outcome.records]
    if json:
        for record in records:
            echo_json(record)
    elif records:
        print_records(f"micro-F1 (%) of {len(records)} runs in {store}", records)
    tell_failures(specs, outcome)


def run_with_view(
    specs: list[RunSpec],
    store: Store,
    workers: int | None,
    device: str,
    retry_failed: bool,
    quiet: bool,
    ray: str | None = None,
) -> Outcome:
    """Run what is missing, with a live view; Ctrl-C exits with 130."""
    try:
        with RunsView(quiet) as view:
            return run_all(
                specs,
                store,
                workers=workers,
                device=device,
                retry_failed=retry_failed,
                on_event=view,
                ray=ray,
            )
    except KeyboardInterrupt:
        _tell(
            f"interrupted: the finished runs are in {store.folder}, and the same command goes on "
            "from there"
        )
        sys.exit(130)


def tell_failures(specs: list[RunSpec], outcome: Outcome) -> None:
    """Print failed runs; exit with code 1 if there are any."""
    if not outcome.failed:
        return
    for spec in specs:
        if error := outcome.failed.get(spec.signature):
            _tell(f"failed: {spec.signature} {describe(spec)}: {error}")
    _tell(
        f"{len(outcome.failed)} of {len(specs)} runs failed: deepgat store show SIGNATURE has the "
        "traceback, --retry-failed tries them again"
    )
    sys.exit(1)


def _tell(text: str) -> None:
    ERR.print(text, soft_wrap=True, markup=False)
