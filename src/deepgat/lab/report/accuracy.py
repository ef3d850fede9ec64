"""Prints a Markdown table of run records: ``python -m deepgat.lab.report.accuracy runs.jsonl``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from deepgat.lab.paper.published import published_score
from deepgat.lab.report.families import changes
from deepgat.lab.report.records import read_any_records
from deepgat.lab.report.scores import Record, score_on_test, signed
from deepgat.models.registry import find_system

HEAD = """\
| dataset | model | preset | layers | test micro-F1 % | seeds | published | difference |
|---|---|---|---|---|---|---|---|"""


def accuracy_table(records: Iterable[Record]) -> str:
    """Mean test micro-F1 ± 95% interval of runs that differ only in their seed."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        training = {k: v for k, v in record["training"].items() if k not in ("seed", "device")}
        settings = [
            record["dataset"],
            record["split"],
            record["system"],
            record["settings"],
            training,
        ]
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(record)
    rows = []
    for runs in groups.values():
        settings = runs[0]["settings"]
        system = (runs[0]["system"], settings.get("score", ""), settings["num_layers"])
        rows.append((runs[0]["dataset"], _preset(runs[0]), *system, score_on_test(runs)))
    lines = [HEAD]
    for dataset, preset, model, kind, layers, score in sorted(rows, key=lambda row: row[:5]):
        printed = published_score(model, kind, dataset, layers) if preset == "authors" else None
        beside = ["–", "–"]
        if printed is not None:
            beside = [f"{printed:.1f}", signed(score.mean - printed)]
        cells = [dataset, f"{model} {kind}", preset, str(layers), str(score), str(score.repeats)]
        lines.append("| " + " | ".join([*cells, *beside]) + " |")
    return "\n".join(lines)


def _preset(record: Record) -> str:
    """The nearest preset of its system, with the settings that differ from it."""
    presets = find_system(record["system"]).presets or (None,)
    ways = [(name or "–", changes(record, name, rate=True)) for name in presets]
    name, changed = min(ways, key=lambda way: len(way[1]))
    return ", ".join([name, *changed])


if __name__ == "__main__":
    print(accuracy_table(read_any_records(Path(sys.argv[1]))))
