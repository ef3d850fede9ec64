"""``deepgat reproduce``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure

from deepgat.cli.parsing import parse_numbers
from deepgat.cli.show import ERR, OUT, print_table
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
from deepgat.lab.experiments.spec import check_count
from deepgat.lab.experiments.transfer import diverged_beside, read_diverged, write_diverged
from deepgat.lab.paper import ladder, peers, searches, study
from deepgat.lab.paper.experiments import (
    ALL,
    TRAINED,
    Plan,
    dataset_statistics,
    make_plan,
    target_names,
    target_specs,
)
from deepgat.lab.paper.lemmas import check_lemmas
from deepgat.lab.report import sections, systems_by_depth
from deepgat.lab.report.attention_drift import drifts_beside, find_drifts, write_drifts
from deepgat.lab.report.ladder import ladder_figures, ladder_tables
from deepgat.lab.report.report_folder import check_report_folder, write_target
from deepgat.lab.report.searches import search_tables
from deepgat.lab.report.table import Table, filed
from deepgat.training.device import choose_device

RECORDS, REPORT = "records.jsonl", "report"
"""In the output folder: the records of the runs, and the folder of the report."""
DEPTH_TARGETS = {
    peers.PEERS: peers.peer_specs,
    peers.CONTEST: peers.contender_specs,
    study.STUDY: study.study_specs,
    ladder.LADDER: ladder.ladder_specs,
    searches.AUTO: searches.search_specs,
}
"""Target → the function that lists its runs."""
QUICK_NOTE = "--quick: small graphs and models, short training; not to be compared with the paper."


def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            help="table1, degradation, depth, table2, attention-kl, nearest-neighbor, "
            "over-smoothing, lemmas, or all of these. Beyond the paper: publications (other "
            "systems beside their published numbers), peers (all systems, 2 to 128 layers), "
            "contenders (the best of them, with many repetitions), study (the deep recipe with "
            "one change at a time), ladder (the deep recipe with given classes in its attention, a "
            "share of them right), auto (the default on many graphs, beside single systems).",
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
        typer.Option(
            help="Names, separated by commas. Default: those of the target that are at hand."
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Depths, e.g. 2,4,8 or 1-15. Default: the target's.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of the weights, e.g. 0-4. Default: 0-4 or 0-1.")
    ] = None,
    splits: Annotated[
        int | None, typer.Option(help="Number of random splits, where they are random.")
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(
            help="Systems of peers, contenders or auto, or rows of study or ladder, separated by "
            "semicolons: 'gcnii;gat'."
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
    lists = [grid[name] for name in ("datasets", "layers", "seeds") if grid[name] is not None]
    told = math.prod(map(len, lists)) * (splits or 1)
    check_count(told, "the product of --datasets, --layers, --seeds and --splits")
    if records is not None and known is not None:
        raise UserError("--records runs nothing and --known runs what is missing: choose one")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: --out expects a folder")
    if systems is not None and target not in DEPTH_TARGETS:
        raise UserError(
            "--systems is for the targets peers, contenders, study, ladder and auto: leave it out "
            f"for {target}"
        )
    if target == ALL:
        check_report_folder(out / REPORT)  # before training, not after it

    labelled: dict[str, list[RunSpec]]
    plan = None
    if target == peers.PUBLICATIONS:
        if epochs is not None:
            raise UserError(f"{target} runs the settings as they are: leave --epochs out")
        labelled = {item.name: item.specs for item in peers.publications(grid["datasets"])}
    elif target in DEPTH_TARGETS:
        grid["systems"] = None if systems is None else systems.split(";")
        if target == searches.AUTO:
            grid["frugal"] = choose_device(device).type != "cuda"
        labelled = DEPTH_TARGETS[target](**grid)
        if target == searches.AUTO and records is not None:  # of whatever device they are
            other = searches.search_specs(**grid | {"frugal": not grid["frugal"]})
            labelled = {
                label: list(dict.fromkeys((*own, *other[label]))) for label, own in labelled.items()
            }
    else:
        plan = make_plan(protocol, **grid)
        labelled = {name: target_specs(name, plan) for name in target_names(target)}
        if not plan.datasets and any(name in TRAINED for name in labelled):
            raise UserError(
                "none of the paper's datasets is at hand: see deepgat datasets, name some with "
                "--datasets, or try --quick"
            )
    specs = list(dict.fromkeys(spec for own in labelled.values() for spec in own))
    given = records or known
    outcome = Outcome() if given is None else _among(specs, given)
    if target == searches.AUTO and records is not None:
        specs = _as_recorded(specs, outcome)
    there = {*outcome.records, *outcome.diverged}
    missing = [spec for spec in specs if spec.signature not in there]
    if records is not None:
        if specs and not outcome.records:
            raise UserError(
                f"{records} has no run of this plan: name the --datasets, --layers, --seeds and "
                "--epochs that its runs were made with"
            )
        if missing:
            ERR.print(f"{len(missing)} of {len(specs)} runs are not in {records}", markup=False)
    elif specs:
        made = run_with_view(missing, Store(store), workers, device, retry_failed, quiet, ray)
        diverged = read_diverged(store)
        for name in diverged.keys() & made.failed:
            outcome.diverged[name] = diverged[name]
            del made.failed[name]
        outcome.records = made.records | outcome.records
        outcome.failed |= made.failed

    if plan is not None:
        sources = [store if records is None else records, *([] if known is None else [known])]
        for name in labelled:
            _show_target(name, plan, outcome, out, sources)
    elif target == peers.PUBLICATIONS:
        _show_publications(grid["datasets"], outcome, out)
    elif target == ladder.LADDER:
        _show_ladder(labelled, outcome, out, quick)
    elif target == searches.AUTO:
        tables = search_tables({label: _finished(own, outcome) for label, own in labelled.items()})
        _show(target, tables, {}, out, quick)
    else:
        _show_systems(target, labelled, outcome, out, grid, given)
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


def _show_publications(datasets: list[str] | None, outcome: Outcome, out: Path) -> None:
    rows = [
        (setting.name, setting.published, _finished(setting.specs, outcome))
        for setting in peers.publications(datasets)
    ]
    _show(peers.PUBLICATIONS, [systems_by_depth.publication_table(rows)], {}, out)


def _show_ladder(
    labelled: Mapping[str, list[RunSpec]], outcome: Outcome, out: Path, quick: bool
) -> None:
    found = {label: _finished(own, outcome) for label, own in labelled.items()}
    lost = {label: _lost(own, outcome) for label, own in labelled.items()}
    _show(ladder.LADDER, ladder_tables(found, lost), ladder_figures(found), out, quick)


def _show_systems(
    target: str,
    labelled: Mapping[str, list[RunSpec]],
    outcome: Outcome,
    out: Path,
    grid: Mapping[str, Any],
    given: Path | None,
) -> None:
    """Print and write systems at several depths; ``given`` may have frozen rows beside it."""
    found = {label: _finished(own, outcome) for label, own in labelled.items()}
    base = peers.OURS
    if target == study.STUDY:
        base = study.PRESET
        frozen = None if given is None else beside(given, "frozen").with_suffix(".jsonl.gz")
        if frozen is not None and frozen.exists() and grid["systems"] is None:
            base = study.BASE
            specs = [spec for own in labelled.values() for spec in own]
            found = study.with_frozen_rows(found, specs, frozen)
    lost = {label: _lost(own, outcome) for label, own in labelled.items()}
    contest = found if target == peers.CONTEST else {}
    found_tables = [
        *systems_by_depth.comparison_tables(contest, target, base),
        *systems_by_depth.system_tables(found, target, "test", lost),
        *systems_by_depth.pair_tables(found, target, base),
        *systems_by_depth.system_tables(found, target, "val", lost),
        *systems_by_depth.overview_tables(found, target, "test", lost),
        *systems_by_depth.overview_tables(found, target, "val", lost),
    ]
    tables = filed(found_tables, set())
    figures = systems_by_depth.system_figures(tables, target)
    _show(target, tables, figures, out, grid["quick"])


def _finished(specs: Iterable[RunSpec], outcome: Outcome) -> list[Record]:
    return [outcome.records[s.signature] for s in specs if s.signature in outcome.records]


def _lost(specs: Iterable[RunSpec], outcome: Outcome) -> set[tuple[str, int]]:
    """The pairs of dataset and depth at which every run diverged."""
    groups: dict[tuple[str, int], list[str]] = {}
    for spec in specs:
        groups.setdefault((spec.data.dataset, spec.layers), []).append(spec.signature)
    return {place for place, names in groups.items() if outcome.diverged.keys() >= set(names)}


def _among(specs: list[RunSpec], source: Path) -> Outcome:
    """The results of ``specs`` in a store, or in a file of records and the files beside it."""
    wanted = {spec.signature for spec in specs}
    records = {r["signature"]: r for r in read_records(source) if r["signature"] in wanted}
    diverged = read_diverged(source)
    lost = {name: diverged[name] for name in (wanted - records.keys()) & diverged.keys()}
    return Outcome(records, diverged=lost)


def _as_recorded(specs: list[RunSpec], outcome: Outcome) -> list[RunSpec]:
    """Without searches that save time, or those that do not, where none of the kind is there."""
    searched = [r for r in outcome.records.values() if r["system"] == searches.AUTO]
    kinds = {record["settings"]["frugal"] for record in searched}
    return [
        spec
        for spec in specs
        if spec.system != searches.AUTO or spec.settings.to_dict()["frugal"] in kinds
    ]


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
        print_table(table.title, table.columns, table.rows)
        for note in table.notes:
            OUT.print(note, soft_wrap=not OUT.is_terminal)
        OUT.print()
    write_target(target, tables, figures, out)
