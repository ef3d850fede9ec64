"""What a report says: the records of a store as tables, figures, and the data of its page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from matplotlib.figure import Figure

from deepgat.lab.report import charts, paper_tables
from deepgat.lab.report.attention import attention_figures, attention_tables
from deepgat.lab.report.drifts import REFERENCE_DEPTH, Arrays, Drift, attention_drifts
from deepgat.lab.report.families import Family, families
from deepgat.lab.report.layout import Sourced, Table
from deepgat.lab.report.lemmas import Checked, lemma_figures, lemma_table
from deepgat.lab.report.paper_figures import degradation_figure, depth_figures, nearest_figures
from deepgat.lab.report.scores import Record, system_name
from deepgat.lab.report.smoothing import profiles, smoothing_figures, smoothing_tables

SPLIT, SEED = "split", "seed"


@dataclass(frozen=True)
class Source:
    """What a report is made of."""

    name: str
    records: Sequence[Record]
    failures: Sequence[Record] = ()
    arrays: Arrays | None = None
    """None where there are records alone."""
    statistics: Sequence[dict[str, Any]] = ()
    """Of the datasets, for Table 1."""
    lemmas: Sequence[Checked] = ()
    drifts: Sequence[Drift] = ()
    """Of attention, computed before: for records without arrays."""


@dataclass(frozen=True)
class Section:
    """One part of a report."""

    name: str
    title: str
    intro: str
    tables: list[Table] = field(default_factory=list)
    charts: list[charts.Chart] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    """Charts behind a slider, by dataset."""
    figures: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not any(table.rows for table in self.tables) and not self.charts and not self.views


@dataclass(frozen=True)
class Contents:
    """A whole report."""

    title: str
    source: Source
    families: dict[Family, list[Section]]
    common: list[Section]

    def parts(self) -> Iterable[tuple[str, Section]]:
        """(what its files' names begin with, section), of all."""
        seen: set[str] = set()
        for number, (family, sections) in enumerate(self.families.items(), start=1):
            slug = _slug(family.name)
            if slug in seen:  # cut off before they differ
                slug += f"-{number}"
            seen.add(slug)
            prefix = "" if len(self.families) == 1 else f"{slug}-"
            yield from ((prefix, section) for section in sections)
        yield from (("", section) for section in self.common)


def make_contents(source: Source, title: str) -> Contents:
    """All that can be told from the records; sections without content are left out."""
    scored = [record for record in source.records if _is_scored(record)]
    found = {
        family: [section for section in _sections(family, runs, source) if not section.empty]
        for family, runs in families(scored).items()
    }
    return Contents(title, source, found, _common(source))


def _is_scored(record: Record) -> bool:
    scores = record["micro_f1"]
    return scores.get("val") is not None and scores.get("test") is not None


def _sections(family: Family, runs: Sequence[Record], source: Source) -> Iterable[Section]:
    rules = family.protocol
    yield Section(
        "results",
        "Results",
        "Test micro-F1 at the best depth and at the largest, the published numbers beside ours.",
        [paper_tables.table2(runs, rules)],
    )
    yield Section(
        "depth",
        "Depth",
        "Test micro-F1 against the number of layers.",
        paper_tables.depth_tables(runs),
        charts.depth_charts(runs),
        figures=depth_figures(runs),
    )
    lost = charts.degradation_chart(runs, rules)
    yield Section(
        "degradation",
        "Degradation",
        "What GAT loses from its best depth to its largest.",
        [paper_tables.degradation_table(runs, rules)],
        lost,
        figures={"degradation": degradation_figure(runs, rules)} if lost else {},
    )
    layers = profiles(runs)
    yield Section(
        "over-smoothing",
        "Over-smoothing",
        "Layer by layer, for networks of the chosen depth: what each layer's own prediction is "
        "worth, and whether nodes still differ.",
        smoothing_tables(layers),
        views=charts.smoothing_views(layers),
        figures=smoothing_figures(layers),
    )
    drifts = _drifts(runs, source, rules)
    yield Section(
        "attention-kl",
        "Attention",
        f"How far the attention of a deep network is from that of {REFERENCE_DEPTH} layers, "
        "beside the bound that holds by construction and what uniform attention would give. "
        "Boxes: quartiles over nodes; whiskers: 5th and 95th percentile.",
        attention_tables(drifts, rules) if drifts else [],
        charts.attention_charts(drifts),
        figures=attention_figures(drifts),
    )
    prototypes = "train+val" if rules == "authors" else "train"
    yield Section(
        "nearest-neighbor",
        "Nearest neighbour",
        "The error e_N of the nearest prototype on h^L, which bounds the Bayes error from above.",
        paper_tables.nearest_tables(runs),
        charts.nearest_charts(runs),
        figures=nearest_figures(runs, prototypes),
    )


def _drifts(runs: Sequence[Record], source: Source, rules: str) -> list[Drift]:
    """Of these runs: from their arrays, or computed before."""
    if source.arrays is not None:
        kept = [r for r in runs if (r.get("analysis") or {}).get("attention") == "all"]
        return attention_drifts(kept, source.arrays, rules)
    signatures = {record["signature"] for record in runs}
    return [drift for drift in source.drifts if signatures.issuperset(drift.runs)]


def _common(source: Source) -> list[Section]:
    found = []
    if source.statistics:
        found.append(
            Section(
                "datasets",
                "Datasets",
                "The paper's Table 1, and the same numbers computed from the graphs at hand.",
                [paper_tables.table1(source.statistics)],
            )
        )
    if source.lemmas:
        found.append(
            Section(
                "lemmas",
                "Lemmas",
                "Both lemmas of the paper against draws, in the exact form and in that of path "
                "counts.",
                [lemma_table(source.lemmas)],
                charts.lemma_charts(source.lemmas),
                figures=lemma_figures(source.lemmas),
            )
        )
    return found


# ------------------------------------------------------------------------------- for the page


def page_data(contents: Contents) -> dict[str, Any]:
    """All of a report as plain values; runs are named by their place in one list."""
    records = sorted(contents.source.records, key=_order)
    places = {record["signature"]: place for place, record in enumerate(records)}
    specs, origins = _Interned(), _Interned()
    return {
        "title": contents.title,
        "source": contents.source.name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "systems": _systems(records),
        "runs": [_run(record, specs, origins) for record in records],
        "failures": [_failure(record, specs, origins) for record in contents.source.failures],
        "specs": specs.values,
        "origins": origins.values,
        "families": [
            {
                "name": family.name,
                "changes": list(family.changes),
                "rule": paper_tables.CHOSEN[family.protocol],
                "sections": [_section(section, places) for section in sections],
            }
            for family, sections in contents.families.items()
        ],
        "common": [_section(section, places) for section in contents.common],
    }


class _Interned:
    """Equal values once each."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        text = json.dumps(value, sort_keys=True)
        if text not in self._places:
            self._places[text] = len(self.values)
            self.values.append(value)
        return self._places[text]


def _order(record: Record) -> tuple[Any, ...]:
    model = record["model"]
    return (
        record["dataset"],
        model["model"],
        model["score"],
        model["layers"],
        record[SPLIT],
        record[SEED],
        record["signature"],
    )


def _systems(records: Iterable[Record]) -> list[str]:
    """Names of all systems, whose places choose their colours."""
    pairs = sorted({(record["model"]["model"], record["model"]["score"]) for record in records})
    return [system_name(*pair) for pair in pairs]


def _run(record: Record, specs: _Interned, origins: _Interned) -> dict[str, Any]:
    return {
        **_described(record, specs, origins),
        "f1": {part: record["micro_f1"].get(part) for part in ("train", "val", "test")},
        "best": record["best_epoch"],
        "epochs": record["epochs"],
        "stopped": record["stopped"],
        "seconds": record.get("wall_seconds", record["seconds"]),
        "memory": (record.get("peak_memory") or {}).get("bytes"),
    }


def _failure(record: Record, specs: _Interned, origins: _Interned) -> dict[str, Any]:
    return {
        **_described(record, specs, origins),
        "error": record["error"],
        "trace": record.get("traceback", ""),
        "when": record.get("when", ""),
    }


def _described(record: Record, specs: _Interned, origins: _Interned) -> dict[str, Any]:
    """Which run it is: all but the split and the seed are shared with others."""
    data = dict(record.get("data") or {"dataset": record["dataset"], SPLIT: record[SPLIT]})
    training = {name: v for name, v in record["training"].items() if name != "device"}
    split, seed = data.pop(SPLIT), training.pop(SEED, record.get(SEED))
    model = record["model"]
    spec = {
        "data": data,
        "model": dict(model),
        "training": training,
        "analysis": dict(record.get("analysis") or {}),
    }
    origin = {
        "hardware": record.get("hardware", ""),
        "versions": dict(record.get("versions") or {}),
    }
    return {
        "id": record["signature"],
        "dataset": data["dataset"],
        "system": system_name(model["model"], model["score"]),
        "layers": model["layers"],
        "split": split,
        "seed": seed,
        "spec": specs.place(spec),
        "origin": origins.place(origin),
    }


def _section(section: Section, places: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": section.name,
        "title": section.title,
        "intro": section.intro,
        "tables": [_table(table, places) for table in section.tables],
        "charts": [_with_places(chart, places) for chart in section.charts],
        "views": [_with_places(view, places) for view in section.views],
    }


def _table(table: Table, places: Mapping[str, int]) -> dict[str, Any]:
    def cell(text: str) -> Any:
        if not isinstance(text, Sourced):
            return text
        return [str(text), [places[run] for run in text.runs]]

    return {
        "name": table.name,
        "title": table.title,
        "columns": table.columns,
        "rows": [[cell(text) for text in row] for row in table.rows],
        "notes": table.notes,
    }


def _with_places(value: Any, places: Mapping[str, int]) -> Any:
    """A chart whose signatures, the tuples in it, have become places in the list of runs."""
    if isinstance(value, dict):
        return {key: _with_places(inner, places) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [places[run] for run in value]
    if isinstance(value, list):
        return [_with_places(inner, places) for inner in value]
    return value


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")[:48].rstrip("-.")
