"""The sections of a report: tables, with their charts, computed from records.

``deepgat reproduce`` prints one section, ``deepgat report`` puts all of them on a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from deepgat.lab.report import paper_tables
from deepgat.lab.report.attention_drift import REFERENCE_DEPTH, Drift, attention_tables
from deepgat.lab.report.charts import draw
from deepgat.lab.report.families import Family, families
from deepgat.lab.report.over_smoothing import smoothing_tables
from deepgat.lab.report.scores import Record
from deepgat.lab.report.table import Table, file_name, filed

SECTIONS: dict[str, tuple[str, str, Callable[..., list[Table]]]] = {
    "table2": (
        "Results",
        "Test micro-F1 at the best depth and at the largest, the published numbers beside ours.",
        lambda records, protocol: [paper_tables.table2(records, protocol)],
    ),
    "depth": (
        "Depth",
        "Test micro-F1 against the number of layers.",
        lambda records, _: paper_tables.depth_tables(records),
    ),
    "degradation": (
        "Degradation",
        "What GAT loses from its best depth to its largest.",
        lambda records, protocol: [paper_tables.degradation_table(records, protocol)],
    ),
    "over-smoothing": (
        "Over-smoothing",
        "Layer by layer, for networks of the chosen depth: what each layer's own prediction is "
        "worth, and whether nodes still differ.",
        lambda records, _: smoothing_tables(records),
    ),
    "attention-kl": (
        "Attention",
        f"How far the attention of a deep network is from that of {REFERENCE_DEPTH} layers, "
        "beside the bound that holds by construction and what uniform attention would give.",
        attention_tables,
    ),
    "nearest-neighbor": (
        "Nearest neighbour",
        "The error e_N of the nearest prototype on h^L, which bounds the Bayes error from above.",
        lambda records, _: paper_tables.nearest_tables(records),
    ),
    "table1": (
        "Datasets",
        "The paper's Table 1, and the same numbers computed from the graphs at hand.",
        lambda statistics: [paper_tables.table1(statistics)],
    ),
    "lemmas": (
        "Lemmas",
        "Both lemmas of the paper against draws, in the exact form and in that of path counts.",
        lambda checks: [paper_tables.lemma_table(checks)],
    ),
}
"""Target of ``deepgat reproduce`` → title, introduction, and the function of its tables.

The function is given the protocol and records, or for attention-kl drifts; without a protocol, the
statistics of datasets for table1 and the checks for lemmas.
"""
WITHOUT_RUNS = ("table1", "lemmas")


@dataclass(frozen=True)
class Section:
    """Tables on one question."""

    name: str
    title: str
    intro: str
    tables: list[Table]

    def figures(self) -> dict[str, Figure]:
        """File name → the figure of a table."""
        return {table.name: draw(table.charts) for table in self.tables if table.charts}


def make_section(target: str, *arguments: Any) -> Section:
    """The section of a target, from the arguments of its function."""
    title, intro, tables = SECTIONS[target]
    return Section(target, title, intro, filed(tables(*arguments), set()))


@dataclass(frozen=True)
class Report:
    """Runs, and all sections: those of each family of runs, and those that need no runs."""

    name: str
    """Where the runs come from."""
    records: Sequence[Record]
    failures: Sequence[Record]
    families: dict[Family, list[Section]]
    common: list[Section]

    def parts(self) -> Iterable[Section]:
        """All sections, their tables under the names of their files."""
        prefixes: set[str] = set()
        taken: set[str] = set()
        for family, sections in self.families.items():
            prefix = ""
            if len(self.families) > 1:
                prefix = f"{file_name(family.name.lower()[:48], prefixes)}-"
            for section in sections:
                yield replace(section, tables=filed(section.tables, taken, prefix))
        for section in self.common:
            yield replace(section, tables=filed(section.tables, taken))


def make_report(
    name: str,
    records: Sequence[Record],
    failures: Sequence[Record] = (),
    find_drifts: Callable[[Sequence[Record], str], list[Drift]] = lambda runs, protocol: [],
    common: Sequence[Section] = (),
) -> Report:
    """Every section that has a row; ``find_drifts`` is given runs and their protocol."""
    found: dict[Family, list[Section]] = {}
    scored = [r for r in records if None not in map(r["micro_f1"].get, ("val", "test"))]
    for family, runs in families(scored).items():
        given = {"attention-kl": find_drifts(runs, family.protocol)}
        sections = [
            make_section(target, given.get(target, runs), family.protocol)
            for target in SECTIONS
            if target not in WITHOUT_RUNS
        ]
        found[family] = [s for s in sections if any(table.rows for table in s.tables)]
    return Report(name, records, failures, found, list(common))
