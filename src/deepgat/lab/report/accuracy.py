"""Prints a Markdown table of run records: ``python -m deepgat.lab.report.accuracy runs.jsonl``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from deepgat.lab.paper.published import published_score
from deepgat.lab.report.families import FREE, family_of
from deepgat.lab.report.records import read_any_records
from deepgat.lab.report.scores import Record, depth_of, score_of, signed, system_of
from deepgat.lab.report.table import NONE

HEAD = """\
| dataset | model | preset | layers | test micro-F1 % | seeds | published | difference |
|---|---|---|---|---|---|---|---|"""


def accuracy_table(records: Iterable[Record]) -> str:
    """Mean test micro-F1 ± 95% interval of runs that differ only in their seed."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        training = {k: v for k, v in record["training"].items() if k not in ("seed", "device")}
        own = [*(record[k] for k in ("dataset", "split", "system", "settings")), training]
        groups.setdefault(json.dumps(own, sort_keys=True), []).append(record)
    rows = []
    for runs in groups.values():
        preset, changes = family_of(runs[0], FREE)
        preset = ", ".join([NONE if preset == runs[0]["system"] else preset, *changes])
        rows.append((runs[0]["dataset"], preset, *system_of(runs[0]), depth_of(runs[0]), runs))
    lines = [HEAD]
    for dataset, preset, model, kind, layers, runs in sorted(rows, key=lambda row: row[:5]):
        printed = published_score(model, kind, dataset, layers) if preset == "authors" else None
        score, beside = score_of(runs), [NONE, NONE]
        if printed is not None:
            beside = [f"{printed:.1f}", signed(score.mean - printed)]
        cells = [dataset, f"{model} {kind}", preset, str(layers), str(score), str(score.repeats)]
        lines.append("| " + " | ".join([*cells, *beside]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(accuracy_table(read_any_records(Path(sys.argv[1]))))
