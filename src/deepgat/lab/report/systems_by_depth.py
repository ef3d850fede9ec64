"""Tables and figures that compare systems: with their publications, and at several depths."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean

from matplotlib.figure import Figure

from deepgat.data.catalogue.entries import ENTRIES
from deepgat.lab.report.charts import draw, lines
from deepgat.lab.report.scores import (
    Curve,
    Record,
    curves,
    depth_of,
    depths_of,
    f1_on_test,
    mean_and_deviation,
    paired,
    score_of,
    signatures,
    signed,
    value_of,
)
from deepgat.lab.report.table import NONE, Sourced, Table
from deepgat.training.config_file import Published

LOST = "diverged"
PARTS = {"test": "Test", "val": "Validation"}
TITLES = {"micro_f1": "micro-F1", "roc_auc": "ROC-AUC"}

_HOW = (
    "Mean ± half-width of the 95% interval, over splits where there are several, else over seeds. "
    "One setting per system for all depths and datasets (G²: one more for each heterophilous "
    "graph; GCNII, as published or trained the same way: its authors' for each); the candidate, "
    "where it has several, and the epoch are chosen on the validation nodes of every repetition. "
    f"{NONE}: no run; {LOST}: none that ended with finite numbers; (2/3): two that did where "
    "another system has three."
)

Labelled = Mapping[str, Sequence[Record]]
"""System → its runs."""
Lost = Mapping[str, Collection[tuple[str, int]]]
"""System → pairs of dataset and depth at which all its runs diverged."""
NOTHING_LOST: Lost = {}


def publication_table(rows: Iterable[tuple[str, Published, Sequence[Record]]]) -> Table:
    """Our mean ± standard deviation beside the published one, by setting."""
    cells = []
    for name, published, records in rows:
        printed = f"{published.score:.1f}"
        if published.spread is not None:
            printed += f" ± {published.spread:.1f}"
        dataset = depth = ours = difference = NONE
        if records:
            scores = [f1_on_test(record) for record in records]
            ours = Sourced(mean_and_deviation(scores), signatures(records))
            difference = signed(fmean(scores) - published.score)
            dataset, depth = records[0]["dataset"], str(depth_of(records[0]))
        repeats = str(len(records))
        cells.append([name, dataset, depth, repeats, ours, printed, difference, published.source])
    return Table(
        "publications",
        "Systems beside their publications: test micro-F1 (%)",
        ["setting", "dataset", "L", "runs", "ours", "published", "diff.", "source"],
        cells,
        ["Mean ± standard deviation over runs; the epoch is chosen on validation nodes."],
    )


def labelled_curves(labelled: Labelled, lost: Lost = NOTHING_LOST) -> dict[str, dict[str, Curve]]:
    """Dataset → system → its curve, with empty lists of runs where all diverged."""
    found: dict[str, dict[str, Curve]] = {}
    for label, records in labelled.items():
        for dataset, systems in curves(records).items():
            (found.setdefault(dataset, {})[label],) = systems.values()
    for label, places in lost.items():
        for dataset, depth in places:
            found.setdefault(dataset, {}).setdefault(label, {})[depth] = []
    return {
        dataset: {label: systems[label] for label in labelled if label in systems}
        for dataset, systems in found.items()
    }


def system_tables(
    labelled: Labelled, target: str, part: str = "test", lost: Lost = NOTHING_LOST
) -> list[Table]:
    """A table per dataset and metric: systems by depth, scored on the test or validation nodes."""
    tables = []
    for dataset, systems in labelled_curves(labelled, lost).items():
        depths = depths_of(systems.values())
        columns = {
            f"L = {depth}": {label: curve.get(depth) for label, curve in systems.items()}
            for depth in depths
        }
        for metric in _metrics(dataset, systems):
            name = f"{target}-{dataset}{'' if metric == 'micro_f1' else '-' + metric}"
            title = f"{PARTS[part]} {TITLES[metric]} (%) by depth, {dataset}"
            table = _scores(name, title, systems, columns, part, metric)
            if part == "test" and len(depths) > 1:
                cells = {label: dict(zip(depths, row, strict=True)) for label, *row in table.rows}
                axes = ("number of layers L", f"test {TITLES[metric]} (%)")
                table.charts.append(lines(cells, dataset, *axes, log_x=True))
            tables.append(table)
    return tables


def _metrics(dataset: str, systems: Mapping[str, Curve]) -> list[str]:
    """Micro-F1, and what results on the dataset are published in, where all records have it."""
    entry = ENTRIES.get(dataset)
    own = "accuracy" if entry is None else entry.metric
    runs = [run for curve in systems.values() for runs in curve.values() for run in runs]
    known = own != "accuracy" and all(own in run.get("metrics", {}) for run in runs)
    return ["micro_f1", own] if known else ["micro_f1"]


def overview_tables(
    labelled: Labelled, target: str, part: str = "test", lost: Lost = NOTHING_LOST
) -> list[Table]:
    """A table per depth: systems by dataset, and their mean; none for a single dataset."""
    found = labelled_curves(labelled, lost)
    if len(found) < 2:
        return []
    tables = []
    for depth in depths_of(curve for systems in found.values() for curve in systems.values()):
        columns = {
            dataset: {label: systems.get(label, {}).get(depth) for label in labelled}
            for dataset, systems in found.items()
        }
        tried = [label for label in labelled if any(c[label] is not None for c in columns.values())]
        title = f"{PARTS[part]} micro-F1 (%) at L = {depth}"
        table = _scores(f"{target}-{depth}", title, tried, columns, part)
        table.columns.append("mean")
        for row in table.rows:
            means = [cell.numbers[0] for cell in row if isinstance(cell, Sourced)]
            row.append(f"{fmean(means):.1f}" if len(means) == len(found) else NONE)
        tables.append(table)
    return tables


def _scores(
    name: str,
    title: str,
    labels: Iterable[str],
    columns: Mapping[str, Mapping[str, Sequence[Record] | None]],
    part: str,
    metric: str = "micro_f1",
) -> Table:
    """Scores, with the number of repetitions where other systems have more."""
    rows: dict[str, list[str]] = {label: [label] for label in labels}
    for column in columns.values():
        most = max(len(runs or ()) for runs in column.values())
        for label, row in rows.items():
            if runs := column[label]:
                score = score_of(runs, lambda record: 100 * value_of(record, metric, part))
                row.append(score.cell(f" ({len(runs)}/{most})" if len(runs) < most else ""))
            else:
                row.append(NONE if runs is None else LOST)
    ending = "" if part == "test" else f"-{part}"
    return Table(name + ending, title, ["system", *columns], list(rows.values()), [_HOW])


def pair_tables(labelled: Labelled, target: str, base: str) -> list[Table]:
    """A table per dataset: paired differences of each system to ``base``."""
    tables = []
    for dataset, systems in labelled_curves(labelled).items():
        reference = systems.pop(base, None)
        if not systems or reference is None:
            continue
        rows = []
        for label, curve in systems.items():
            pairs = [paired(curve.get(d, []), reference[d]) for d in sorted(reference)]
            rows.append([label, *(NONE if pair is None else str(pair) for pair in pairs)])
        tables.append(
            Table(
                f"{target}-{dataset}-pairs",
                f"Points of test micro-F1 above {base}, {dataset}",
                ["system", *(f"L = {depth}" for depth in sorted(reference))],
                rows,
                [
                    "Mean difference on the same splits and seeds; in brackets p of the paired "
                    "t-test over splits where there are several, else over seeds."
                ],
            )
        )
    return tables


def comparison_tables(labelled: Labelled, target: str, base: str) -> list[Table]:
    """Scores by dataset and depth, with p of the test against ``base``; none without its runs."""
    found = {d: systems for d, systems in labelled_curves(labelled).items() if base in systems}
    tried = [label for label in labelled if any(label in systems for systems in found.values())]
    if len(tried) < 2:
        return []
    rows = []
    for dataset, systems in found.items():
        for depth in sorted(systems[base]):
            ours = systems[base][depth]
            runs = [systems.get(label, {}).get(depth, []) for label in tried]
            rows.append([dataset, str(depth), *(_compared(own, ours) for own in runs)])
    note = f"In brackets p of the paired t-test against {base}, on the same splits and seeds."
    columns = ["dataset", "L", *tried]
    return [Table(f"{target}-compared", "Test micro-F1 (%) compared", columns, rows, [note])]


def _compared(runs: Sequence[Record], ours: Sequence[Record]) -> str:
    """The score, with p where the runs are not ours, and their number where they are fewer."""
    if not runs or runs is ours:
        return score_of(runs).cell() if runs else NONE
    pair = paired(runs, ours)
    fewer = f" ({len(runs)}/{len(ours)})" if len(runs) < len(ours) else ""
    return score_of(runs).cell(fewer + ("" if pair is None else pair.p_text))


def system_figures(tables: Iterable[Table], target: str) -> dict[str, Figure]:
    """The figures of tables, and one of all of them side by side."""
    charts = {table.name: table.charts for table in tables if table.charts}
    figures = {name: draw(own) for name, own in charts.items()}
    if len(charts) > 1:
        figures[f"{target}-datasets"] = draw([chart for own in charts.values() for chart in own])
    return figures
