"""Writes tables, figures and the page into a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from deepgat.figures import picture, save_figure
from deepgat.files import FolderKind, check_can_write, new_folder, write_whole
from deepgat.lab.report.html_page import html_page, page_data
from deepgat.lab.report.sections import Report
from deepgat.lab.report.table import Table

PAGE, TABLES, FIGURES = "report.html", "tables", "figures"
REPORT_FOLDER = FolderKind("report", PAGE, (PAGE, TABLES, FIGURES))


def check_report_folder(folder: Path) -> None:
    """Raise an error if ``folder`` holds anything but an earlier report."""
    check_can_write(folder, REPORT_FOLDER)


def write_report(report: Report, folder: Path) -> Path:
    """Write the folder as a whole, in place of an earlier report; returns the path of the page."""
    with new_folder(folder, REPORT_FOLDER) as target:
        for name in (TABLES, FIGURES):
            (target / name).mkdir()
        for section in report.parts():
            for table in section.tables:
                path = target / TABLES / table.name
                Path(f"{path}.md").write_text(table.markdown(), encoding="utf-8")
                Path(f"{path}.csv").write_text(table.csv(), encoding="utf-8")
            # TrueType fonts, which journals require and editors can edit
            with matplotlib.rc_context({"pdf.fonttype": 42}):
                for name, figure in section.figures().items():
                    for ending in ("pdf", "png"):
                        path = target / FIGURES / f"{name}.{ending}"
                        path.write_bytes(picture(figure, ending))
        (target / PAGE).write_text(html_page(page_data(report)), encoding="utf-8")
    return folder / PAGE


def write_target(
    target: str, tables: Sequence[Table], figures: Mapping[str, Figure], folder: Path
) -> list[Path]:
    """One Markdown file with all tables, a CSV file per table, a PNG per figure; their paths."""
    written = [folder / f"{target}.md"]
    write_whole(written[0], "\n".join(table.markdown() for table in tables))
    for table in tables:
        written.append(folder / f"{table.name}.csv")
        write_whole(written[-1], table.csv())
    for name, figure in figures.items():
        written.append(save_figure(figure, folder / f"{name}.png"))
    return written
