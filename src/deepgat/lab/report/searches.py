"""Tables of ``auto``: its scores and choices by graph, beside those of single systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from deepgat.data.catalogue.entries import ENTRIES
from deepgat.lab.paper.searches import AUTO, BEST, SEARCHES
from deepgat.lab.report.families import kind_of_split
from deepgat.lab.report.records import with_short_names
from deepgat.lab.report.scores import (
    Record,
    depth_of,
    mean_and_deviation,
    signatures,
    signed,
    value_of,
)
from deepgat.lab.report.table import NONE, Sourced, Table
from deepgat.models.registry import ENSEMBLE

Labelled = Mapping[str, Sequence[Record]]
"""Row → its runs."""
Place = tuple[str, str, int, bool]
"""Dataset, kind of its splits, L of the recipes of ``deep`` (0: as they are), and whether searches
saved time."""


def search_tables(labelled: Labelled) -> list[Table]:
    """A row for every graph, then the single systems by graph."""
    found: dict[Place, dict[str, list[Record]]] = {}
    single: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for label, records in labelled.items():
        for record in records:
            data = record["data"]
            graph = (data["dataset"], kind_of_split(data["split"]))
            if label in SEARCHES:
                asked = record["settings"]
                rows = found.setdefault((*graph, depth_of(record), bool(asked["frugal"])), {})
            else:
                rows = single.setdefault(graph, {})
            rows.setdefault(label, []).append(record)
    named = with_short_names(dict(record) for own in labelled.values() for record in own)
    names = {record["data"]["dataset"]: record["dataset"] for record in named}
    tables = [_searches(found, single, names)] if found else []
    return [*tables, _single(single, names)] if single else tables


def _searches(
    found: Mapping[Place, Mapping[str, list[Record]]],
    single: Mapping[tuple[str, str], Mapping[str, list[Record]]],
    names: Mapping[str, str],
) -> Table:
    kinds = [label for label in SEARCHES if any(label in rows for rows in found.values())]
    deep = any(layers for _, _, layers, _ in found)
    columns = ["graph", "split", *(["L of deep"] if deep else []), "runs"]
    for label in kinds:
        columns += [label, *(["chosen alone"] if label == BEST else [])]
    columns += ["chosen", *(["best single system", "difference"] if single else [])]
    rows = []
    for (dataset, split, layers, frugal), runs in found.items():
        kind = f"{split}, as on a CPU" if frugal else split
        row = [names[dataset], kind, *([str(layers) if layers else NONE] if deep else [])]
        row.append(str(max(map(len, runs.values()))))
        for label in kinds:
            own = runs.get(label, [])
            row.append(_cell(own, dataset))
            if label == BEST:
                row.append(_text([_alone(record, dataset) for record in own]))
        shown = AUTO if AUTO in runs else next(iter(runs))
        row.append(_chosen(runs[shown]))
        if single:
            row += _best_single(runs[shown], single.get((dataset, split), {}), dataset)
        rows.append(row)
    notes = [
        "Mean ± standard deviation of the test score in %, micro-F1 or the metric that results on "
        "the graph are published in. chosen: how many searches kept each recipe, and how many of "
        "them its mean with others."
    ]
    if single:
        notes.append(
            "The best single system has its defaults and is picked by its mean test score, which "
            f"no user could do. {NONE}: none has the same splits and seeds."
        )
    return Table("auto", "The default, auto, by graph", columns, rows, notes)


def _single(
    single: Mapping[tuple[str, str], Mapping[str, list[Record]]], names: Mapping[str, str]
) -> Table:
    systems = list(dict.fromkeys(label for runs in single.values() for label in runs))
    rows = [
        [label, *(_cell(runs.get(label, []), dataset) for (dataset, _), runs in single.items())]
        for label in systems
    ]
    columns = ["system", *(f"{names[dataset]}, {split}" for dataset, split in single)]
    note = "Mean ± standard deviation of the test score in %; every system has its defaults."
    return Table("auto-single", "Single systems with their defaults", columns, rows, [note])


def _score(record: Record, dataset: str) -> float:
    return 100 * value_of(record, _metric(dataset), "test")


def _alone(record: Record, dataset: str) -> float:
    """The score of the chosen recipe without those averaged with it."""
    return 100 * value_of(record["alone"], _metric(dataset), "test")


def _metric(dataset: str) -> str:
    entry = ENTRIES.get(dataset)
    return "micro_f1" if entry is None or entry.metric == "accuracy" else entry.metric


def _text(scores: Sequence[float]) -> str:
    return mean_and_deviation(scores) if scores else NONE


def _cell(records: Sequence[Record], dataset: str) -> str:
    return Sourced(_text([_score(record, dataset) for record in records]), signatures(records))


def _chosen(records: Sequence[Record]) -> str:
    """ "deep 4 (1 mean), wide 1": the recipes that searches kept."""
    kept, means = Counter[str](), Counter[str]()
    for record in records:
        rows = record["auto"]["leaderboard"]
        name = next(row["name"] for row in rows if row["name"] != ENSEMBLE)
        kept[name] += 1
        means[name] += sum(row["outcome"].endswith("of the ensemble") for row in rows) > 1
    told = []
    for name, count in kept.most_common():
        more = f" ({means[name]} mean{'s' if means[name] > 1 else ''})" if means[name] else ""
        told.append(f"{name} {count}{more}")
    return ", ".join(told)


def _best_single(
    runs: Sequence[Record], single: Mapping[str, Sequence[Record]], dataset: str
) -> list[str]:
    """The best system among those with the same repetitions, and how far ``auto`` is above it."""
    repeats = sorted((record["split"], record["seed"]) for record in runs)
    means = {
        label: fmean(_score(record, dataset) for record in own)
        for label, own in single.items()
        if sorted((record["split"], record["seed"]) for record in own) == repeats
    }
    if not means:
        return [NONE, NONE]
    best = max(means, key=means.__getitem__)
    ours = fmean(_score(record, dataset) for record in runs)
    return [f"{best} {means[best]:.1f}", signed(ours - means[best])]
