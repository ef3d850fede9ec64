"""Over-smoothing: what each layer of a network predicts, and how far its nodes still differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from deepgat.lab.report.scores import (
    Record,
    Score,
    curves,
    depth_of,
    mean_score,
    signatures,
    system_name,
)
from deepgat.lab.report.table import Sourced, Table

PROFILE, LAYER_SCORES = "over-smoothing", "layer-scores"
ACCURACY = "micro_f1"


class Panel(NamedTuple):
    """How one measure is plotted."""

    measure: str
    title: str
    label: str
    log: bool = False
    floor: float | None = 0.0
    ceiling: float | None = None
    digits: int = 3


PANELS = (
    Panel(ACCURACY, "Accuracy of the layer's own prediction", "test micro-F1 (%)", ceiling=100,
          digits=1),
    Panel("energy", "Dirichlet energy", "energy of hˡ", log=True, floor=None),
    Panel("relative_energy", "Relative energy", "energy / ‖hˡ‖²"),
    Panel("neighbor_distance", "Distance of neighbours", "MAD over neighbours"),
    Panel("effective_rank", "Effective rank", "rank of hˡ", digits=1),
    Panel("same_class_attention", "Attention to one's own class", "share of attention", floor=None),
)  # fmt: skip
"""The fields of :class:`deepgat.analysis.LayerMeasures` that a report shows."""
UNIFORM = "uniform_same_class_attention"
COLUMNS = ("system", "layer", "own micro-F1 %", "energy", "relative energy", "MAD neighbours",
           "effective rank", "same-class attention", "if uniform")  # fmt: skip

LayerScores = dict[int, Score]
"""Layer l → the mean over repetitions."""


class Profile(NamedTuple):
    """One system with L layers on one dataset."""

    dataset: str
    model: str
    score: str
    layers: int
    values: dict[str, LayerScores]
    """Measure → its layers."""

    @property
    def name(self) -> str:
        return system_name(self.model, self.score)


def profiles(records: Iterable[Record]) -> list[Profile]:
    """One profile per system and depth with measured layers, or at least scored ones."""
    records = list(records)
    profiled = curves(r for r in records if r["measures"].get(PROFILE))
    depths: dict[str, set[int]] = {}
    for key, curve in profiled.items():
        depths.setdefault(key[0], set()).update(curve)
    found = []
    for (dataset, model, score), curve in curves(records).items():
        measured = profiled.get((dataset, model, score), {})
        # the other depths of a dataset with full measures would leave empty panels
        for layers in sorted(depths.get(dataset, set(curve)).intersection(curve)):
            values = {ACCURACY: _means(curve[layers], ACCURACY)}
            for measure in (*(panel.measure for panel in PANELS[1:]), UNIFORM):
                values[measure] = _means(measured.get(layers, []), measure)
            if any(len(means) > 1 for means in values.values()):
                found.append(Profile(dataset, model, score, layers, values))
    return found


def _means(records: Sequence[Record], measure: str) -> LayerScores:
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


# ------------------------------------------------------------------------------- tables


def smoothing_tables(found: Sequence[Profile]) -> list[Table]:
    """A table per dataset and depth: a row per system and layer."""
    tables = []
    for dataset, layers in dict.fromkeys((p.dataset, p.layers) for p in found):
        own = [p for p in found if (p.dataset, p.layers) == (dataset, layers)]
        rows = []
        for profile in own:
            for layer in sorted({layer for means in profile.values.values() for layer in means}):
                cells = [
                    _cell(profile.values[panel.measure].get(layer), panel.digits)
                    for panel in PANELS
                ]
                uniform = _cell(profile.values[UNIFORM].get(layer), 3)
                rows.append([profile.name, str(layer), *cells, uniform])
        tables.append(
            Table(
                f"over-smoothing-{dataset}-{layers}",
                f"Layer by layer, {dataset}, L = {layers}",
                list(COLUMNS),
                rows,
                [
                    "Means over repetitions. Own micro-F1: of the class prediction that the layer "
                    "itself makes, test nodes; layer 0 is the input. Energy: normalised Dirichlet "
                    "energy of h^l. Same-class attention: the share of attention that goes to "
                    "nodes of one's own class, and what attention to all alike would give."
                ],
            )
        )
    return tables


def _cell(score: Score | None, digits: int) -> str:
    if score is None:
        return "–"
    if 0 < abs(score.mean) < 10**-digits:
        text = f"{score.mean:.1e}"
    else:
        text = f"{score.mean:,.{digits if abs(score.mean) < 1000 else 0}f}"
    return Sourced(text, score.runs)
