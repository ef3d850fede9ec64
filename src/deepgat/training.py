"""How a model is trained, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from deepgat.errors import UserError, unknown_name
from deepgat.nn.checkpoint import CHECKPOINTS
from deepgat.nn.settings import check_type

MONITORS = ("val-loss", "val-f1", "train-loss")
PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True)
class TrainSettings:
    """How a model is trained; Adam, early stopping, the best epoch's weights kept."""

    lr: float = 0.01
    weight_decay: float = 0.0
    weight_decay_conv: float | None = None
    """For the weights of the convolutions (``model.convolution_weights()``), where it is to be
    another than for the encoder, the readout and the class heads; left out: the same."""
    epochs: int = 10_000
    """The most epochs, if early stopping does not end the training before."""
    patience: int = 100
    """Epochs without improvement of the monitored number before training stops."""
    monitor: str = "val-loss"
    """What picks the best epoch: "val-loss" (of the output), "val-f1", or "train-loss"."""
    seed: int = 0
    """Seeds dropout and the order of graphs. The weights are drawn when the model is made."""
    device: str = "auto"
    """"auto" takes a GPU where there is one; else a torch device name."""
    precision: str = "float32"
    """"bf16" runs the forward pass in bfloat16 where that is safe (GPU only)."""
    checkpoint: str = "auto"
    """What is computed again in the backward pass instead of kept: "none", the "projections" (a
    matrix product per layer), every "layer", segments of √L layers ("sqrt"), or "auto", as the
    free memory asks for. The results are the same."""

    batch: int = 1
    """Graphs per step, where the data has several: they are trained on side by side, as one graph
    of as many components. In a team of processes each then gets whole graphs of every step; with
    1, the graph of a step is divided among them."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.default is not None:
                check_type(setting.name, value, type(setting.default))
            elif value is not None:
                check_type(setting.name, value, float)
        if self.monitor not in MONITORS:
            raise unknown_name("monitor", self.monitor, MONITORS)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.checkpoint not in CHECKPOINTS:
            raise unknown_name("checkpoint", self.checkpoint, CHECKPOINTS)
        if not self.lr > 0:
            raise UserError(f"lr is {self.lr}: expected a number above 0")
        for name in ("weight_decay", "weight_decay_conv"):
            if not 0 <= (getattr(self, name) or 0.0) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}: expected 0 or more")
        for name in ("epochs", "patience", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: expected 1 or more")

    def with_changes(self, changes: Mapping[str, Any]) -> TrainSettings:
        """These settings with some replaced; an unknown name is refused with the nearest one."""
        names = [setting.name for setting in fields(self)]
        for name in changes:
            if name not in names:
                raise unknown_name("training setting", name, names)
        return replace(self, **changes)
