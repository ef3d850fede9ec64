"""The sections of a report: tables and charts computed from records.

``deepgat reproduce`` prints one section, ``deepgat report`` puts all of them on a page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from deepgat.lab.paper.lemma_graphs import Checked
from deepgat.lab.report import charts, paper_tables
from deepgat.lab.report.attention_drift import (
    REFERENCE_DEPTH,
    Arrays,
    Drift,
    attention_drifts,
    attention_tables,
)
from deepgat.lab.report.charts import Chart
from deepgat.lab.report.families import Family, families
from deepgat.lab.report.figures import draw
from deepgat.lab.report.over_smoothing import profiles, smoothing_tables
from deepgat.lab.report.scores import Record
from deepgat.lab.report.table import Table


@dataclass(frozen=True)
class Section:
    """Tables and charts on one question."""

    name: str
    title: str
    intro: str
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    """Per dataset: charts for several depths, which the page shows behind a slider."""
    panels: Mapping[str, tuple[str, Sequence[Chart]]] = field(default_factory=dict)
    """File name → title and charts of one figure."""

    @property
    def empty(self) -> bool:
        return not any(table.rows for table in self.tables) and not self.charts and not self.views

    def figures(self) -> dict[str, Figure]:
        """File name → figure."""
        return {name: draw(shown, title) for name, (title, shown) in self.panels.items()}


def table1_section(statistics: Sequence[dict[str, Any]]) -> Section:
    return Section(
        "datasets",
        "Datasets",
        "The paper's Table 1, and the same numbers computed from the graphs at hand.",
        [paper_tables.table1(statistics)],
    )


def lemma_section(checks: Sequence[Checked]) -> Section:
    drawn = charts.lemma_charts(checks)
    return Section(
        "lemmas",
        "Lemmas",
        "Both lemmas of the paper against draws, in the exact form and in that of path counts.",
        [paper_tables.lemma_table(checks)],
        drawn,
        panels={"lemmas": ("", drawn)},
    )


def attention_section(drifts: Sequence[Drift], protocol: str) -> Section:
    drawn = charts.attention_charts(drifts)
    by_dataset: dict[str, list[Chart]] = {}
    for drift, chart in zip(drifts, drawn, strict=True):
        by_dataset.setdefault(f"attention-kl-{drift.dataset}", []).append(chart)
    return Section(
        "attention-kl",
        "Attention",
        f"How far the attention of a deep network is from that of {REFERENCE_DEPTH} layers, "
        "beside the bound that holds by construction and what uniform attention would give. "
        "Boxes: quartiles over nodes; whiskers: 5th and 95th percentile.",
        attention_tables(drifts, protocol) if drifts else [],
        drawn,
        panels={name: ("", own) for name, own in by_dataset.items()},
    )


def _table2(records: Sequence[Record], protocol: str) -> Section:
    return Section(
        "results",
        "Results",
        "Test micro-F1 at the best depth and at the largest, the published numbers beside ours.",
        [paper_tables.table2(records, protocol)],
    )


def _depth(records: Sequence[Record], _: str) -> Section:
    drawn = charts.depth_charts(records)
    return Section(
        "depth",
        "Depth",
        "Test micro-F1 against the number of layers.",
        paper_tables.depth_tables(records),
        drawn,
        panels={chart["name"]: ("", [chart]) for chart in drawn},
    )


def _degradation(records: Sequence[Record], protocol: str) -> Section:
    drawn = charts.degradation_chart(records, protocol)
    return Section(
        "degradation",
        "Degradation",
        "What GAT loses from its best depth to its largest.",
        [paper_tables.degradation_table(records, protocol)],
        drawn,
        panels={chart["name"]: ("", [chart]) for chart in drawn},
    )


def _over_smoothing(records: Sequence[Record], _: str) -> Section:
    layers = profiles(records)
    views = charts.smoothing_views(layers)
    return Section(
        "over-smoothing",
        "Over-smoothing",
        "Layer by layer, for networks of the chosen depth: what each layer's own prediction is "
        "worth, and whether nodes still differ.",
        smoothing_tables(layers),
        views=views,
        panels={
            f"over-smoothing-{view['dataset']}-{depth}": (
                f"Over-smoothing, {view['dataset']}, L = {depth}",
                panels,
            )
            for view in views
            for depth, panels in zip(view["depths"], view["panels"], strict=True)
        },
    )


def _nearest_neighbor(records: Sequence[Record], protocol: str) -> Section:
    prototypes = "train+val" if protocol == "authors" else "train"
    drawn = {name: charts.nearest_charts(records, name) for name in paper_tables.PROTOTYPES}
    return Section(
        "nearest-neighbor",
        "Nearest neighbour",
        "The error e_N of the nearest prototype on h^L, which bounds the Bayes error from above.",
        paper_tables.nearest_tables(records),
        [by_dataset[dataset] for dataset in drawn[prototypes] for by_dataset in drawn.values()],
        panels={
            f"nearest-neighbor-{dataset}": ("", [chart])
            for dataset, chart in drawn[prototypes].items()
        },
    )


FROM_RECORDS: dict[str, Callable[[Sequence[Record], str], Section]] = {
    "table2": _table2,
    "depth": _depth,
    "degradation": _degradation,
    "over-smoothing": _over_smoothing,
    "nearest-neighbor": _nearest_neighbor,
}
"""Target of ``deepgat reproduce`` → its section, from records and the protocol."""


# ------------------------------------------------------------------------------- the whole report


@dataclass(frozen=True)
class Source:
    """What a report is computed from."""

    name: str
    records: Sequence[Record]
    failures: Sequence[Record] = ()
    arrays: Arrays | None = None
    """None if only records are available."""
    statistics: Sequence[dict[str, Any]] = ()
    """Of the datasets, for Table 1."""
    lemmas: Sequence[Checked] = ()
    drifts: Sequence[Drift] = ()
    """Attention drifts computed earlier, for records without arrays."""


@dataclass(frozen=True)
class Report:
    """All sections: those of each family of runs, and those that need no runs."""

    title: str
    source: Source
    families: dict[Family, list[Section]]
    common: list[Section]

    def parts(self) -> Iterable[tuple[str, Section]]:
        """(prefix of the section's file names, section)."""
        seen: set[str] = set()
        for number, (family, sections) in enumerate(self.families.items(), start=1):
            slug = re.sub(r"[^a-z0-9.]+", "-", family.name.lower()).strip("-")[:48].rstrip("-.")
            if slug in seen:  # two long names with the same beginning
                slug += f"-{number}"
            seen.add(slug)
            prefix = "" if len(self.families) == 1 else f"{slug}-"
            yield from ((prefix, section) for section in sections)
        yield from (("", section) for section in self.common)


def make_report(source: Source, title: str) -> Report:
    """Every section that has content."""
    scored = [
        record
        for record in source.records
        if record["micro_f1"].get("val") is not None and record["micro_f1"].get("test") is not None
    ]
    found = {
        family: [section for section in _sections(family, runs, source) if not section.empty]
        for family, runs in families(scored).items()
    }
    common = [table1_section(source.statistics)] if source.statistics else []
    common += [lemma_section(source.lemmas)] if source.lemmas else []
    return Report(title, source, found, common)


def _sections(family: Family, runs: Sequence[Record], source: Source) -> Iterable[Section]:
    protocol = family.protocol
    for name, section in FROM_RECORDS.items():
        if name == "nearest-neighbor":
            yield attention_section(_drifts(runs, source, protocol), protocol)
        yield section(runs, protocol)


def _drifts(runs: Sequence[Record], source: Source, protocol: str) -> list[Drift]:
    if source.arrays is not None:
        kept = [r for r in runs if (r.get("analysis") or {}).get("attention") == "all"]
        return attention_drifts(kept, source.arrays, protocol)
    signatures = {record["signature"] for record in runs}
    return [drift for drift in source.drifts if signatures.issuperset(drift.runs)]
