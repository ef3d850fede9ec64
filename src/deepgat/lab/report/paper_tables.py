"""The tables of the paper: ours, the published numbers, and the difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from deepgat.lab.paper.lemma_graphs import Checked
from deepgat.lab.paper.published import DEEPGAT_PAPER, TABLE1, PublishedGraph, published_score
from deepgat.lab.report.scores import (
    Curve,
    Record,
    Score,
    best_depth,
    curves,
    deepest,
    mean_score,
    score_on_test,
    signatures,
    signed,
    system_name,
)
from deepgat.lab.report.table import Sourced, Table

NONE = "–"
PROTOTYPES = ("train", "train+val")
CHOSEN = {
    "authors": "Best depth: the one with the best mean test score, as in the paper; so it is "
    "optimistic.",
    "honest": "Best depth and learning rate: chosen on the validation nodes of every repetition.",
}
INTERVAL = (
    "Mean ± half-width of the 95% interval, over splits where there are several, else over seeds."
)


def table1(rows: Sequence[dict[str, Any]]) -> Table:
    """Dataset statistics: published, ours by the same formulas, the difference, the true ones."""
    lines = []
    for row in rows:
        printed = TABLE1.get(row["dataset"])
        ours, true = _table1_numbers(row, "printed"), _table1_numbers(row, "true")
        for name, (label, digits) in _STATISTICS.items():
            theirs = None if printed is None else getattr(printed, name)
            mine = getattr(ours, name)
            lines.append(
                [
                    row["dataset"],
                    label,
                    _number(theirs, digits),
                    _number(mine, digits),
                    _difference(mine, theirs, digits),
                    _number(getattr(true, name), digits),
                ]
            )
    columns = ["dataset", "", "published", "ours", "difference", "true"]
    notes = [
        "The paper's degree is 2(deg + 1), its density (E + n)/(n(n − 1)), and a hub has a degree "
        "of 30 or more: so is “ours”; “true” has deg, and E/(n(n − 1)). Edges are ordered "
        "pairs, the diameter is the largest finite distance, clustering the mean local coefficient."
    ]
    return Table("table1", "Table 1: the datasets", columns, lines, notes)


def depth_tables(records: Iterable[Record]) -> list[Table]:
    """Micro-F1 against L, a table per dataset, a column per system."""
    tables = []
    found = curves(records)
    for dataset in dict.fromkeys(key[0] for key in found):
        own = {key[1:]: curve for key, curve in found.items() if key[0] == dataset}
        rows = []
        for layers in sorted({layers for curve in own.values() for layers in curve}):
            row = [str(layers)]
            for (model, score), curve in own.items():
                printed = published_score(model, score, dataset, layers)
                row.append(_beside(_score_at(curve, layers), printed))
            rows.append(row)
        columns = ["L", *(system_name(*system) for system in own)]
        tables.append(
            Table(
                f"depth-{dataset}",
                f"Test micro-F1 (%) against the number of layers, {dataset}",
                columns,
                rows,
                [f"{INTERVAL} In brackets: published, difference.", _repeats_note(own.values())],
            )
        )
    return tables


def table2(records: Iterable[Record], protocol: str) -> Table:
    """Best micro-F1 over L and micro-F1 at the largest L."""
    rows = []
    for (dataset, model, score), curve in curves(records).items():
        best, last = best_depth(curve, protocol), deepest(curve)
        printed = DEEPGAT_PAPER.get((model, score, dataset))
        there = None
        if printed is not None and printed.best_layers in curve:
            there = score_on_test(curve[printed.best_layers])
        same_depth = printed is not None and printed.deepest_layers == max(curve)
        rows.append(
            [
                dataset,
                system_name(model, score),
                _at_depth(best),
                NONE if printed is None else f"{printed.best:.1f} ({printed.best_layers})",
                NONE if printed is None else signed(best.mean - printed.best),
                NONE if there is None or printed is None else signed(there.mean - printed.best),
                _at_depth(last),
                NONE if printed is None else f"{printed.deepest:.1f} ({printed.deepest_layers})",
                signed(last.mean - printed.deepest) if printed and same_depth else NONE,
            ]
        )
    columns = ["dataset", "system", "best (L)", "paper", "diff.", "diff. at its L",
               "max L", "paper", "diff."]  # fmt: skip
    notes = [INTERVAL, CHOSEN[protocol]]
    title = f"Table 2: test micro-F1 (%), {protocol} protocol"
    return Table("table2", title, columns, rows, notes)


def degradation_table(records: Iterable[Record], protocol: str) -> Table:
    """Best micro-F1 over L minus micro-F1 at the largest L, for GAT."""
    rows = []
    for (dataset, model, score), curve in curves(records).items():
        if model != "gat":
            continue
        best, last = best_depth(curve, protocol), deepest(curve)
        lost = best.mean - last.mean
        printed = DEEPGAT_PAPER.get((model, score, dataset))
        theirs = None if printed is None else printed.best - printed.deepest
        same_depth = printed is not None and printed.deepest_layers == max(curve)
        rows.append(
            [
                dataset,
                system_name(model, score),
                _at_depth(best),
                _at_depth(last),
                Sourced(f"{lost:.1f}", dict.fromkeys(best.runs + last.runs)),
                NONE if theirs is None else f"{theirs:.1f}",
                signed(lost - theirs) if theirs is not None and same_depth else NONE,
            ]
        )
    columns = ["dataset", "system", "best (L)", "max L", "lost", "published", "difference"]
    notes = [INTERVAL, CHOSEN[protocol]]
    return Table("degradation", "What GAT loses with depth (points of micro-F1)", columns, rows,
                 notes)  # fmt: skip


def degradations(records: Iterable[Record], protocol: str) -> dict[str, dict[str, float]]:
    """System → dataset → points lost, ours and published."""
    found: dict[str, dict[str, float]] = {}
    for (dataset, model, score), curve in curves(records).items():
        if model != "gat":
            continue
        name = system_name(model, score)
        lost = best_depth(curve, protocol).mean - deepest(curve).mean
        found.setdefault(name, {})[dataset] = lost
        if printed := DEEPGAT_PAPER.get((model, score, dataset)):
            found.setdefault(f"{name}, published", {})[dataset] = printed.best - printed.deepest
    return found


def nearest_tables(records: Iterable[Record]) -> list[Table]:
    """e_N of h^L and the lower bound of the Bayes error, a table per dataset and prototypes."""
    tables = []
    found = curves(r for r in records if r["measures"].get("nearest-neighbor"))
    for dataset in dict.fromkeys(key[0] for key in found):
        own = {key[1:]: curve for key, curve in found.items() if key[0] == dataset}
        for prototypes in PROTOTYPES:
            rows = []
            for layers in sorted({layers for curve in own.values() for layers in curve}):
                row = [str(layers)]
                for curve in own.values():
                    error = nearest_score(curve, layers, prototypes, "error")
                    lower = nearest_score(curve, layers, prototypes, "bayes_lower")
                    bound = NONE if lower is None else f"{lower.mean:.1f}"
                    row.append(NONE if error is None else Sourced(f"{error} [{bound}]", error.runs))
                rows.append(row)
            tables.append(
                Table(
                    f"nearest-neighbor-{dataset}-{prototypes.replace('+', '-')}",
                    f"e_N (%) of the test nodes, prototypes {prototypes}, {dataset}",
                    ["L", *(system_name(*system) for system in own)],
                    rows,
                    [
                        f"{INTERVAL} In brackets the lower bound of the Bayes error, whose upper "
                        "bound is e_N; – where e_N is worse than guessing. The paper prints no "
                        "numbers for its figure."
                    ],
                )
            )
    return tables


def nearest_score(curve: Curve, layers: int, prototypes: str, what: str) -> Score | None:
    """The mean of a nearest-neighbour measure in %, or None if a run lacks it."""
    records = curve.get(layers, [])
    values = [(r["split"], r["measures"]["nearest-neighbor"][prototypes][what]) for r in records]
    if not values or any(value is None for _, value in values):
        return None
    return mean_score([(split, 100 * value) for split, value in values], runs=signatures(records))


def lemma_table(checks: Sequence[Checked]) -> Table:
    """The share of empirical means and covariances inside the band of each form."""
    rows = []
    for item in checks:
        shares = item.check.shares_inside()
        rows.append(
            [
                item.lemma,
                item.graph,
                *(
                    f"{100 * shares[f'{form}_{what}']:.1f}"
                    for form in ("exact", "path_count")
                    for what in ("mean", "covariance")
                ),
                "yes" if item.check.exact_holds else "no",
                "yes" if item.check.path_count_holds else "no",
            ]
        )
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


def _score_at(curve: Curve, layers: int) -> Score | None:
    return score_on_test(curve[layers]) if layers in curve else None


def _beside(score: Score | None, printed: float | None) -> str:
    if score is None:
        return NONE
    if printed is None:
        return Sourced(str(score), score.runs)
    return Sourced(f"{score} ({printed:.1f}, {signed(score.mean - printed)})", score.runs)


def _at_depth(score: Score) -> Sourced:
    return Sourced(f"{score} ({score.layers})", score.runs)


def _repeats_note(own: Iterable[Curve]) -> str:
    counts = {len(records) for curve in own for records in curve.values()}
    few, many = min(counts), max(counts)
    return f"Repetitions: {few}." if few == many else f"Repetitions: {few} to {many}."


def _table1_numbers(row: dict[str, Any], reading: str) -> PublishedGraph:
    degrees = row[reading]
    return PublishedGraph(
        row["nodes"],
        row["edges"],
        row["features"],
        row["classes"],
        degrees["mean"],
        degrees["largest"],
        100 * degrees["hub_rate"],
        row["diameter"],
        100 * degrees["density"],
        100 * row["clustering"],
    )


_STATISTICS = {
    "nodes": ("nodes", 0),
    "edges": ("edges", 0),
    "features": ("features", 0),
    "classes": ("classes", 0),
    "mean_degree": ("mean degree", 1),
    "largest_degree": ("largest degree", 0),
    "hub_rate": ("hubs %", 2),
    "diameter": ("diameter", 0),
    "density": ("density %", 2),
    "clustering": ("clustering %", 2),
}
"""Field of Table 1 → its label and the number of printed digits."""


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def _difference(mine: float, theirs: float | None, digits: int) -> str:
    """The difference of the rounded numbers, so that equal prints differ by 0."""
    if theirs is None:
        return NONE
    difference = round(round(mine, digits) - theirs, digits)
    return "0" if difference == 0 else f"{difference:+,.{digits}f}"
