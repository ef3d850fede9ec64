"""An ablation study of ``deep``: its recipe with one thing changed at a time.

Rows whose settings no longer exist are frozen: ``results/study.frozen.jsonl.gz`` has their scores,
with the commit that produced them, and they join the tables.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.experiments.store_entry import Record
from deepgat.lab.paper.depths import Change, depth_specs

STUDY = "study"
BASE = "the first recipe"
PRESET = "the fourth recipe, class heads decay by the step and the nodes: the preset"
SETTING = "deep-cora"
_NEITHER = {"sharpness": 0.0, "layer_loss": 0.0}

CHANGES: Mapping[str, Change] = {
    PRESET: Change(),
    "the preset, no class attention": Change({"sharpness": 0.0}),
    "the preset, neither: GCNII": Change(_NEITHER),
    "the preset, α = .1": Change({"alpha": 0.1}),
    "the preset, layer loss .1": Change({"layer_loss": 0.1}),
    "the preset, width 256": Change({"hidden_channels": 256}),
    "the preset, dropout .5": Change({"dropout": 0.5}),
    "the preset, τ = 1": Change({"sharpness": 1.0}),
    "the preset, whole steps": Change({"step_depth": 0}),
    "the preset, one stage": Change(training={"self_training": 0.0}),
    "the preset, own weights": Change(training={"ema": 0.0}),
    "the preset, patience 100": Change(training={"patience": 100}),
}
"""Row → changed settings of the system and of its training."""


def study_specs(**grid: Any) -> dict[str, list[RunSpec]]:
    """Row → its runs; ``grid`` as in :func:`~deepgat.lab.paper.depths.depth_specs`."""
    return depth_specs({name: (SETTING, [change]) for name, change in CHANGES.items()}, **grid)


def with_frozen_rows(
    found: Mapping[str, list[Record]], specs: Iterable[RunSpec], path: Path
) -> dict[str, list[Record]]:
    """Row → records: the study's, and the frozen ones of a file, in the file's order of rows.

    A frozen score is included if some spec has its dataset, split, seed and depth.
    """
    wanted = {(s.data.dataset, s.data.split, s.seed, s.layers) for s in specs}
    head, *rows = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    labelled: dict[str, list[Record]] = {name: list(found.get(name, [])) for name in head["rows"]}
    for row in rows:
        if (row["dataset"], row["split"], row["seed"], row["layers"]) in wanted:
            labelled[row["row"]].append(_as_record(row))
    return labelled | {name: runs for name, runs in found.items() if name not in labelled}


def _as_record(row: Mapping[str, Any]) -> Record:
    """A frozen row in the form of a record. There is no stored run behind it."""
    return {
        "signature": f"frozen at {row['commit'][:7]}",
        "dataset": row["dataset"],
        "split": row["split"],
        "seed": row["seed"],
        "system": "deep",
        "settings": {"num_layers": row["layers"]},
        "micro_f1": {"val": row["val"], "test": row["test"]},
        "loss": {"val": row["val_loss"]},
    }
