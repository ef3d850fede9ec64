"""``deepgat reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure

from deepgat.cli.parsing import parse_numbers
from deepgat.cli.show import ERR, OUT, plain_table
from deepgat.errors import UserError
from deepgat.files import beside
from deepgat.lab.commands.report import report
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
from deepgat.lab.paper import peers, study
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
from deepgat.lab.report import sections, systems_by_depth
from deepgat.lab.report.attention_drift import drifts_beside, find_drifts, write_drifts
from deepgat.lab.report.report_folder import check_report_folder, write_target
from deepgat.lab.report.table import Table
from deepgat.model_folder import to_json, write_whole

RECORDS, REPORT = "records.jsonl", "report"
"""In the output folder: the records of the runs, and the folder of the report."""
DEPTH_TARGETS = {
    peers.PEERS: (peers.peer_specs, peers.OURS),
    peers.CONTEST: (peers.contender_specs, peers.OURS),
    study.STUDY: (study.study_specs, study.BASE),
}
"""Target → the function that lists its runs, and the system that the others are compared with."""
QUICK_NOTE = (
    "--quick: small graphs, narrow models, short training; not to be compared with the paper."
)


def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            help="table1, degradation, depth, table2, attention-kl, nearest-neighbor, "
            "over-smoothing, lemmas, or all of these. Beyond the paper: publications (other "
            "systems beside their published numbers), peers (all systems, 2 to 128 layers), "
            "contenders (the best of them, with many repetitions), study (the deep recipe with "
            "one change at a time).",
        ),
    ],
    protocol: Annotated[
        str,
        typer.Option(
            help="authors: the settings, split and model selection of the authors' code. honest: "
            "the paper's equations, random splits, model selection on validation nodes."
        ),
    ] = "authors",
    quick: Annotated[
        bool, typer.Option("--quick", help="Small graphs, few depths and seeds; takes minutes.")
    ] = False,
    datasets: Annotated[
        str | None,
        typer.Option(help="Names, separated by commas. Default: the paper's, if installed."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Depths, e.g. 2,4,8 or 1-15. Default: the paper's.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of the weights, e.g. 0-4. Default: 0-4 or 0-1.")
    ] = None,
    splits: Annotated[
        int | None, typer.Option(help="Number of random splits (honest protocol).")
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(
            help="Systems of peers, contenders or study, separated by semicolons: 'gcnii;gat'."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Maximum number of epochs. Default: that of each setting."),
    ] = None,
    store: StoreOption = STORE,
    records: Annotated[
        Path | None,
        typer.Option(help="Use only these records (.jsonl, .jsonl.gz or a store) and run nothing."),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            help="Run only what is missing in these records (.jsonl, .jsonl.gz or a store)."
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
    """Reproduce a table or figure of the paper, with the published numbers beside ours.

    Runs what is missing in the store. Then prints the tables and writes them, as Markdown and CSV,
    with the figures into a folder. The target all also writes the page of deepgat report. Ctrl-C
    stops; the same command continues.

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
        check_report_folder(out / REPORT)  # before training, not after it

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

    if systems is not None and target not in DEPTH_TARGETS:
        raise UserError(
            f"--systems is for the targets peers, contenders and study: leave it out for {target}"
        )
    if epochs is not None and target == peers.PUBLICATIONS:
        raise UserError(f"{target} runs the settings as they are: leave --epochs out")
    if target == peers.PUBLICATIONS:
        specs, outcome = _publications(grid["datasets"], obtain, out)
    elif target in DEPTH_TARGETS:
        grid["systems"] = None if systems is None else systems.split(";")
        frozen = None if target != study.STUDY else _frozen(records or known)
        specs, outcome = _systems_by_depth(target, grid, obtain, out, frozen)
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
        report(out / RECORDS, out / REPORT, quiet=quiet)
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
        _show_target(name, plan, outcome, out, sources)
    write_whole(out / "plan.json", to_json(plan_values(plan), indent=1))
    return specs, outcome


def _publications(
    datasets: list[str] | None, obtain: Callable[[list[RunSpec]], Outcome], out: Path
) -> tuple[list[RunSpec], Outcome]:
    settings = peers.publications(datasets)
    specs = [spec for setting in settings for spec in setting.specs]
    outcome = obtain(specs)
    rows = [
        (setting.name, setting.published, _finished(setting.specs, outcome)) for setting in settings
    ]
    _show(peers.PUBLICATIONS, [systems_by_depth.publication_table(rows)], {}, out)
    return specs, outcome


def _systems_by_depth(
    target: str,
    grid: dict[str, Any],
    obtain: Callable[[list[RunSpec]], Outcome],
    out: Path,
    frozen: Path | None,
) -> tuple[list[RunSpec], Outcome]:
    """``frozen``: a file of the study's rows that are not run any more."""
    list_specs, base = DEPTH_TARGETS[target]
    labelled = list_specs(**grid)
    specs = list(dict.fromkeys(spec for own in labelled.values() for spec in own))
    outcome = obtain(specs)
    found = {label: _finished(own, outcome) for label, own in labelled.items()}
    if frozen is not None and grid["systems"] is None:
        found = study.with_frozen_rows(found, specs, frozen)
    elif target == study.STUDY:
        base = study.PRESET
    lost = {label: _lost(own, outcome) for label, own in labelled.items()}
    tables = [
        *systems_by_depth.system_tables(found, target, "test", lost),
        *systems_by_depth.pair_tables(found, target, base),
        *systems_by_depth.system_tables(found, target, "val", lost),
        *systems_by_depth.overview_tables(found, target, "test", lost),
        *systems_by_depth.overview_tables(found, target, "val", lost),
    ]
    figures = systems_by_depth.system_figures(tables, target)
    _show(target, tables, figures, out, grid["quick"])
    return specs, outcome


def _frozen(records: Path | None) -> Path | None:
    """The frozen rows that belong to a file of the study's records, if it has any."""
    if records is None:
        return None
    path = beside(records, "frozen").with_suffix(".jsonl.gz")
    return path if path.exists() else None


def _finished(specs: Iterable[RunSpec], outcome: Outcome) -> list[Record]:
    return [outcome.records[s.signature] for s in specs if s.signature in outcome.records]


def _lost(specs: Iterable[RunSpec], outcome: Outcome) -> set[tuple[str, int]]:
    """The pairs of dataset and depth at which every run diverged."""
    groups: dict[tuple[str, int], list[str]] = {}
    for spec in specs:
        groups.setdefault((spec.data.dataset, spec.layers), []).append(spec.signature)
    return {place for place, names in groups.items() if outcome.diverged.keys() >= set(names)}


def _known(specs: list[RunSpec], source: Path) -> Outcome:
    """The records of the planned runs; an error if there are none."""
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
    """The results of ``specs`` in a store, or in a file of records and the files beside it."""
    wanted = {spec.signature for spec in specs}
    records = {r["signature"]: r for r in read_records(source) if r["signature"] in wanted}
    diverged = read_diverged(source)
    lost = {name: diverged[name] for name in (wanted - records.keys()) & diverged.keys()}
    return Outcome(records, diverged=lost)


def _show_target(name: str, plan: Plan, outcome: Outcome, out: Path, sources: list[Path]) -> None:
    """Print and write a target of the paper; ``sources`` are stores or files of records."""
    if name == "table1":
        section = sections.make_section(name, dataset_statistics(plan.table1_datasets))
    elif name == "lemmas":
        section = sections.make_section(name, list(check_lemmas(plan.quick)))
    else:
        records = _finished(target_specs(name, plan), outcome)
        if name == "attention-kl":
            drifts = [
                drift for place in sources for drift in find_drifts(place, records, plan.protocol)
            ]
            if not drifts:
                where = " and ".join(map(str, sources))
                ERR.print(f"attention-kl: no attention of these runs in {where}", markup=False)
                return
            write_drifts(drifts_beside(out / RECORDS), drifts)
            section = sections.make_section(name, drifts, plan.protocol)
        else:
            section = sections.make_section(name, records, plan.protocol)
    _show(name, section.tables, section.figures(), out, plan.quick)


def _show(
    target: str,
    tables: Sequence[Table],
    figures: Mapping[str, Figure],
    out: Path,
    quick: bool = False,
) -> None:
    if quick:
        tables = [replace(table, notes=[*table.notes, QUICK_NOTE]) for table in tables]
    for table in tables:
        OUT.print(plain_table(table.title, table.columns, table.rows))
        for note in table.notes:
            OUT.print(note)
        OUT.print()
    write_target(target, tables, figures, out)


app = typer.Typer(add_completion=False, rich_markup_mode="rich")
app.command()(reproduce)
