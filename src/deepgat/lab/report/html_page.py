"""The HTML page of a report; see :mod:`deepgat.offline_page`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from deepgat.lab.report.paper_tables import CHOSEN
from deepgat.lab.report.scores import Record, depth_of, system_of
from deepgat.lab.report.sections import Report, Section
from deepgat.lab.report.table import Sourced, Table
from deepgat.offline_page import offline_page, read_source

PACKAGE = "deepgat.lab.report"
SCRIPTS = ("core.js", "charts.js", "tables.js", "main.js")
"""Each uses those before it."""
SHOWN = ("dataset", "micro_f1", "best_epoch", "epochs", "stopped", "error", "traceback", "when")
"""Fields of records that the page shows as they are."""


def html_page(data: Mapping[str, Any]) -> str:
    """The page that shows the values of :func:`page_data`."""
    texts = [read_source(PACKAGE, "page", name) for name in SCRIPTS]
    elements = read_source("deepgat.view", "page", "elements.js")
    return offline_page(PACKAGE, ["\n".join([elements, *texts])], data)


def page_data(report: Report) -> dict[str, Any]:
    """The report as JSON values; cells and points refer to runs by their index in ``runs``."""

    def order(record: Record) -> tuple[Any, ...]:
        repeat = (record["split"], record["seed"], record["signature"])
        return (record["dataset"], *system_of(record), depth_of(record), *repeat)

    records = sorted(report.records, key=order)
    places = {record["signature"]: place for place, record in enumerate(records)}
    shared: dict[str, int] = {}
    return {
        "title": f"Deep graph attention: {report.name}",
        "source": report.name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        # a system's index chooses its colour
        "systems": [system.name for system in sorted({system_of(record) for record in records})],
        "runs": [_run(record, shared) for record in records],
        "failures": [_run(record, shared) for record in report.failures],
        "shared": [json.loads(text) for text in shared],
        "families": [
            {
                "name": family.name,
                "changes": list(family.changes),
                "rule": CHOSEN[family.protocol],
                "sections": _plain(sections, places),
            }
            for family, sections in report.families.items()
        ],
        "common": _plain(report.common, places),
    }


def _run(record: Record, shared: dict[str, int]) -> dict[str, Any]:
    """A run; settings and origin, which many runs have in common, are indices of ``shared``."""
    data = dict(record["data"])
    training = {name: v for name, v in record["training"].items() if name != "device"}
    split, seed = data.pop("split"), training.pop("seed", record.get("seed"))
    spec = {
        "data": data,
        "system": record["system"],
        "settings": record["settings"],
        "training": training,
        "analysis": record.get("analysis") or {},
    }
    origin = {"hardware": record.get("hardware", ""), "versions": record.get("versions") or {}}
    return {
        **{name: record[name] for name in SHOWN if name in record},
        "id": record["signature"],
        "system": system_of(record).name,
        "layers": depth_of(record),
        "split": split,
        "seed": seed,
        "spec": shared.setdefault(json.dumps(spec), len(shared)),
        "origin": shared.setdefault(json.dumps(origin), len(shared)),
        "seconds": record.get("wall_seconds", record.get("seconds")),
        "memory": (record.get("peak_memory") or {}).get("bytes"),
    }


def _plain(value: Any, places: Mapping[str, int]) -> Any:
    """Sections as JSON values: tuples of signatures become indices, cells [text, indices]."""
    if isinstance(value, Section | Table):
        value = vars(value)
    if isinstance(value, dict):
        return {key: _plain(inner, places) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, places) for inner in value]
    if isinstance(value, tuple):
        return [places[run] for run in value]
    return [str(value), _plain(value.runs, places)] if isinstance(value, Sourced) else value
