"""The divergence (D_KL) between the attention of a 2-layer network and that of a deep one.

DeepGAT's scores compare class predictions, which bounds D_KL by construction. The tables show this
bound, and the D_KL of uniform attention, beside the measured values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from deepgat.analysis import attention_divergence, divergence_bound
from deepgat.data.catalogue.entries import ENTRIES
from deepgat.files import beside, to_json, write_whole
from deepgat.lab.experiments import Store
from deepgat.lab.experiments.schema import DamagedEntry, check, load_object
from deepgat.lab.experiments.transfer import read_lines
from deepgat.lab.report.charts import table_by_x
from deepgat.lab.report.scores import Curve, Record, System, curves, f1_on_test
from deepgat.lab.report.table import NONE, Sourced, Table

REFERENCE_DEPTH = 2
PERCENTILES = (5, 25, 50, 75, 95)
LEAST = 0.0005
"""The least value on the logarithmic axis of a chart; tables print it as 0.000 or 0.001."""

DRIFT = {"protocol": str, "dataset": str, "model": str, "score": str, "layers": int,
         "divergence": {int: [float]}, "uniform": [float], "bounds": {int: (float, None)},
         "runs": [str]}  # fmt: skip
"""A line of the file beside records, as :mod:`deepgat.lab.experiments.schema` checks it."""

Arrays = Callable[[str], Mapping[str, Tensor] | None]
"""Signature → the arrays of that run, or None if it kept none."""


@dataclass(frozen=True)
class Drift:
    """D_KL(α² ‖ α^L) of one system on one dataset, over the nodes of all its runs."""

    protocol: str
    dataset: str
    model: str
    score: str
    layers: int
    """L of the deep network."""
    divergence: dict[int, list[float]]
    """Layer l of the deep network → :data:`PERCENTILES` over nodes."""
    uniform: list[float]
    """Likewise, of D_KL(α² ‖ 1/|N_v|)."""
    bounds: dict[int, float | None]
    """The last layer → the largest possible value, or None if scores are unbounded."""
    runs: tuple[str, ...]
    """Signatures of the deep networks."""

    @property
    def name(self) -> str:
        return System(self.model, self.score).name


def attention_drifts(records: Iterable[Record], arrays: Arrays, protocol: str) -> list[Drift]:
    """One drift per system and dataset whose runs kept their attention.

    The protocol ``authors`` follows the authors' code: it adds 1e-5 to both attentions and uses
    only the run with the best test score. ``honest`` is the paper's formula over all runs.
    """
    found = []
    for dataset, systems in curves(records).items():
        for system, curve in systems.items():
            deep, pairs = max(curve), _pairs(curve, arrays, protocol)
            if not pairs:
                continue
            layers: dict[int, list[Tensor]] = {layer: [] for layer in range(1, deep + 1)}
            uniform: list[Tensor] = []
            for _, one, other in pairs:
                degree = one["attention.ptr"].long().diff()
                target = torch.arange(len(degree)).repeat_interleave(degree)
                edges = torch.stack([target, target])  # D_KL does not depend on the sources
                reference = one[f"attention.{REFERENCE_DEPTH}"].unsqueeze(1)
                reading = "authors" if protocol == "authors" else "paper"
                for layer, parts in layers.items():
                    weight = other[f"attention.{layer}"].unsqueeze(1)
                    parts.append(attention_divergence(edges, reference, weight, reading))
                even = (1 / degree)[target].unsqueeze(1)
                uniform.append(attention_divergence(edges, reference, even, reading))
            divergence = {layer: _percentiles(parts) for layer, parts in layers.items()}
            bounds = {deep: _bound(curve[deep][0])}
            runs = tuple(signature for signature, _, _ in pairs)
            found.append(Drift(protocol, dataset, *system, deep, divergence,
                               _percentiles(uniform), bounds, runs))  # fmt: skip
    return found


def _pairs(
    curve: Curve, arrays: Arrays, protocol: str
) -> list[tuple[str, Mapping[str, Tensor], Mapping[str, Tensor]]]:
    """Of each repetition: the deep network's signature, the shallow and the deep one's arrays."""
    if REFERENCE_DEPTH not in curve or max(curve) == REFERENCE_DEPTH:
        return []
    shallow = {(r["split"], r["seed"]): r["signature"] for r in curve[REFERENCE_DEPTH]}
    deep = [r for r in curve[max(curve)] if (r["split"], r["seed"]) in shallow]
    if protocol == "authors" and deep:
        deep = [max(deep, key=f1_on_test)]
    found = []
    for record in deep:
        one = arrays(shallow[record["split"], record["seed"]])
        other = arrays(record["signature"])
        if one is None or other is None:
            continue
        wanted = [(one, REFERENCE_DEPTH), *((other, layer) for layer in range(1, max(curve) + 1))]
        if all(_has_attention(own, layer, one.get("attention.ptr")) for own, layer in wanted):
            found.append((record["signature"], one, other))
        else:
            text = f"the run {record['signature']} does not have the attention of all its layers"
            warnings.warn(text, stacklevel=2)
    return found


def _has_attention(arrays: Mapping[str, Tensor], layer: int, ptr: Tensor | None) -> bool:
    """Whether a layer has a weight for each edge of the lists that ``ptr`` divides."""
    weight = arrays.get(f"attention.{layer}")
    if weight is None or ptr is None or ptr.dim() != 1 or not len(ptr) or ptr.is_floating_point():
        return False
    ordered = int(ptr[0]) == 0 and bool((ptr.diff() >= 0).all())
    return ordered and weight.is_floating_point() and weight.shape == (int(ptr[-1]),)


def _percentiles(parts: Sequence[Tensor]) -> list[float]:
    shares = torch.tensor(PERCENTILES, dtype=torch.float64) / 100
    found: list[float] = torch.quantile(torch.cat(list(parts)).double(), shares).tolist()
    return found


def _bound(record: Record) -> float | None:
    """The largest D_KL of two last layers, or None if it is not known."""
    settings, entry = record["settings"], ENTRIES.get(record["dataset"])
    known = {"class_activation", "score", "sd_scale"} <= settings.keys()
    # of a user's graph the classes are not known
    if record["system"] != "deepgat" or entry is None or not known:
        return None
    # The product of two probability vectors is in [0, 1], of two multi-label vectors in [0, C].
    independent = entry.multi_label and settings["class_activation"] == "by-task"
    length = float(entry.classes) if independent else 1.0
    if settings["score"] == "dp":
        return divergence_bound(length)
    width = entry.classes
    return divergence_bound(
        length / (width if settings["sd_scale"] == "width" else math.sqrt(width))
    )


def attention_tables(drifts: Sequence[Drift], protocol: str) -> list[Table]:
    """The last layer of every system; then, per dataset, every layer."""
    rows = []
    for drift in drifts:
        bound = drift.bounds[drift.layers]
        rows.append(
            [
                drift.dataset,
                drift.name,
                str(drift.layers),
                *(Sourced(_three(v), drift.runs) for v in drift.divergence[drift.layers][1:]),
                NONE if bound is None else _three(bound),
                _three(drift.uniform[2]),
                str(len(drift.runs)),
            ]
        )
    notes = [
        "Quartiles and 95th percentile over nodes. Bound: the most that the formula can give for "
        "this score, whatever was learnt; none for GAT. Uniform: the median if the deep network "
        "attended to all neighbours alike. The paper prints no numbers for its figure.",
        "Authors' reading: 1e-5 added to both; of the runs looked at, the one with the best test "
        "score."
        if protocol == "authors"
        else "The paper's formula; nodes of all runs looked at together.",
    ]
    columns = ["dataset", "system", "L", "25%", "median", "75%", "95%", "bound", "uniform", "runs"]
    title = "D_KL of attention, last layer of the 2-layer network to that of the deepest"
    tables = [Table("attention-kl", title, columns, rows, notes)]
    for dataset in dict.fromkeys(drift.dataset for drift in drifts):
        own = [drift for drift in drifts if drift.dataset == dataset]
        cells = {
            drift.name: {layer: _median(v, drift.runs) for layer, v in drift.divergence.items()}
            for drift in own
        }
        table = table_by_x(
            f"attention-kl-{dataset}",
            f"D_KL from the 2-layer network to each layer of the deepest, {dataset}",
            cells,
            ["Median [quartiles] over nodes."],
            ("layer", "D_KL from the 2-layer network's attention"),
            log=True,
            note=f"Medians over nodes; bands: quartiles. Less than {LEAST} is drawn as {LEAST}.",
        )
        table.rows.append(["uniform", *(str(_median(drift.uniform)) for drift in own)])
        tables.append(table)
    return tables


def _median(spread: list[float], runs: Sequence[str] = ()) -> Sourced:
    _, first, median, third, _ = spread
    text = f"{_three(median)} [{_three(first)}, {_three(third)}]"
    return Sourced(text, runs, [max(value, LEAST) for value in (median, first, third)])


def _three(value: float) -> str:
    """Three digits; no minus sign before 0.000."""
    return f"{round(value, 3) + 0.0:.3f}"


def find_drifts(source: Path, records: Sequence[Record], protocol: str) -> list[Drift]:
    """From the arrays of a store, or from the file beside a file of records."""
    if source.is_dir():
        kept = [r for r in records if (r.get("analysis") or {}).get("attention") == "all"]
        return attention_drifts(kept, Store(source, create=False).arrays, protocol)
    path = drifts_beside(source)
    if not path.exists():
        return []
    names = {record["signature"]: record["dataset"] for record in records}
    return [
        replace(drift, dataset=names[drift.runs[0]])
        for drift in read_lines(path, _parse_drift, "a divergence of attention")
        if names.keys() >= set(drift.runs)
    ]


def _parse_drift(line: str) -> Drift:
    values = load_object(line)
    check(values, DRIFT)
    spreads = [values["uniform"], *values["divergence"].values()]
    whole = all(len(spread) == len(PERCENTILES) for spread in spreads) and values["runs"]
    if not whole or str(values["layers"]) not in values["divergence"].keys() & values["bounds"]:
        raise DamagedEntry("write the file anew with deepgat reproduce attention-kl")
    by_layer = {
        name: {int(layer): value for layer, value in values[name].items()}
        for name in ("divergence", "bounds")
    }
    own = {name: values[name] for name in DRIFT}
    return Drift(**{**own, **by_layer, "runs": tuple(values["runs"])})


def drifts_beside(records: Path) -> Path:
    """The file of drifts that belongs to a file of records."""
    return beside(records, "attention")


def write_drifts(path: Path, drifts: Iterable[Drift]) -> None:
    """Write one JSON object per line."""
    write_whole(path, "".join(to_json(asdict(drift)) for drift in drifts))
