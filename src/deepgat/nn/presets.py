"""Settings that belong together: the two readings of DeepGAT, and the bodies of other systems.

Where the paper's text and its authors' code disagree, each side is one named setting; ``paper`` and
``authors`` set them all, and ``docs/ledger.md`` explains every row. The other presets are the
bodies that :mod:`deepgat.nn.systems` describes. A preset says nothing about the score: any model's
score goes into any body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgat.errors import UserError, unknown_name
from deepgat.nn.settings import SCORES, ModelSettings

_STANDARD: Mapping[str, Any] = {
    "activation": "relu",
    "bias": True,
    "output_activation": False,
    "output_norm": False,
    "heads": 1,
    "hidden": 64,
    "dropout": 0.5,
}
"""GCN and GAT as most users know them, and the ground on which others build."""

_RESIDUAL_STREAM: Mapping[str, Any] = {
    "activation": "relu",
    "encoder": "linear",
    "readout": "linear",
    "heads": 1,
    "hidden": 64,
}

_HOPS: Mapping[str, Any] = {
    "activation": "identity",
    "encoder": "classes",
    "projection": False,
    "heads": 1,
    "hidden": 64,
    "layers": 10,
}
"""Predict first, then propagate the predictions: a layer is a hop without weights."""

_GCNII: Mapping[str, Any] = {
    **_RESIDUAL_STREAM,
    "projection": False,
    "initial_residual": 0.1,
    "identity_map": 0.5,
    "dropout": 0.6,
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {
        "label_input": "prediction",
        "first_labels": "zero",
        "loss_layers": "from-1",
        "sd_scale": "width",
        "class_activation": "by-task",
        "norm": "none",
        "bias": False,
        "output_activation": True,
        "attention_dropout": 0.0,
    },
    "authors": {
        "label_input": "layer",
        "first_labels": "neighbor-counts",
        "loss_layers": "from-0",
        "sd_scale": "sqrt-output-width",
        "class_activation": "softmax",
        "norm": "layer",
        "bias": True,
        "output_activation": False,
        "attention_dropout": 0.6,
    },
    "standard": _STANDARD,
    "mlp": {**_STANDARD, "edges": "none"},
    "residual": {**_STANDARD, "update": "residual"},
    "pairnorm": {**_STANDARD, "norm": "pairnorm-si"},
    "pairnorm-input": {**_STANDARD, "feature_norm": "pairnorm"},
    "dropedge": {**_STANDARD, "drop_edge": 0.5},
    "jk": {**_STANDARD, "readout": "jump-cat"},
    "gcnii": _GCNII,
    "g2": {
        **_RESIDUAL_STREAM,
        "shared_layers": True,
        "gate_power": 2.5,
        "bias": True,
        "dropout": 0.0,
        "input_dropout": 0.5,
        "output_dropout": 0.1,
    },
    "appnp": {**_HOPS, "initial_residual": 0.1, "input_dropout": 0.5},
    "dagnn": {**_HOPS, "readout": "hop-gate", "input_dropout": 0.8},
    "deep": {
        **_GCNII,
        "layers": 16,
        "initial_residual": 0.2,
        "step_depth": 16,
        "normalization": "symmetric",
        "class_head": "layer",
        "class_bias": True,
        "label_hops": 0,
        "clean_attention": True,
        "detach_attention": True,
        "temperature": 3.0,
        "attention_from": 4,
        "loss": "output-and-layers",
        "layer_loss": 0.3,
    },
}
"""What each preset fixes; everything else keeps the default of :class:`ModelSettings`."""

OF_THE_PAPER = ("paper", "authors")

DEFAULT_MODELS: Mapping[str, str] = {
    **dict.fromkeys(PRESETS, "gcn"),
    "paper": "deepgat",
    "authors": "deepgat",
    "deep": "deepgat",
    "g2": "sage",
}
"""The model whose score goes into a preset's body when none is named."""

_OF_MODELS: Mapping[str, Mapping[str, Any]] = {"sage": {"update": "linear-skip", "bias": False}}
"""What a model fixes under every preset: GraphSAGE has a weight for the node itself."""


def resolve(model: str | None = None, preset: str | None = None) -> tuple[str, str]:
    """(model, preset) in full: either may be left out, and a preset's name may stand as a model's.

    ``("gcnii", None)``, ``(None, "gcnii")`` and ``("gcn", "gcnii")`` are the same. Neither named:
    ``deep``. A model of the paper named alone: its equations, ``paper``.
    """
    if preset is not None and preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    if model is None or model in SCORES:
        if preset is None:
            preset = "deep" if model is None else "paper"
        return DEFAULT_MODELS[preset] if model is None else model, preset
    bodies = [name for name in PRESETS if name not in OF_THE_PAPER]
    if model not in bodies:
        raise unknown_name("model", model, [*SCORES, *bodies])
    if preset not in (None, model):
        raise UserError(
            f"the model {model} is a preset of its own: leave the preset {preset!r} away, or name "
            f"the score that goes into it ({', '.join(SCORES)}) as the model"
        )
    return DEFAULT_MODELS[model], model


def model_settings(
    model: str | None = None,
    preset: str | None = None,
    score: str | None = None,
    **choices: Any,
) -> ModelSettings:
    """Settings of a model under a preset, with any single choice replaced by name.

    Args:
        model: whose score it is, deepgat, gat, gcn, sage or oracle; or a preset's name for the
            system it is known as, such as gcnii.
        preset: a name of :data:`PRESETS`; left out, ``paper`` for a model that is named, ``deep``
            where none is.
        score: one of the model's scores.
        choices: settings to replace, such as ``layers=15``.
    """
    model, preset = resolve(model, preset)
    if score is None:
        usual = model == "gcn" and preset not in OF_THE_PAPER
        score = "symmetric" if usual else SCORES[model][0]
    base = ModelSettings(model=model, score=score)
    body = base.with_changes({**PRESETS[preset], **_OF_MODELS.get(model, {})})
    return body.with_changes(choices)
