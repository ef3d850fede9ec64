"""Over-smoothing: what each layer of a network predicts, and how far its nodes still differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from deepgat.lab.report.charts import Chart, lines
from deepgat.lab.report.scores import (
    Record,
    Score,
    curves_by_dataset,
    depth_of,
    depths_of,
    mean_score,
    signatures,
)
from deepgat.lab.report.table import NONE, Sourced, Table

PROFILE, LAYER_SCORES = "over-smoothing", "layer-scores"
ACCURACY, ATTENTION = "micro_f1", "same_class_attention"
UNIFORM = f"uniform_{ATTENTION}"


class Measure(NamedTuple):
    """How a field of :class:`deepgat.analysis.LayerMeasures` is shown."""

    column: str
    title: str = ""
    axis: str = ""
    digits: int = 3
    log: bool = False
    floor: float | None = 0.0
    ceiling: float | None = None


MEASURES = {
    ACCURACY: Measure("own micro-F1 %", "Accuracy of the layer's own prediction",
                      "test micro-F1 (%)", digits=1, ceiling=100),
    "energy": Measure("energy", "Dirichlet energy", "energy of hˡ", log=True, floor=None),
    "relative_energy": Measure("relative energy", "Relative energy", "energy / ‖hˡ‖²"),
    "neighbor_distance": Measure("MAD neighbours", "Distance of neighbours", "MAD over neighbours"),
    "effective_rank": Measure("effective rank", "Effective rank", "rank of hˡ", digits=1),
    ATTENTION: Measure("same-class attention", "Attention to one's own class",
                       "share of attention", floor=None),
    UNIFORM: Measure("if uniform"),
}  # fmt: skip


class Profile(NamedTuple):
    """One system with L layers on one dataset."""

    dataset: str
    name: str
    layers: int
    values: dict[str, dict[int, Score]]
    """Measure → layer l → the mean over repetitions."""


def profiles(records: Iterable[Record]) -> list[Profile]:
    """One profile per system and depth with measured layers, or at least scored ones."""
    records = list(records)
    measured = curves_by_dataset(r for r in records if r["measures"].get(PROFILE))
    found = []
    for dataset, systems in curves_by_dataset(records).items():
        own = measured.get(dataset, {})
        for system, curve in systems.items():
            for layers, runs in curve.items():
                if own and layers not in depths_of(own.values()):
                    continue  # most panels would be empty
                deep = own.get(system, {}).get(layers, [])
                values = {
                    name: _means(runs if name == ACCURACY else deep, name) for name in MEASURES
                }
                if any(len(means) > 1 for means in values.values()):
                    found.append(Profile(dataset, system.name, layers, values))
    return found


def _means(records: Sequence[Record], measure: str) -> dict[int, Score]:
    by_layer: dict[int, list[tuple[Record, float]]] = {}
    for record in records:
        for layer, value in layer_values(record, measure).items():
            by_layer.setdefault(layer, []).append((record, value))
    return {
        layer: mean_score(
            [(record["split"], value) for record, value in pairs],
            runs=signatures(record for record, _ in pairs),
        )
        for layer, pairs in sorted(by_layer.items())
    }


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
    groups: dict[tuple[str, int], list[Profile]] = {}
    for profile in profiles(records):
        groups.setdefault((profile.dataset, profile.layers), []).append(profile)
    return [
        Table(
            f"over-smoothing-{dataset}-{depth}",
            f"Layer by layer, {dataset}, L = {depth}",
            ["system", "layer", *(measure.column for measure in MEASURES.values())],
            [
                [profile.name, str(layer), *(_cell(profile, name, layer) for name in MEASURES)]
                for profile in found
                for layer in depths_of(profile.values.values())
            ],
            [
                "Means over repetitions. Own micro-F1: of the class prediction that the layer "
                "itself makes, test nodes; layer 0 is the input. Energy: normalised Dirichlet "
                "energy of h^l. Same-class attention: the share of attention that goes to "
                "nodes of one's own class, and what attention to all alike would give."
            ],
            [
                {**_panel(found, name), "dataset": dataset, "depth": depth}
                for name in MEASURES
                if name != UNIFORM and any(profile.values[name] for profile in found)
            ],
        )
        for (dataset, depth), found in groups.items()
    ]


def _cell(profile: Profile, name: str, layer: int) -> str:
    score, digits = profile.values[name].get(layer), MEASURES[name].digits
    if score is None:
        return NONE
    if 0 < abs(score.mean) < 10**-digits:
        text = f"{score.mean:.1e}"
    else:
        text = f"{score.mean:,.{digits if abs(score.mean) < 1000 else 0}f}"
    return Sourced(text, score.runs, score.cell().numbers)


def _panel(found: Sequence[Profile], name: str) -> Chart:
    cells = {
        profile.name: {layer: _cell(profile, name, layer) for layer in profile.values[name]}
        for profile in found
        if profile.values[name]
    }
    if name == ATTENTION:
        most = max(found, key=lambda profile: len(profile.values[UNIFORM]))
        even = {layer: _cell(most, UNIFORM, layer) for layer in most.values[UNIFORM]}
        cells["uniform attention"] = even
    _, title, axis, _, log, floor, ceiling = MEASURES[name]
    own = f"smoothing-{name.replace('_', '-')}"
    return lines(cells, title, "layer l", axis, name=own, log=log, floor=floor, ceiling=ceiling)
