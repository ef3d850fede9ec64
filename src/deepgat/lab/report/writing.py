"""A report on disk: a page, tables and figures in one folder, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib

from deepgat.lab.report.contents import Contents, page_data
from deepgat.lab.report.html import html_page
from deepgat.model_folder import FolderKind, check_can_write, new_folder

PAGE, TABLES, FIGURES = "report.html", "tables", "figures"
REPORT_FOLDER = FolderKind("report", PAGE, (PAGE, TABLES, FIGURES))
FORMATS = ("pdf", "png")


def check_report_folder(folder: Path) -> None:
    """Refuse to write over anything that is not a report; to be asked early."""
    check_can_write(folder, REPORT_FOLDER)


def write_report(
    contents: Contents, folder: Path, on_file: Callable[[str], None] | None = None
) -> Path:
    """Write the folder; an earlier report in its place is replaced. The path of the page."""
    tell = on_file or (lambda name: None)
    with new_folder(folder, REPORT_FOLDER) as target:
        for name in (TABLES, FIGURES):
            (target / name).mkdir()
        for prefix, section in contents.parts():
            for table in section.tables:
                path = target / TABLES / f"{prefix}{table.name}.md"
                path.write_text(table.markdown(), encoding="utf-8")
                path.with_suffix(".csv").write_text(table.csv(), encoding="utf-8")
            # TrueType in PDF, which journals ask for and editors can edit
            with matplotlib.rc_context({"pdf.fonttype": 42}):
                for name, figure in section.figures.items():
                    tell(f"{prefix}{name}")
                    for ending in FORMATS:
                        figure.savefig(target / FIGURES / f"{prefix}{name}.{ending}")
        tell(PAGE)
        page = html_page(contents.title, page_data(contents))
        (target / PAGE).write_text(page, encoding="utf-8")
    return folder / PAGE
