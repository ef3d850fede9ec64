"""What each target of ``deepgat reproduce`` shows: tables and figures from results, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from deepgat.figures.style import save_figure
from deepgat.lab.report import paper_tables
from deepgat.lab.report.attention import attention_figures, attention_tables
from deepgat.lab.report.drifts import Drift
from deepgat.lab.report.layout import Table
from deepgat.lab.report.lemmas import Checked, lemma_figures, lemma_table
from deepgat.lab.report.paper_figures import degradation_figure, depth_figures, nearest_figures
from deepgat.lab.report.scores import Record
from deepgat.lab.report.smoothing import profiles, smoothing_figures, smoothing_tables
from deepgat.model_folder import write_whole


@dataclass(frozen=True)
class Page:
    """One target's tables and figures."""

    target: str
    tables: list[Table] = field(default_factory=list)
    figures: Mapping[str, Figure] = field(default_factory=dict)


def table1_page(rows: Sequence[dict[str, Any]]) -> Page:
    return Page("table1", [paper_tables.table1(rows)])


def trained_page(target: str, records: Sequence[Record], protocol: str) -> Page:
    """The page of a target that is made of records alone."""
    match target:
        case "depth":
            return Page(target, paper_tables.depth_tables(records), depth_figures(records))
        case "table2":
            return Page(target, [paper_tables.table2(records, protocol)])
        case "degradation":
            figure = degradation_figure(records, protocol)
            return Page(
                target, [paper_tables.degradation_table(records, protocol)], {"degradation": figure}
            )
        case "nearest-neighbor":
            prototypes = "train+val" if protocol == "authors" else "train"
            return Page(
                target, paper_tables.nearest_tables(records), nearest_figures(records, prototypes)
            )
        case "over-smoothing":
            found = profiles(records)
            return Page(target, smoothing_tables(found), smoothing_figures(found))
    raise AssertionError(target)


def attention_page(drifts: Sequence[Drift], protocol: str) -> Page:
    return Page("attention-kl", attention_tables(drifts, protocol), attention_figures(drifts))


def lemma_page(checks: Sequence[Checked]) -> Page:
    return Page("lemmas", [lemma_table(checks)], lemma_figures(checks))


def write_page(page: Page, folder: Path) -> list[Path]:
    """Tables as Markdown (together) and CSV (one by one), figures as PNG; what was written."""
    written = [folder / f"{page.target}.md"]
    write_whole(written[0], "\n".join(table.markdown() for table in page.tables))
    for table in page.tables:
        written.append(folder / f"{table.name}.csv")
        write_whole(written[-1], table.csv())
    for name, figure in page.figures.items():
        written.append(save_figure(figure, folder / f"{name}.png"))
    return written
