"""The HTML page of a report: one file with its style, its script and its data.

The sources are in ``page/``. The page's security policy allows only its own script and style,
identified by their checksums, and no request. Text from records is therefore never executed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from deepgat.lab.report.paper_tables import CHOSEN
from deepgat.lab.report.scores import Record, depth_of, system_name, system_of
from deepgat.lab.report.sections import Report, Section
from deepgat.lab.report.table import Sourced, Table
from deepgat.model_folder import to_json

SCRIPTS = ("core.js", "charts.js", "tables.js", "main.js")
"""Each uses those before it."""


def html_page(title: str, data: Mapping[str, Any]) -> str:
    """The page that shows the values of :func:`page_data`."""
    style = _source("style.css")
    script = "\n".join(_source(name) for name in SCRIPTS)
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; img-src data:; style-src {_checksum(style)}; "
        f"script-src {_checksum(script)}; base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "data": _inside_script(to_json(data)),
    }
    # one pass, so that braces in the inserted text are not replaced
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page.html"))


def _source(name: str) -> str:
    return (files("deepgat.lab.report") / "page" / name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _inside_script(text: str) -> str:
    """JSON without <, > and &, which could end the script element that holds it."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# ------------------------------------------------------------------------------- data


def page_data(report: Report) -> dict[str, Any]:
    """The report as JSON values; cells and points refer to runs by their index in ``runs``."""
    records = sorted(report.source.records, key=_order)
    places = {record["signature"]: place for place, record in enumerate(records)}
    specs, origins = _Interned(), _Interned()
    return {
        "title": report.title,
        "source": report.source.name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "systems": _systems(records),
        "runs": [_run(record, specs, origins) for record in records],
        "failures": [_failure(record, specs, origins) for record in report.source.failures],
        "specs": specs.values,
        "origins": origins.values,
        "families": [
            {
                "name": family.name,
                "changes": list(family.changes),
                "rule": CHOSEN[family.protocol],
                "sections": [_section(section, places) for section in sections],
            }
            for family, sections in report.families.items()
        ],
        "common": [_section(section, places) for section in report.common],
    }


class _Interned:
    """A list of distinct values."""

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
    return (
        record["dataset"],
        *system_of(record),
        depth_of(record),
        record["split"],
        record["seed"],
        record["signature"],
    )


def _systems(records: Iterable[Record]) -> list[str]:
    """The names of all systems; a system's index chooses its colour."""
    pairs = sorted({system_of(record) for record in records})
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
    """What identifies a run; settings and origin are shared by many runs and stored once."""
    data = dict(record.get("data") or {"dataset": record["dataset"], "split": record["split"]})
    training = {name: v for name, v in record["training"].items() if name != "device"}
    split, seed = data.pop("split"), training.pop("seed", record.get("seed"))
    spec = {
        "data": data,
        "system": record["system"],
        "settings": dict(record["settings"]),
        "training": training,
        "analysis": dict(record.get("analysis") or {}),
    }
    origin = {
        "hardware": record.get("hardware", ""),
        "versions": dict(record.get("versions") or {}),
    }
    return {
        "id": record["signature"],
        "dataset": record.get("dataset", data["dataset"]),
        "system": system_name(*system_of(record)),
        "layers": depth_of(record),
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
    """A chart with indices of runs in place of signatures, which are its tuples."""
    if isinstance(value, dict):
        return {key: _with_places(inner, places) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [places[run] for run in value]
    if isinstance(value, list):
        return [_with_places(inner, places) for inner in value]
    return value
