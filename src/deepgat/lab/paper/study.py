"""What each ingredient of the deep recipe gives: the recipe with one thing changed at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.paper.depths import Change, depth_specs
from deepgat.training.config_file import read_config

STUDY = "study"
BASE = "the first recipe"
SECOND = "the second recipe"
THIRD = "the third recipe"
FOURTH = "the fourth recipe"
_NOW = "class heads decay by the step and the nodes: the preset"
PRESET = f"{FOURTH}, {_NOW}"
SETTING = "deep-cora"
FIRST = Change(
    {
        "dropout": 0.6,
        "dropout_depth": 0,
        "step_depth": 0,
        "initial_residual": 0.1,
        "temperature": 2.0,
        "attention_from": 1,
        "layer_loss": 0.3,
        "class_head": "shared",
        "class_bias": False,
        "label_hops": 3,
    },
    {
        "monitor": "val-loss",
        "epochs": 1500,
        "patience": 100,
        "decay_nodes": 0,
        "decay_nodes_heads": 0,
        "self_training": 0.0,
        "self_training_from": 50,
        "confidence": 0.8,
        "target_temperature": 0.0,
        "calibrated_targets": False,
        "own_best": False,
        "average_weights": 0.0,
    },
)
"""What is changed: the recipe as the study found it; the preset ``deep`` is what came of it."""

_LATE = {"attention_from": 4, "temperature": 3.0}
_FAR_AND_LATE = {"initial_residual": 0.2, **_LATE}
_TAUGHT = {"self_training": 1.0}
_SOFT = {"self_training": 1.0, "confidence": 0.0, "target_temperature": 0.5}
_AVERAGED = {"average_weights": 0.99}

_NEITHER = {"temperature": 0.0, "layer_loss": 0.0}
_HEADS = {"class_head": "layer", "class_bias": True, "label_hops": 0}
_ONE_HEAD = {"class_head": "shared", "class_bias": False, "label_hops": 3}
_NEAR = {"initial_residual": 0.1}
_ENDS = {"input_dropout": 0.6, "output_dropout": 0.6}
_BEFORE = {
    "as much dropout at any depth": Change({"dropout_depth": 0}),
    "targets not sharpened": Change(training={"target_temperature": 1.0}),
}
_SHORTER = {"patience": 50, "decay_nodes": 1500}
_CALIBRATED = {"calibrated_targets": True, "target_temperature": 1.0}
_BY_THE_STEP = {"weight_decay_heads": 5e-4}
_BY_THE_ROOT = {f"class heads decay by the root of the step, {n} layers": n for n in (32, 64, 128)}
_TWO_STAGES = {**_SOFT, **_AVERAGED, "self_training_from": 0, "epochs": 3000}


def _taught(alpha: float) -> dict[str, Change]:
    """Self-training as a second stage, from the best epoch's weights on."""
    models: dict[str, dict[str, Any]] = {
        "τ = 3 from layer 4 on": _LATE,
        "τ = 2": {},
        "no layer loss": {**_LATE, "layer_loss": 0.0},
        "a class head per layer": {**_LATE, **_HEADS},
        "a class head per layer, τ = 0 from layer 17 on": {**_LATE, **_HEADS, "attention_to": 16},
        "neither: GCNII": _NEITHER,
    }
    ways: dict[str, dict[str, Any]] = {
        "second stage": _TWO_STAGES,
        "second stage, calibrated": {**_TWO_STAGES, "monitor": "calibrated-loss"},
        "second stage, patience 200": {**_TWO_STAGES, "patience": 200},
        "second stage, own weights": {**_TWO_STAGES, "average_weights": 0.0},
    }
    usual, (first, calibrated, *_) = next(iter(models)), ways
    return {
        f"α = {alpha:g}, {model}, {way}".replace("0.", "."): Change(
            {**changed, "initial_residual": alpha}, training
        )
        for model, changed in models.items()
        for way, training in ways.items()
        if model == usual or way in (first, calibrated)
    }


def _dropped(alpha: float) -> dict[str, Change]:
    """Less dropout between the layers, as much as before at both ends."""
    models: dict[str, dict[str, Any]] = {
        "a class head per layer": {**_LATE, **_HEADS},
        "one class head": _LATE,
        "neither: GCNII": _NEITHER,
    }
    training = {**_TWO_STAGES, "monitor": "calibrated-loss"}
    return {
        f"α = {alpha:g}, {model}, dropout {share:g} between layers".replace("0.", "."): Change(
            {**changed, **_ENDS, "initial_residual": alpha, "dropout": share}, training
        )
        for model, changed in models.items()
        for share in (0.0, 0.1, 0.2, 0.3, 0.4)
    }


def _by_errors(alpha: float) -> dict[str, Change]:
    """The best epoch by calibrated loss and errors together, or by F1."""
    training = {**_TWO_STAGES, "monitor": "loss-and-errors"}
    either = {**_TWO_STAGES, "monitor": "f1-or-loss"}
    less, half = {**_ENDS, "dropout": 0.4}, {"dropout": 0.5}
    ways = {
        "by loss and errors": Change(training=training),
        "by loss and errors, dropout .4 between layers": Change(less, training),
        "by loss and errors, patience 50": Change(training={**training, "patience": 50}),
        "by F1, dropout .5": Change(half, {**_TWO_STAGES, "monitor": "val-f1"}),
        "by F1 or loss, dropout .5": Change(half, either),
        "by F1 or loss, dropout .5, patience 50": Change(half, {**either, "patience": 50}),
        "by F1 or loss, dropout .5, layer norm": Change({**half, "norm": "layer"}, either),
    }
    return {
        f"α = {alpha:g}, a class head per layer, {name}".replace("0.", "."): Change(
            {**_LATE, **_HEADS, "initial_residual": alpha, **model}, taught
        )
        for name, (model, taught) in ways.items()
    }


def _one_at_a_time(name: str, came: Change, more: Mapping[str, Change]) -> dict[str, Change]:
    """What came of it, so changed, and with one thing changed at a time once more."""
    model = {**_LATE, **_HEADS, "initial_residual": 0.2, **came.model}
    training = {**_TWO_STAGES, "monitor": "loss-and-errors", "own_best": True, **came.training}
    changes = {
        "no class attention": Change({"temperature": 0.0}),
        "one class head": Change(_ONE_HEAD),
        "one class head, no layer loss": Change({**_ONE_HEAD, "layer_loss": 0.0}),
        "neither: GCNII": Change(_NEITHER),
        "no identity map": Change({"identity_map": 0.0}),
        "α = .1": Change(_NEAR),
        "α = .1, τ = 1": Change({**_NEAR, "temperature": 1.0}),
        "α = .1, one class head": Change({**_NEAR, **_ONE_HEAD}),
        "α = .1, neither: GCNII": Change({**_NEAR, **_NEITHER}),
        "layer loss .1": Change({"layer_loss": 0.1}),
        "width 256": Change({"hidden": 256}),
        "dropout .5": Change({"dropout": 0.5}),
        "rows of sum one": Change({"unit_features": True}),
        "τ = 1": Change({"temperature": 1.0}),
        "compatibility learnt": Change({"compatibility": "learnt"}),
        "one stage": Change(training={"self_training": 0.0}),
        "own weights": Change(training={"average_weights": 0.0}),
        "the best epoch of both stages": Change(training={"own_best": False}),
        **more,
    }
    return {
        name: Change(model, training),
        **{
            f"{name}, {what}": Change({**model, **change.model}, {**training, **change.training})
            for what, change in changes.items()
        },
    }


CHANGES: Mapping[str, Change] = {
    BASE: Change(),
    # without
    "no class attention": Change({"temperature": 0.0}),
    "no layer loss": Change({"layer_loss": 0.0}),
    "neither: GCNII": Change({"temperature": 0.0, "layer_loss": 0.0}),
    "no identity map": Change({"identity_map": 0.0}),
    # otherwise
    "a class head per layer": Change(_HEADS),
    "class heads that see labels": Change({"class_head": "layer", "class_bias": True}),
    "gradient through attention": Change({"detach_attention": False}),
    "attention after dropout": Change({"clean_attention": False}),
    "attention dropout .3": Change({"attention_dropout": 0.3}),
    "over rows": Change({"normalization": "row"}),
    "layer norm": Change({"norm": "layer"}),
    "dropout .5": Change({"dropout": 0.5}),
    "width 256": Change({"hidden": 256}),
    "τ = 3": Change({"temperature": 3.0}),
    "τ learnt": Change({"learn_temperature": True}),
    "τ growing to 3 in 8 layers": Change({"temperature": 3.0, "temperature_ramp": 8}),
    "τ = 3, softened by 2": Change({"temperature": 3.0, "softening": 2.0}),
    "τ = 3 from layer 4 on": Change(_LATE),
    "compatibility learnt": Change({"compatibility": "learnt"}),
    "α = .2": Change({"initial_residual": 0.2}),
    "α = .2, neither: GCNII": Change(
        {"initial_residual": 0.2, "temperature": 0.0, "layer_loss": 0.0}
    ),
    # further
    "best epoch by F1": Change(training={"monitor": "val-f1"}),
    "averaged weights": Change(training=_AVERAGED),
    "self-training": Change(training=_TAUGHT),
    "self-training, weight 3": Change(training={"self_training": 3.0}),
    "self-training, confidence .9": Change(training={**_TAUGHT, "confidence": 0.9}),
    "self-training, confidence .6": Change(training={**_TAUGHT, "confidence": 0.6}),
    "self-training, soft targets": Change(training=_SOFT),
    "self-training, layers too": Change(training={**_TAUGHT, "taught_layers": 0.3}),
    "self-training, no class attention": Change({"temperature": 0.0}, _TAUGHT),
    "self-training, neither: GCNII": Change({"temperature": 0.0, "layer_loss": 0.0}, _TAUGHT),
    "self-training, averaged weights": Change(training={**_TAUGHT, **_AVERAGED}),
    "α = .2, τ = 3 from layer 4 on": Change(_FAR_AND_LATE),
    "α = .2, self-training": Change({"initial_residual": 0.2}, _TAUGHT),
    "α = .2, self-training, neither: GCNII": Change(
        {"initial_residual": 0.2, "temperature": 0.0, "layer_loss": 0.0}, _TAUGHT
    ),
    "α = .2, self-training, averaged weights": Change(
        {"initial_residual": 0.2}, {**_TAUGHT, **_AVERAGED}
    ),
    "α = .2, τ = 3 from layer 4 on, self-training": Change(_FAR_AND_LATE, _TAUGHT),
    "α = .2, τ = 3 from layer 4 on, self-training, averaged weights": Change(
        _FAR_AND_LATE, {**_TAUGHT, **_AVERAGED}
    ),
    "α = .2, τ = 3 from layer 4 on, soft targets, averaged weights": Change(
        _FAR_AND_LATE, {**_SOFT, **_AVERAGED}
    ),
    **_taught(0.1),
    **_taught(0.2),
    **_dropped(0.1),
    **_dropped(0.2),
    **_by_errors(0.1),
    **_by_errors(0.2),
    **_one_at_a_time(
        SECOND,
        Change({"dropout_depth": 16}),
        {
            **_BEFORE,
            "patience 50": Change(training={"patience": 50}),
            "less weight decay": Change(training={"weight_decay_conv": 5e-4}),
        },
    ),
    **_one_at_a_time(
        THIRD,
        Change({"dropout_depth": 16}, _SHORTER),
        {
            **_BEFORE,
            "patience 100": Change(training={"patience": 100}),
            "decay for 1000 nodes": Change(training={"decay_nodes": 1000}),
            "decay for 1000 nodes, patience 100": Change(
                training={"decay_nodes": 1000, "patience": 100}
            ),
            "decay for 300 nodes": Change(training={"decay_nodes": 300}),
            "step of Adam .005": Change(training={"lr": 0.005}),
            "decay of the ends 5e-3": Change(training={"weight_decay": 5e-3}),
            "decay of the ends 5e-5": Change(training={"weight_decay": 5e-5}),
            "no dropout between layers": Change({**_ENDS, "dropout": 0.0}),
            "by F1 or loss": Change(training={"monitor": "f1-or-loss"}),
            "layer loss 1": Change({"layer_loss": 1.0}),
            "one stage, neither: GCNII": Change(_NEITHER, {"self_training": 0.0}),
            "α = .3": Change({"initial_residual": 0.3}),
            "α = .4": Change({"initial_residual": 0.4}),
            "τ = 3 from layer 12 on": Change({"attention_from": 12}),
            "calibrated targets": Change(training=_CALIBRATED),
            "calibrated targets, patience 100": Change(training={**_CALIBRATED, "patience": 100}),
            "calibrated targets, decay for 1000 nodes": Change(
                training={**_CALIBRATED, "decay_nodes": 1000}
            ),
            **{
                f"calibrated targets, sharpened by {temperature:g}".replace("0.", "."): Change(
                    training={**_CALIBRATED, "target_temperature": temperature}
                )
                for temperature in (0.7, 0.8)
            },
            "calibrated targets, sharpened by .7, patience 100": Change(
                training={**_CALIBRATED, "target_temperature": 0.7, "patience": 100}
            ),
        },
    ),
    **_one_at_a_time(
        FOURTH,
        Change({"step_depth": 16}, {**_SHORTER, **_CALIBRATED}),
        {
            "patience 100": Change(training={"patience": 100}),
            "whole steps": Change({"step_depth": 0}),
            "targets not calibrated": Change(training={"calibrated_targets": False}),
            "targets sharpened by ½, not calibrated": Change(
                training={"calibrated_targets": False, "target_temperature": 0.5}
            ),
            "targets sharpened by .7": Change(training={"target_temperature": 0.7}),
            "targets sharpened by .85": Change(training={"target_temperature": 0.85}),
            "targets sharpened by .7, patience 100": Change(
                training={"target_temperature": 0.7, "patience": 100}
            ),
            "class heads decay by the step": Change(training=_BY_THE_STEP),
            **{
                name: Change(training={"weight_decay_heads": 5e-4 * math.sqrt(depth / 16)})
                for name, depth in _BY_THE_ROOT.items()
            },
            _NOW: Change(training={**_BY_THE_STEP, "decay_nodes_heads": 3500}),
            "class heads decay by the step, steps of 32 layers": Change(
                {"step_depth": 32}, _BY_THE_STEP
            ),
            "weights shared by steps": Change({"shared_steps": True}),
            "steps of 32 layers": Change({"step_depth": 32}),
            "steps of 8 layers": Change({"step_depth": 8}),
            "steps of 8 layers, targets sharpened by .7": Change(
                {"step_depth": 8}, {"target_temperature": 0.7}
            ),
        },
    ),
}  # fmt: skip
"""Name → what is changed of the model, and of its training."""
ONLY_AT = {f"{FOURTH}, {name}": depth for name, depth in _BY_THE_ROOT.items()}
"""Those that mean what their name says at one depth alone."""


def study_specs(**grid: Any) -> dict[str, list[RunSpec]]:
    """Change → its runs, as :func:`~deepgat.lab.paper.depths.depth_specs` takes the grid."""
    base = FIRST.of(read_config(SETTING))
    found = depth_specs({name: change.of(base) for name, change in CHANGES.items()}, **grid)
    return {
        name: [s for s in specs if ONLY_AT.get(name, s.model.layers) == s.model.layers]
        for name, specs in found.items()
    }
