"""Over-smoothing: what each layer of a network predicts, and how far its nodes still differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from deepgat.lab.report.charts import lines
from deepgat.lab.report.scores import (
    Record,
    Score,
    curves,
    depth_of,
    depths_of,
    score_of,
)
from deepgat.lab.report.table import NONE, Sourced, Table

PROFILE, LAYER_SCORES = "over-smoothing", "layer-scores"
ACCURACY, ATTENTION = "micro_f1", "same_class_attention"
UNIFORM = f"uniform_{ATTENTION}"
MEASURES = {
    ACCURACY: ("own micro-F1 %", "test micro-F1 (%) of the layer's own prediction", 1),
    "energy": ("energy", "Dirichlet energy of hˡ", 3),
    "relative_energy": ("relative energy", "energy / ‖hˡ‖²", 3),
    "neighbor_distance": ("MAD neighbours", "distance of neighbours (MAD)", 3),
    "effective_rank": ("effective rank", "effective rank of hˡ", 1),
    ATTENTION: ("same-class attention", "share of attention to one's own class", 3),
    UNIFORM: ("if uniform", "", 3),
}
"""Field of :class:`deepgat.analysis.LayerMeasures` → column, axis of its panel, printed digits."""

Profile = dict[str, dict[int, Score]]
"""Measure → layer l → the mean over repetitions."""


def profiles(records: Iterable[Record]) -> dict[tuple[str, int], dict[str, Profile]]:
    """(dataset, L) → system → profile, where layers were measured or at least scored."""
    records = list(records)
    measured = curves(r for r in records if r["measures"].get(PROFILE))
    found: dict[tuple[str, int], dict[str, Profile]] = {}
    for dataset, systems in curves(records).items():
        own = measured.get(dataset, {})
        for system, curve in systems.items():
            for layers, runs in curve.items():
                if own and layers not in depths_of(own.values()):
                    continue  # most panels would be empty
                deep = own.get(system, {}).get(layers, [])
                profile = {name: _means(deep, name) for name in MEASURES}
                profile[ACCURACY] = _means(runs, ACCURACY)
                if any(len(means) > 1 for means in profile.values()):
                    found.setdefault((dataset, layers), {})[system.name] = profile
    return found


def _means(records: Sequence[Record], measure: str) -> dict[int, Score]:
    values = {record["signature"]: layer_values(record, measure) for record in records}
    found = {}
    for layer in depths_of(values.values()):

        def value(run: Record, layer: int = layer) -> float:
            return values[run["signature"]][layer]

        runs = [record for record in records if layer in values[record["signature"]]]
        found[layer] = score_of(runs, value)
    return found


def layer_values(record: Record, measure: str) -> dict[int, float]:
    """Layer → the measure in one run, averaged over its graphs."""
    if measure == ACCURACY:
        own = (record["measures"].get(LAYER_SCORES) or {}).get("test")
        if own is None:  # only the last layer makes a prediction
            return {depth_of(record): 100 * record["micro_f1"]["test"]}
        return {int(layer): 100 * share for layer, share in own.items()}
    found: dict[int, list[float]] = {}
    for graph in record["measures"].get(PROFILE) or []:
        for row in graph:
            if row.get(measure) is not None:
                found.setdefault(row["layer"], []).append(row[measure])
    return {layer: fmean(values) for layer, values in found.items()}


def smoothing_tables(records: Iterable[Record]) -> list[Table]:
    """A table per dataset and depth: a row per system and layer, and a panel per measure."""
    tables = []
    for (dataset, depth), systems in profiles(records).items():
        cells: dict[str, dict[str, dict[int, str]]] = {name: {} for name in MEASURES}
        for name, (_, _, digits) in MEASURES.items():
            for system, profile in systems.items():
                scores = profile[name].items()
                cells[name][system] = {layer: _cell(score, digits) for layer, score in scores}
        rows = [
            [system, str(layer), *(cells[name][system].get(layer, NONE) for name in MEASURES)]
            for system, profile in systems.items()
            for layer in depths_of(profile.values())
        ]
        cells[ATTENTION]["uniform attention"] = max(cells.pop(UNIFORM).values(), key=len)
        charts = []
        for name, own in cells.items():
            if shown := {system: column for system, column in own.items() if column}:
                column, axis, _ = MEASURES[name]
                chart = lines(shown, column, "layer l", axis, log=name == "energy")
                chart["floor"] = None if name == ATTENTION else 0
                chart["ceiling"] = 100 if name == ACCURACY else None
                own_name = f"smoothing-{name.replace('_', '-')}"
                charts.append({**chart, "name": own_name, "dataset": dataset, "depth": depth})
        tables.append(
            Table(
                f"over-smoothing-{dataset}-{depth}",
                f"Layer by layer, {dataset}, L = {depth}",
                ["system", "layer", *(column for column, _, _ in MEASURES.values())],
                rows,
                [
                    "Means over repetitions. Own micro-F1: of the class prediction that the layer "
                    "itself makes, test nodes; layer 0 is the input. Energy: normalised Dirichlet "
                    "energy of h^l. Same-class attention: the share of attention that goes to "
                    "nodes of one's own class, and what attention to all alike would give."
                ],
                charts,
            )
        )
    return tables


def _cell(score: Score, digits: int) -> Sourced:
    if 0 < abs(score.mean) < 10**-digits:
        text = f"{score.mean:.1e}"
    else:
        text = f"{score.mean:,.{digits if abs(score.mean) < 1000 else 0}f}"
    return Sourced(text, score.runs, score.cell().numbers)
