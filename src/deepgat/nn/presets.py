"""The two readings of the method: the paper's text and its authors' code.

Where they disagree, each side is one named setting; a preset sets them all. ``docs/ledger.md``
explains every row, with the differences in training and evaluation too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgat.errors import unknown_name
from deepgat.nn.settings import SCORES, ModelSettings

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
}
"""What each preset fixes; everything else keeps the default of :class:`ModelSettings`."""


def model_settings(
    model: str = "deepgat", preset: str = "paper", score: str | None = None, **choices: Any
) -> ModelSettings:
    """Settings of a model under a preset, with any single choice replaced by name."""
    if model not in SCORES:
        raise unknown_name("model", model, SCORES)
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    base = ModelSettings(model=model, score=SCORES[model][0] if score is None else score)
    return base.with_changes({**PRESETS[preset], **choices})
