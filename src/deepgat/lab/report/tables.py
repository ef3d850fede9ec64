"""Markdown tables from run records: ``python -m deepgat.lab.report.tables results/runs.jsonl``."""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from deepgat.analysis import confidence_interval
from deepgat.lab.paper.published import published_score
from deepgat.lab.report.scores import signed
from deepgat.training.recipes import recipe

Record = Mapping[str, Any]


class Group(NamedTuple):
    """Runs that differ in their seed alone."""

    dataset: str
    split: str
    settings: tuple[tuple[str, Any], ...]
    training: tuple[tuple[str, Any], ...]


def read_records(path: Path) -> list[dict[str, Any]]:
    """Run records, one JSON object per line, as ``deepgat train --json`` prints them; .gz too."""
    content = path.read_bytes()
    lines = (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def grouped(records: Iterable[Record]) -> dict[Group, list[Record]]:
    """Records by everything but the seed, in order of appearance."""
    groups: dict[Group, list[Record]] = {}
    for record in records:
        training = {k: v for k, v in record["training"].items() if k not in ("seed", "device")}
        key = Group(
            record["dataset"],
            record["split"],
            tuple(sorted(record["model"].items())),
            tuple(sorted(training.items())),
        )
        groups.setdefault(key, []).append(record)
    return groups


def accuracy_table(records: Iterable[Record]) -> str:
    """Mean test micro-F1 ± 95% interval of every group, with the published number beside it."""
    lines = [
        "| dataset | model | preset | layers | test micro-F1 % | seeds | published | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, runs in sorted(grouped(records).items(), key=lambda item: _order(item[0])):
        settings = dict(group.settings)
        mean, half = confidence_interval([100 * run["micro_f1"]["test"] for run in runs])
        preset = _preset(group)
        printed = None
        if preset == "authors":
            printed = published_score(
                settings["model"], settings["score"], group.dataset, settings["layers"]
            )
        cells = [
            group.dataset,
            f"{settings['model']} {settings['score']}",
            preset,
            str(settings["layers"]),
            f"{mean:.1f}" + ("" if math.isnan(half) else f" ± {half:.1f}"),
            str(len(runs)),
            "–" if printed is None else f"{printed:.1f}",
            "–" if printed is None else signed(mean - printed),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _preset(group: Group) -> str:
    """The preset that a run is nearest to, and what was changed in it."""
    ways = [(name, _changes(group, name)) for name in ("paper", "authors")]
    name, changes = min(ways, key=lambda way: len(way[1]))
    return ", ".join([name, *changes])


def _changes(group: Group, preset: str) -> list[str]:
    settings, training = dict(group.settings), dict(group.training)
    usual = recipe(
        preset,
        settings["model"],
        score=settings["score"],
        dataset=group.dataset,
        layers=settings["layers"],
    )
    found = []
    for values, expected in ((settings, asdict(usual.model)), (training, asdict(usual.training))):
        # a setting that the record does not name had its default when the run was made
        found += [f"{k}={values[k]}" for k in expected if k in values and values[k] != expected[k]]
    return found


def _order(group: Group) -> tuple[str, str, str, str, int]:
    settings = dict(group.settings)
    return (
        group.dataset,
        _preset(group),
        settings["model"],
        settings["score"],
        settings["layers"],
    )


if __name__ == "__main__":
    print(accuracy_table(read_records(Path(sys.argv[1]))))
