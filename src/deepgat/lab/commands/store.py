"""``deepgat store``: list, show, move and check finished runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgat.cli import options as opt
from deepgat.cli.show import ERR, OUT, echo_json, percent, print_records
from deepgat.errors import UserError, printable
from deepgat.files import to_json
from deepgat.lab.commands.run import STORE, StoreOption
from deepgat.lab.commands.watch import describe
from deepgat.lab.experiments import RunSpec, Store, export_runs, import_runs
from deepgat.lab.experiments.store import DAMAGED

store = typer.Typer(
    name="store",
    help="Look at finished runs, and move them between machines.",
    no_args_is_help=True,
)


@store.command("ls")
def ls(
    store: StoreOption = STORE,
    dataset: Annotated[str | None, typer.Option(help="Only runs on this dataset.")] = None,
    model: Annotated[str | None, typer.Option(help="Only runs of this model.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Failed runs instead.")] = False,
    json: opt.Json = False,
) -> None:
    """List the runs in a store."""
    opened = Store(store, create=False)
    found = [
        record
        for record in (opened.failures().values() if failed else opened.records())
        if dataset in (None, record["data"]["dataset"]) and model in (None, record["system"])
    ]
    if json:
        for record in found:
            echo_json(record)
    elif failed:
        for record in found:
            error = printable(record["error"])
            OUT.print(f"{record['signature']}  {describe(record)}: {error}", soft_wrap=True)
    else:
        print_records(f"micro-F1 (%) of {len(found)} runs in {store}", found)
        if count := len(opened.failures()):
            OUT.print(f"{count} failed: deepgat store ls --failed")


@store.command("show")
def show(
    signature: Annotated[str, typer.Argument(help="A signature or its beginning.")],
    store: StoreOption = STORE,
) -> None:
    """Show one run: its settings as TOML, and its result."""
    opened = Store(store, create=False)
    found = opened.find(signature)
    record = opened.get(found) or opened.failure(found)
    if record is None:
        raise UserError(f"the run {found} in {store} is damaged: see deepgat store verify")
    try:
        typer.echo(RunSpec.from_dict(record).to_toml())
    except UserError as error:
        raise UserError(f"the run {found} in {store} cannot be shown: {error}") from error
    typer.echo("".join(f"# {printable(line)}\n" for line in _outcome(record)), nl=False)


@store.command("rm")
def rm(
    signatures: Annotated[list[str], typer.Argument(help="Signatures or their beginnings.")],
    store: StoreOption = STORE,
) -> None:
    """Remove runs from a store."""
    opened = Store(store, create=False)
    for signature in [opened.find(beginning) for beginning in signatures]:
        opened.remove(signature)
        OUT.print(f"removed {signature}")


@store.command("export")
def export(
    target: Annotated[Path, typer.Argument(help="A .tar, .tar.gz, .jsonl or .jsonl.gz file.")],
    signatures: Annotated[
        list[str] | None, typer.Argument(help="Signatures or their beginnings; default: all runs.")
    ] = None,
    store: StoreOption = STORE,
) -> None:
    """Copy runs to a tar file, or only their records to a .jsonl file."""
    opened = Store(store, create=False)
    chosen = None if not signatures else [opened.find(beginning) for beginning in signatures]
    count = export_runs(opened, target, chosen)
    OUT.print(f"{count} runs in {target}", soft_wrap=True)


@store.command("import")
def import_(
    sources: Annotated[
        list[Path], typer.Argument(help="Tar files of deepgat store export, or other stores.")
    ],
    store: StoreOption = STORE,
) -> None:
    """Add runs made elsewhere; checks every run and replaces none.

    Names what it leaves out, such as damaged runs; exit code 1 if there is any.
    """
    left_out: dict[str, str] = {}
    for source in sources:
        result = import_runs(Store(store), source)
        OUT.print(f"{source}: {len(result.added)} added, {len(result.present)} were here already")
        left_out |= result.left_out
    for signature, why in left_out.items():
        ERR.print(f"left out {signature}: {why}", soft_wrap=True, markup=False)
    if left_out:
        sys.exit(1)


@store.command("verify")
def verify(store: StoreOption = STORE) -> None:
    """Check every run against its checksums, and set damaged ones aside.

    Exit code 1 if some were damaged.
    """
    good, damaged = Store(store, create=False).verify()
    for signature, why in damaged.items():
        text = f"damaged {signature}: {why}; set aside in {store / DAMAGED}"
        ERR.print(text, soft_wrap=True, markup=False)
    OUT.print(f"{good} runs are whole, {len(damaged)} damaged")
    if damaged:
        sys.exit(1)


def _outcome(record: dict[str, Any]) -> list[str]:
    """The result of a run, line by line."""
    if "error" in record:
        return [f"failed: {record['error']}", *record["traceback"].splitlines()]
    scores = {part: percent(share) for part, share in record["micro_f1"].items()}
    return [
        f"signature {record['signature']}",
        "micro-F1 (%): " + ", ".join(f"{part} {share}" for part, share in scores.items()),
        f"best epoch {record['best_epoch']} of {record['epochs']}, ended by {record['stopped']}",
        f"{record['seconds']:.1f} s of training, {record['wall_seconds']:.1f} s in all",
        f"peak {record['peak_memory']['bytes'] / 2**20:.0f} MiB of {record['peak_memory']['of']}",
        f"on {record['hardware']}",
        "with " + ", ".join(f"{name} {text}" for name, text in record["versions"].items()),
        *(f"{name}: {to_json(value).strip()}" for name, value in record["measures"].items()),
    ]
