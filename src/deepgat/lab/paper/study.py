"""What each ingredient of ``deep`` gives: the recipe with one thing changed at a time.

Rows whose settings are gone from the code are frozen: their scores, with the commit that made them,
are in ``results/study.frozen.jsonl.gz`` and join the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.paper.depths import Change, depth_specs
from deepgat.training.config_file import read_config

STUDY = "study"
BASE = "the first recipe"
RECIPE = "the fourth recipe"
PRESET = f"{RECIPE}, class heads decay by the step and the nodes: the preset"
SETTING = "deep-cora"
_PLAIN_DECAY = {"decay_nodes_heads": 0}
_NEITHER = {"sharpness": 0.0, "layer_loss": 0.0}
_NEAR = {"alpha": 0.1}

_CHANGES: Mapping[str, Change] = {
    "no class attention": Change({"sharpness": 0.0}),
    "neither: GCNII": Change(_NEITHER),
    "α = .1": Change(_NEAR),
    "α = .1, τ = 1": Change({**_NEAR, "sharpness": 1.0}),
    "α = .1, neither: GCNII": Change({**_NEAR, **_NEITHER}),
    "layer loss .1": Change({"layer_loss": 0.1}),
    "width 256": Change({"hidden_channels": 256}),
    "dropout .5": Change({"dropout": 0.5}),
    "rows of sum one": Change({"unit_features": True}),
    "τ = 1": Change({"sharpness": 1.0}),
    "one stage": Change(training={"self_training": 0.0}),
    "own weights": Change(training={"ema": 0.0}),
    "patience 100": Change(training={"patience": 100}),
    "whole steps": Change({"step_depth": 0}),
    "steps of 32 layers": Change({"step_depth": 32}),
    "steps of 8 layers": Change({"step_depth": 8}),
}
CHANGES: Mapping[str, Change] = {
    RECIPE: Change(training=_PLAIN_DECAY),
    **{
        f"{RECIPE}, {what}": Change(change.settings, {**_PLAIN_DECAY, **change.training})
        for what, change in _CHANGES.items()
    },
    PRESET: Change(),
}
"""Name → what is changed of the system, and of its training."""


def study_specs(**grid: Any) -> dict[str, list[RunSpec]]:
    """Change → its runs, as :func:`~deepgat.lab.paper.depths.depth_specs` takes the grid."""
    base = read_config(SETTING)
    return depth_specs({name: change.of(base) for name, change in CHANGES.items()}, **grid)
