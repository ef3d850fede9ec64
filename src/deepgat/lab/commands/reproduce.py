"""``deepgat reproduce``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgat.cli.parsing import parse_numbers
from deepgat.cli.show import ERR, OUT
from deepgat.errors import UserError
from deepgat.lab.commands.pages import show_page
from deepgat.lab.commands.peers import TARGETS, reproduce_peers
from deepgat.lab.commands.report import check_page, write_page
from deepgat.lab.commands.run import (
    STORE,
    RayOption,
    RetryOption,
    StoreOption,
    WorkersOption,
    run_with_view,
    tell_failures,
)
from deepgat.lab.experiments import Outcome, Record, RunSpec, Store, read_records, write_records
from deepgat.lab.experiments.diverged import diverged_beside, read_diverged, write_diverged
from deepgat.lab.paper import peers
from deepgat.lab.paper.experiments import (
    ALL,
    TRAINED,
    Plan,
    dataset_statistics,
    make_plan,
    plan_values,
    target_names,
    target_specs,
)
from deepgat.lab.paper.lemma_graphs import check_lemmas
from deepgat.lab.report.drifts import (
    Drift,
    attention_drifts,
    drifts_beside,
    read_drifts,
    write_drifts,
)
from deepgat.model_folder import to_json, write_whole

RECORDS = "records.jsonl"
PAGE = "report"
"""In the output folder: the runs, and the folder of the page."""


def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            help="table1, degradation, depth, table2, attention-kl, nearest-neighbor, "
            "over-smoothing, lemmas, or all of these. Beyond the paper: publications (other "
            "systems beside their own numbers), peers (all systems, 2 to 128 layers), contenders "
            "(the best of them, with many repetitions), study (the deep recipe with one thing "
            "changed at a time).",
        ),
    ],
    protocol: Annotated[
        str,
        typer.Option(
            help="authors: their settings, split and choices. honest: the paper's equations, "
            "random splits, everything chosen on validation nodes."
        ),
    ] = "authors",
    quick: Annotated[
        bool, typer.Option("--quick", help="Small graphs, few depths and seeds: minutes.")
    ] = False,
    datasets: Annotated[
        str | None,
        typer.Option(help="Names with commas; left out, those of the paper that are at hand."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Depths, e.g. 2,4,8 or 1-15; left out, the paper's.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of the weights, e.g. 0-4; left out, 0-4 or 0-1.")
    ] = None,
    splits: Annotated[
        int | None, typer.Option(help="How many random splits (honest protocol).")
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(
            help="Some of the systems (peers, contenders, study), with semicolons: 'gcnii;gat'."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="The most epochs of a run; left out, what its settings say."),
    ] = None,
    store: StoreOption = STORE,
    records: Annotated[
        Path | None,
        typer.Option(
            help="Show these records (.jsonl, .jsonl.gz, or a store) instead; nothing is run."
        ),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            help="Records that were made elsewhere (as for --records): only what they lack is run."
        ),
    ] = None,
    workers: WorkersOption = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    retry_failed: RetryOption = False,
    ray: RayOption = None,
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path(
        "reproduction"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress display.")] = False,
) -> None:
    """Reproduce a table or figure of the paper; the published numbers stand beside ours.

    Makes the runs that are missing from the store, then prints the tables and writes them (as
    Markdown and CSV) with the figures into a folder; all makes the page of deepgat report there
    too. Ctrl-C stops; the same command goes on where it stopped.

    Example: deepgat reproduce all --quick
    """
    grid: dict[str, Any] = {
        "quick": quick,
        "datasets": None if datasets is None else [part.strip() for part in datasets.split(",")],
        "layers": None if layers is None else parse_numbers(layers, "--layers"),
        "seeds": None if seeds is None else parse_numbers(seeds, "--seeds"),
        "splits": splits,
        "epochs": epochs,
    }
    if records is not None and known is not None:
        raise UserError("--records runs nothing and --known runs what is missing: choose one")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: --out expects a folder")
    if target == ALL:
        check_page(out / PAGE)  # now, and not when all has been trained

    def obtain(specs: list[RunSpec]) -> Outcome:
        if records is not None:
            return _known(specs, records)
        found = Outcome() if known is None else _among(specs, known)
        there = {*found.records, *found.diverged}
        missing = [spec for spec in specs if spec.signature not in there]
        outcome = run_with_view(missing, Store(store), workers, device, retry_failed, quiet, ray)
        outcome.records |= found.records
        diverged = read_diverged(store)
        for name in diverged.keys() & outcome.failed:
            outcome.diverged[name] = diverged[name]
            del outcome.failed[name]
        outcome.diverged |= found.diverged
        return outcome

    if systems is not None and (target not in TARGETS or target == peers.PUBLICATIONS):
        raise UserError(
            f"--systems is for the targets peers, contenders and study: leave it out for {target}"
        )
    if epochs is not None and target == peers.PUBLICATIONS:
        raise UserError(f"{target} runs the settings as they are: leave --epochs out")
    if target in TARGETS:
        grid["systems"] = None if systems is None else systems.split(";")
        specs, outcome = reproduce_peers(target, grid, obtain, out)
    else:
        sources = [store if records is None else records, *([] if known is None else [known])]
        specs, outcome = _reproduce_paper(target, make_plan(protocol, **grid), obtain, out, sources)
    if specs:
        write_records(out / RECORDS, outcome.records.values())
        write_diverged(out / RECORDS, outcome.diverged.values())
    OUT.print(f"tables, figures and records: {out}", soft_wrap=True)
    if outcome.diverged:
        where = diverged_beside(out / RECORDS)
        text = f"{len(outcome.diverged)} of {len(specs)} runs diverged: {where} says when and where"
        ERR.print(text, soft_wrap=True, markup=False)
    if target == ALL and outcome.records:
        write_page(out / RECORDS, out / PAGE, quiet=quiet)
    tell_failures(specs, outcome)


def _reproduce_paper(
    target: str,
    plan: Plan,
    obtain: Callable[[list[RunSpec]], Outcome],
    out: Path,
    sources: list[Path],
) -> tuple[list[RunSpec], Outcome]:
    names = target_names(target)
    if not plan.datasets and any(name in TRAINED for name in names):
        raise UserError(
            "none of the paper's datasets is at hand: see deepgat datasets, name some with "
            "--datasets, or try --quick"
        )
    specs = target_specs(target, plan)
    outcome = obtain(specs) if specs else Outcome()
    for name in names:
        _show(name, plan, outcome, out, sources)
    write_whole(out / "plan.json", to_json(plan_values(plan), indent=1))
    return specs, outcome


def _known(specs: list[RunSpec], source: Path) -> Outcome:
    """The runs of the plan that are among some records."""
    found = _among(specs, source)
    if specs and not found.records:
        raise UserError(
            f"{source} has no run of this plan: name the --datasets, --layers, --seeds and "
            "--epochs that its runs were made with"
        )
    count = len({spec.signature for spec in specs})
    if missing := count - len(found.records) - len(found.diverged):
        ERR.print(f"{missing} of {count} runs are not in {source}", markup=False)
    return found


def _among(specs: list[RunSpec], source: Path) -> Outcome:
    """What a store, or a file of records and the one beside it, knows of some runs."""
    wanted = {spec.signature for spec in specs}
    records = {r["signature"]: r for r in read_records(source) if r["signature"] in wanted}
    diverged = read_diverged(source)
    lost = {name: diverged[name] for name in (wanted - records.keys()) & diverged.keys()}
    return Outcome(records, diverged=lost)


def _show(name: str, plan: Plan, outcome: Outcome, out: Path, sources: list[Path]) -> None:
    """Print a target's tables and write its files; ``sources``: stores, or files of records."""
    from deepgat.lab.report import targets

    if name == "table1":
        page = targets.table1_page(dataset_statistics(plan.table1_datasets))
    elif name == "lemmas":
        page = targets.lemma_page(list(check_lemmas(plan.quick)))
    elif name == "attention-kl":
        found = _records_of(name, plan, outcome)
        drifts = [drift for place in sources for drift in _drifts(found, place, plan.protocol)]
        if not drifts:
            where = " and ".join(map(str, sources))
            ERR.print(f"attention-kl: no attention of these runs in {where}", markup=False)
            return
        write_drifts(drifts_beside(out / RECORDS), drifts)
        page = targets.attention_page(drifts, plan.protocol)
    else:
        page = targets.trained_page(name, _records_of(name, plan, outcome), plan.protocol)
    show_page(page, out, plan.quick)


def _drifts(records: list[Record], source: Path, protocol: str) -> list[Drift]:
    """From the runs' arrays, or from the file beside their records."""
    if source.is_dir():
        return attention_drifts(records, Store(source).arrays, protocol)
    known = {record["signature"] for record in records}
    return [d for d in read_drifts(drifts_beside(source)) if known.issuperset(d.runs)]


def _records_of(name: str, plan: Plan, outcome: Outcome) -> list[Record]:
    signatures = [spec.signature for spec in target_specs(name, plan)]
    return [outcome.records[s] for s in signatures if s in outcome.records]


app = typer.Typer(add_completion=False, rich_markup_mode="rich")
app.command()(reproduce)
