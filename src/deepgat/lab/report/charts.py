"""Every figure of a report as plain values.

``page/charts.js`` draws them on the page and :mod:`deepgat.lab.report.figures` in files.

A point of a line is ``[x, y, low, high, text, runs]``: the ends of its band (None without one), the
text of its tooltip, and a tuple with the signatures of its runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from deepgat.lab.paper.lemma_graphs import Checked
from deepgat.lab.paper.lemmas import LemmaCheck
from deepgat.lab.paper.published import DEEPGAT_PAPER
from deepgat.lab.report.attention_drift import Drift
from deepgat.lab.report.over_smoothing import PANELS, UNIFORM, Panel, Profile
from deepgat.lab.report.paper_tables import degradations, nearest_score
from deepgat.lab.report.scores import Record, Score, curves, score_on_test, system_name

Chart = dict[str, Any]
DEPTH_AXIS = "number of layers L"


def depth_charts(records: Iterable[Record]) -> list[Chart]:
    """Micro-F1 against L with 95% intervals, a chart per dataset; published points hollow."""
    found = curves(records)
    charts = []
    for dataset in dict.fromkeys(key[0] for key in found):
        series = []
        for (_, model, score), curve in _of_dataset(found, dataset):
            name = system_name(model, score)
            points = [_point(layers, score_on_test(runs)) for layers, runs in curve.items()]
            series.append(_line(name, points))
            if printed := DEEPGAT_PAPER.get((model, score, dataset)):
                pairs = {
                    printed.best_layers: printed.best,
                    printed.deepest_layers: printed.deepest,
                }
                marks = [[x, y, None, None, f"{y:.1f}", ()] for x, y in pairs.items()]
                series.append(
                    _line(name, marks, label=f"{name}, published", hollow=True, line=False)
                )
        charts.append(
            {
                "kind": "lines",
                "name": f"depth-{dataset}",
                "title": f"Micro-F1 against depth, {dataset}",
                "x": DEPTH_AXIS,
                "y": "test micro-F1 (%)",
                "floor": 0,
                "ceiling": 100,
                "series": series,
                "note": "Bands: 95% intervals." + _published_note(series),
            }
        )
    return charts


def degradation_chart(records: Sequence[Record], protocol: str) -> list[Chart]:
    """Points lost from the best depth to the largest: bars, published hollow."""
    bars = degradations(records, protocol)
    groups = list(dict.fromkeys(dataset for row in bars.values() for dataset in row))
    if not groups:
        return []
    series = []
    for label, row in bars.items():
        name, _, published = label.partition(", ")
        values = [_number(row.get(group)) for group in groups]
        series.append({"key": name, "label": label, "hollow": bool(published), "values": values})
    return [
        {
            "kind": "bars",
            "name": "degradation",
            "title": "Best depth minus largest depth, GAT",
            "y": "points of micro-F1 lost",
            "groups": groups,
            "series": series,
            "note": _published_note(series).strip(),
        }
    ]


def nearest_charts(records: Iterable[Record], prototypes: str) -> dict[str, Chart]:
    """Dataset → e_N against L; the bands reach down to the lower bound of the Bayes error."""
    found = curves(r for r in records if r["measures"].get("nearest-neighbor"))
    charts = {}
    for dataset in dict.fromkeys(key[0] for key in found):
        series = []
        for (_, model, score), curve in _of_dataset(found, dataset):
            points = []
            for layers in curve:
                error = nearest_score(curve, layers, prototypes, "error")
                lower = nearest_score(curve, layers, prototypes, "bayes_lower")
                if error is None:
                    continue
                text = _text(error)
                if lower is not None:
                    text += f"; Bayes error {lower.mean:.1f} to {error.mean:.1f}"
                low = None if lower is None else lower.mean
                mean = _number(error.mean)
                points.append([layers, mean, _number(low), mean, text, error.runs])
            series.append(_line(system_name(model, score), points, dash=model == "oracle"))
        charts[dataset] = {
            "kind": "lines",
            "name": f"nearest-neighbor-{dataset}-{prototypes.replace('+', '-')}",
            "title": f"e_N on h^L, {dataset}, prototypes {prototypes}",
            "x": DEPTH_AXIS,
            "y": "error of the nearest prototype (%)",
            "floor": 0,
            "series": series,
            "note": "Bands: where the Bayes error lies.",
        }
    return charts


def attention_charts(drifts: Sequence[Drift]) -> list[Chart]:
    """Boxes per layer, uniform attention, and the bound; a chart per system and dataset."""
    charts = []
    for drift in drifts:
        bounds = [drift.bounds[layer] for layer in drift.divergence]
        charts.append(
            {
                "kind": "boxes",
                "name": f"attention-kl-{drift.dataset}-{drift.name.lower().replace(' ', '-')}",
                "title": f"{drift.name}, {drift.dataset}",
                "x": f"layer of the {drift.layers}-layer network",
                "y": "D_KL from the 2-layer network's attention",
                "key": drift.name,
                "boxes": [
                    [str(layer), *map(_number, spread), drift.runs]
                    for layer, spread in drift.divergence.items()
                ],
                "uniform": list(map(_number, drift.uniform)),
                "bounds": None if None in bounds else list(map(_number, bounds)),
            }
        )
    return charts


def lemma_charts(checks: Sequence[Checked]) -> list[Chart]:
    """The variance of one output of h^l: drawn, by both forms, and where it must lie."""
    charts = []
    for number, item in enumerate(checks, start=1):
        check = item.check
        series = []
        for color, (words, node) in enumerate(_extreme_nodes(check).items()):
            series += _lemma_lines(check, node, words, color)
        charts.append(
            {
                "kind": "lines",
                "name": f"lemma-{number}",
                "title": f"{item.lemma}, {item.graph}",
                "x": "layer l",
                "y": "variance of the first output of hˡ",
                "log": True,
                "series": series,
                "note": f"Bands: where {check.draws:,} draws must lie if the exact formula is "
                f"right, all together with probability {check.level:.0%}.",
            }
        )
    return charts


def _extreme_nodes(check: LemmaCheck) -> dict[str, int]:
    """The indices of the nodes with the fewest and with the most neighbours."""
    alone = check.degree <= 1  # its covariance never changes
    fewest = check.degree.masked_fill(alone, int(check.degree.max()) + 1).argmin()
    most = check.degree.argmax()
    if check.degree[fewest] == check.degree[most]:
        return {"every node": int(most)}
    return {"fewest neighbours": int(fewest), "most neighbours": int(most)}


def _lemma_lines(check: LemmaCheck, node: int, words: str, color: int) -> list[dict[str, Any]]:
    def variances(moments: Any) -> list[float]:
        return [float(value) for value in moments.covariance[:, node, 0, 0]]

    low, high = variances(check.bands.lower), variances(check.bands.upper)
    exact = [
        [l, _number(v), _number(a), _number(b), f"{v:.4g} (band {a:.4g} to {b:.4g})", ()]
        for l, (v, a, b) in enumerate(zip(variances(check.exact), low, high, strict=True), 1)  # noqa: E741
    ]

    def plain(moments: Any) -> list[list[Any]]:
        return [
            [l, _number(v), None, None, f"{v:.4g}", ()]
            for l, v in enumerate(variances(moments), 1)  # noqa: E741
        ]

    return [
        _line(f"{words}: exact", exact, color=color, marker=False),
        _line(f"{words}: path counts", plain(check.path_count), color=color, dash=True,
              marker=False),
        _line(f"{words}: drawn", plain(check.empirical), color=color, hollow=True, line=False),
    ]  # fmt: skip


def smoothing_views(profiles: Sequence[Profile]) -> list[dict[str, Any]]:
    """Per dataset the depths that a slider offers, with the panels of each."""
    views = []
    for dataset in dict.fromkeys(profile.dataset for profile in profiles):
        own = [profile for profile in profiles if profile.dataset == dataset]
        depths = sorted({profile.layers for profile in own})
        views.append(
            {
                "dataset": dataset,
                "depths": depths,
                "panels": [
                    _panels(dataset, [p for p in own if p.layers == layers]) for layers in depths
                ],
            }
        )
    return views


def _panels(dataset: str, profiles: Sequence[Profile]) -> list[Chart]:
    charts = []
    for panel in PANELS:
        series = [
            _line(profile.name, [_panel_point(panel, *item) for item in means.items()])
            for profile in profiles
            if (means := profile.values[panel.measure])
        ]
        if not series:
            continue
        if panel.measure == "same_class_attention":
            even = max((p.values[UNIFORM] for p in profiles), key=len)
            points = [_panel_point(panel, *item) for item in even.items()]
            series.append(_line("uniform attention", points, dash=True, marker=False))
        charts.append(
            {
                "kind": "lines",
                "name": f"smoothing-{panel.measure.replace('_', '-')}",
                "title": panel.title,
                "x": "layer l",
                "y": panel.label,
                "log": panel.log,
                "floor": panel.floor,
                "ceiling": panel.ceiling,
                "series": series,
            }
        )
    return charts


def _panel_point(panel: Panel, layer: int, score: Score) -> list[Any]:
    return _point(layer, score, "{:.1f}" if panel.digits == 1 else "{:.3g}")


# ------------------------------------------------------------------------------- pieces


def _published_note(series: Sequence[dict[str, Any]]) -> str:
    return " Hollow: published." if any(line.get("hollow") for line in series) else ""


def _of_dataset(found: dict[tuple[str, str, str], Any], dataset: str) -> list[tuple[Any, Any]]:
    return [(key, curve) for key, curve in found.items() if key[0] == dataset]


def _line(key: str, points: list[list[Any]], **more: Any) -> dict[str, Any]:
    return {"key": key, "label": key, "points": points, **more}


def _point(x: int, score: Score, form: str = "{:.1f}") -> list[Any]:
    half = score.half_width
    ends = (None, None) if math.isnan(half) else (score.mean - half, score.mean + half)
    return [x, _number(score.mean), *map(_number, ends), _text(score, form), score.runs]


def _text(score: Score, form: str = "{:.1f}") -> str:
    spread = "" if math.isnan(score.half_width) else " ± " + form.format(score.half_width)
    return f"{form.format(score.mean)}{spread} (n = {score.repeats})"


def _number(value: float | None) -> float | None:
    """Six digits; None for what JSON has no word for."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
