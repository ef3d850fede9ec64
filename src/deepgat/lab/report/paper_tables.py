"""The tables of the paper: ours, the published numbers, and the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from deepgat.lab.paper.lemmas import Checked
from deepgat.lab.paper.published import DEEPGAT_PAPER, TABLE1, Published, published_score
from deepgat.lab.report.charts import table_by_x
from deepgat.lab.report.scores import (
    Curve,
    Record,
    Score,
    System,
    best_depth,
    curves,
    deepest,
    score_of,
    signed,
)
from deepgat.lab.report.table import NONE, Sourced, Table

PROTOTYPES = ("train", "train+val")
CHOSEN = {
    "authors": "Best depth: the one with the best mean test score, as in the paper; so it is "
    "optimistic.",
    "honest": "Best depth and learning rate: chosen on the validation nodes of every repetition.",
}
INTERVAL = (
    "Mean ± half-width of the 95% interval, over splits where there are several, else over seeds."
)
STATISTICS: tuple[tuple[str, int, Callable[[Any, Any], Any]], ...] = (
    ("nodes", 0, lambda graph, _: graph["nodes"]),
    ("edges", 0, lambda graph, _: graph["edges"]),
    ("features", 0, lambda graph, _: graph["features"]),
    ("classes", 0, lambda graph, _: graph["classes"]),
    ("mean degree", 1, lambda _, degrees: degrees["mean"]),
    ("largest degree", 0, lambda _, degrees: degrees["largest"]),
    ("hubs %", 2, lambda _, degrees: 100 * degrees["hub_rate"]),
    ("diameter", 0, lambda graph, _: graph["diameter"]),
    ("density %", 2, lambda _, degrees: 100 * degrees["density"]),
    ("clustering %", 2, lambda graph, _: 100 * graph["clustering"]),
)
"""The lines of Table 1: label, number of printed digits, and value."""


def table1(graphs: Sequence[dict[str, Any]]) -> Table:
    """Dataset statistics: published, ours by the same formulas, the difference, the true ones."""
    rows = []
    for graph in graphs:
        published = TABLE1.get(graph["dataset"], [None] * len(STATISTICS))
        for theirs, (label, digits, value) in zip(published, STATISTICS, strict=True):
            ours, true = value(graph, graph["printed"]), value(graph, graph["true"])
            difference = NONE
            if theirs is not None:  # of the rounded numbers, so that equal prints differ by 0
                less = round(round(ours, digits) - theirs, digits)
                difference = "0" if less == 0 else f"{less:+,.{digits}f}"
            shown = [NONE if v is None else f"{v:,.{digits}f}" for v in (theirs, ours, true)]
            rows.append([graph["dataset"], label, *shown[:2], difference, shown[2]])
    columns = ["dataset", "", "published", "ours", "difference", "true"]
    notes = [
        "The paper's degree is 2(deg + 1), its density (E + n)/(n(n − 1)), and a hub has a degree "
        "of 30 or more: so is “ours”; “true” has deg, and E/(n(n − 1)). Edges are ordered "
        "pairs, the diameter is the largest finite distance, clustering the mean local coefficient."
    ]
    return Table("table1", "Table 1: the datasets", columns, rows, notes)


def depth_tables(records: Iterable[Record]) -> list[Table]:
    """Micro-F1 against L, a table per dataset, a column per system."""
    tables = []
    for dataset, found in curves(records).items():
        cells: dict[str, dict[int, str]] = {system.name: {} for system in found}
        for system, curve in found.items():
            for layers, runs in curve.items():
                score, printed = score_of(runs), published_score(*system, dataset, layers)
                cell = score.cell()
                if printed is not None:
                    beside = f" ({printed:.1f}, {signed(score.mean - printed)})"
                    cell = score.cell(beside, printed)
                cells[system.name][layers] = cell
        counts = {len(runs) for curve in found.values() for runs in curve.values()}
        repeats = str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        tables.append(
            table_by_x(
                f"depth-{dataset}",
                f"Test micro-F1 (%) against the number of layers, {dataset}",
                cells,
                [f"{INTERVAL} In brackets: published, difference.", f"Repetitions: {repeats}."],
                ("number of layers L", "test micro-F1 (%)"),
                ceiling=100,
                note="Bands: 95% intervals. Hollow: published.",
            )
        )
    return tables


def table2(records: Iterable[Record], protocol: str) -> Table:
    """Best micro-F1 over L and micro-F1 at the largest L."""
    rows = []
    for dataset, system, curve, best, last, printed in _extremes(records, protocol):
        published = [NONE] * 5
        if printed is not None:
            at_its_depth = NONE
            if printed.best_layers in curve:
                at_its_depth = signed(score_of(curve[printed.best_layers]).mean - printed.best)
            published = [
                f"{printed.best:.1f} ({printed.best_layers})",
                signed(best.mean - printed.best),
                at_its_depth,
                f"{printed.deepest:.1f} ({printed.deepest_layers})",
                signed(last.mean - printed.deepest) if _same_depth(printed, curve) else NONE,
            ]
        rows.append([dataset, system.name, _at(best), *published[:3], _at(last), *published[3:]])
    columns = ["dataset", "system", "best (L)", "paper", "diff.", "diff. at its L",
               "max L", "paper", "diff."]  # fmt: skip
    title = f"Table 2: test micro-F1 (%), {protocol} protocol"
    return Table("table2", title, columns, rows, [INTERVAL, CHOSEN[protocol]])


def degradation_table(records: Iterable[Record], protocol: str) -> Table:
    """Best micro-F1 over L minus micro-F1 at the largest L, for GAT."""
    rows = []
    for dataset, system, curve, best, last, printed in _extremes(records, protocol):
        if system.model != "gat":
            continue
        lost = best.mean - last.mean
        published = [NONE, NONE]
        if printed is not None:
            theirs = printed.best - printed.deepest
            same = _same_depth(printed, curve)
            published = [f"{theirs:.1f}", signed(lost - theirs) if same else NONE]
        ours = Sourced(f"{lost:.1f}", dict.fromkeys(best.runs + last.runs))
        rows.append([dataset, system.name, _at(best), _at(last), ours, *published])
    columns = ["dataset", "system", "best (L)", "max L", "lost", "published", "difference"]
    title = "What GAT loses with depth (points of micro-F1)"
    return Table("degradation", title, columns, rows, [INTERVAL, CHOSEN[protocol]])


def _extremes(
    records: Iterable[Record], protocol: str
) -> Iterator[tuple[str, System, Curve, Score, Score, Published | None]]:
    """(dataset, system, curve, best depth, largest depth, the paper's row)."""
    for dataset, systems in curves(records).items():
        for system, curve in systems.items():
            printed = DEEPGAT_PAPER.get((*system, dataset))
            yield dataset, system, curve, best_depth(curve, protocol), deepest(curve), printed


def _same_depth(printed: Published, curve: Curve) -> bool:
    return printed.deepest_layers == max(curve)


def _at(score: Score) -> Sourced:
    return score.cell(f" ({score.layers})")


def nearest_tables(records: Iterable[Record]) -> list[Table]:
    """e_N of h^L and the lower bound of the Bayes error, a table per dataset and prototypes."""
    tables = []
    measured = curves(r for r in records if r["measures"].get("nearest-neighbor"))
    for dataset, found in measured.items():
        for prototypes in PROTOTYPES:
            cells: dict[str, dict[int, str]] = {system.name: {} for system in found}
            for system, curve in found.items():
                for layers, runs in curve.items():
                    cells[system.name][layers] = _nearest_cell(runs, prototypes)
            tables.append(
                table_by_x(
                    f"nearest-neighbor-{dataset}-{prototypes.replace('+', '-')}",
                    f"e_N (%) of the test nodes, prototypes {prototypes}, {dataset}",
                    cells,
                    [
                        f"{INTERVAL} In brackets the lower bound of the Bayes error, whose upper "
                        "bound is e_N; – where e_N is worse than guessing. The paper prints no "
                        "numbers for its figure."
                    ],
                    ("number of layers L", "error of the nearest prototype (%)"),
                    note="Bands: where the Bayes error lies.",
                )
            )
    return tables


def _nearest_cell(runs: Sequence[Record], prototypes: str) -> str:
    def mean(what: str) -> Score | None:
        values = {r["signature"]: r["measures"]["nearest-neighbor"][prototypes][what] for r in runs}
        if None in values.values():
            return None
        return score_of(runs, lambda run: 100 * float(values[run["signature"]]))

    error, lower = mean("error"), mean("bayes_lower")
    if error is None:
        return NONE
    low, text = (None, NONE) if lower is None else (lower.mean, f"{lower.mean:.1f}")
    return Sourced(f"{error} [{text}]", error.runs, (error.mean, low, error.mean))


def lemma_table(checks: Sequence[Checked]) -> Table:
    """The share of empirical means and covariances inside the band of each form."""
    rows = []
    for item in checks:
        shares = item.check.shares_inside()
        names = ("exact_mean", "exact_covariance", "path_count_mean", "path_count_covariance")
        holds = (item.check.exact_holds, item.check.path_count_holds)
        cells = [f"{100 * shares[name]:.1f}" for name in names]
        rows.append([item.lemma, item.graph, *cells, *("yes" if h else "no" for h in holds)])
    columns = ["lemma", "graph", "mean %", "cov. %", "mean % (paths)", "cov. % (paths)",
               "holds", "holds (paths)"]  # fmt: skip
    first = checks[0].check
    notes = [
        f"Share of the empirical means and covariances of h^l, l = 1 … {len(first.exact.mean)}, "
        f"of {len(first.degree)} nodes, inside the band where {first.draws:,} draws must lie, all "
        f"together with probability {first.level:.0%}, if the formula is right. “(paths)”: the "
        "path-count form that the paper writes, which is exact only on regular graphs."
    ]
    return Table("lemmas", "The lemmas against draws", columns, rows, notes)
