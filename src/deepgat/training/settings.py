"""How a model is trained, as plain values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from deepgat.errors import UserError, unknown_name
from deepgat.nn.checkpoint import CHECKPOINTS
from deepgat.nn.settings import check_type, plain_values

MONITORS = (
    "val-loss", "calibrated-loss", "loss-and-errors", "f1-or-loss", "val-f1", "train-loss",
)  # fmt: skip
CALIBRATED = ("calibrated-loss", "loss-and-errors", "f1-or-loss")
"""Those that divide the validation logits by the temperature that makes the loss smallest."""
PRECISIONS = ("float32", "bf16")
BATCHES = ("none", "clusters", "neighbours")
LATER = (
    "batches", "clusters", "batch_clusters", "batch_seeds", "fan_out", "most_nodes",
    "batch_graphs", "self_training", "confidence", "self_training_from", "target_update",
    "target_temperature", "taught_layers", "average_weights", "own_best", "decay_nodes",
    "calibrated_targets", "weight_decay_heads", "decay_nodes_heads",
)  # fmt: skip
"""Settings that there were not always; at their defaults they are as if there were none."""


@dataclass(frozen=True)
class TrainSettings:
    """How a model is trained; Adam, early stopping, the best epoch's weights kept."""

    lr: float = 0.01
    weight_decay: float = 0.0
    weight_decay_conv: float | None = None
    """For the weights of the convolutions (``model.convolution_weights()``), where it is to be
    another than for the encoder, the readout and the class heads; left out: the same."""
    weight_decay_heads: float | None = None
    """λ of the class heads that layers have of their own (``model.class_head_weights()``): where
    layers go δ of the way (``step_depth``) their decay is λ·δ, like that of the convolutions; left
    out: ``weight_decay``, at any δ."""
    decay_nodes_heads: int = 0
    """Above 0: n₀ of λ·max(δ, min(1, n₀ / n)) on n nodes in the place of both, λ being
    ``weight_decay_heads`` or, where that is left out, ``weight_decay``."""
    decay_nodes: int = 0
    """n₀ of the convolutions' decay λ·min(1, n₀ / n) on n nodes: the loss is a mean over what there
    is to learn from, and the more that is, the less the decay should say beside it; 0: λ."""
    epochs: int = 10_000
    """The most epochs, if early stopping does not end the training before."""
    patience: int = 100
    """Epochs without improvement of the monitored number before training stops."""
    monitor: str = "val-loss"
    """What picks the best epoch: "val-loss" (of the output), "calibrated-loss" (the same, its
    logits divided by the temperature that makes it smallest), "loss-and-errors" (that and the
    share of errors, 1 − micro-F1, added up), "val-f1", "f1-or-loss" (of equal F1 the lower
    calibrated loss; an epoch that lowers either starts the patience anew), or "train-loss"."""
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
    batches: str = "none"
    """What one step sees of a graph: all of it ("none"), some "clusters" of nodes, or the
    "neighbours" of some training nodes, drawn hop by hop. :mod:`deepgat.training.minibatch`."""
    clusters: int = 32
    """Clusters that each graph is cut into."""
    batch_clusters: int = 4
    """Of these, drawn anew every epoch, in one batch."""
    batch_seeds: int = 512
    """Training nodes whose neighbours make one batch."""
    fan_out: str = "10"
    """Neighbours that a node brings along, at most: one number for all layers, or one for each,
    the last layer's first, as in "15,10,5"."""
    most_nodes: int = 20_000
    """The most nodes of a batch of neighbours; and, with any batches, of what evaluation computes
    at a time."""
    self_training: float = 0.0
    """Weight of the loss on confident predictions of nodes without a label, taken for targets; 0:
    none. :mod:`deepgat.training.self_training`."""
    confidence: float = 0.8
    """How probable a class must be to be taken for a target."""
    self_training_from: int = 50
    """The epoch from which such targets count, fully so 50 epochs later; 0: once patience has run
    out, from the best epoch's weights on."""
    target_update: float = 0.2
    """How much of the targets is what the model says of late; 0: they stay as they began."""
    target_temperature: float = 0.0
    """T of the targets t^(1/T) / Σ_c t_c^(1/T); 0: the most probable class alone."""
    calibrated_targets: bool = False
    """Whether the targets are predictions at the temperature that makes the validation loss
    smallest: a network that is too sure of itself, or not sure enough, then teaches what its
    predictions are worth. For the monitors that look for that temperature."""
    taught_layers: float = 0.0
    """How much the layers before the last, together, learn from such targets; 0: not at all."""
    own_best: bool = False
    """Whether a second stage (``self_training_from`` 0) keeps the best of its own epochs, from the
    50th on, in which the targets have grown, and not of all: what is monitored is not the same
    number once they count."""
    average_weights: float = 0.0
    """d of the moving average of the weights that is validated and kept, such as .99; 0: the
    weights themselves are. :mod:`deepgat.training.ema`."""

    batch_graphs: int = 1
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
        taught = self.calibrated_targets and self.self_training > 0
        if taught and self.monitor not in CALIBRATED:
            raise UserError(
                f"calibrated_targets is set, and the monitor {self.monitor} looks for no "
                f"temperature: expected one of {', '.join(CALIBRATED)}, or calibrated_targets=no"
            )
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.checkpoint not in CHECKPOINTS:
            raise unknown_name("checkpoint", self.checkpoint, CHECKPOINTS)
        if self.batches not in BATCHES:
            raise unknown_name("kind of batches", self.batches, BATCHES)
        for name in ("clusters", "batch_clusters", "batch_seeds", "most_nodes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: expected 1 or more")
        if not re.fullmatch(r"0*[1-9]\d{0,8}(,0*[1-9]\d{0,8})*", self.fan_out):
            raise UserError(
                f"fan_out is {self.fan_out!r}: expected a number of neighbours above 0, or one per "
                "layer, as in 15,10,5"
            )
        if self.batches != "none" and self.batch_graphs > 1:
            raise UserError(
                "batch_graphs joins whole graphs and batches takes parts of one: leave one of them "
                "out"
            )
        if not self.lr > 0:
            raise UserError(f"lr is {self.lr}: expected a number above 0")
        for name in ("confidence", "average_weights"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: expected 0 or more and below 1")
        for name in (
            "weight_decay", "weight_decay_conv", "weight_decay_heads", "self_training",
            "self_training_from", "target_temperature", "taught_layers", "target_update",
            "decay_nodes", "decay_nodes_heads",
        ):  # fmt: skip
            if not 0 <= (getattr(self, name) or 0.0) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}: expected 0 or more")
        for name in ("epochs", "patience", "batch_graphs"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: expected 1 or more")

    def fan_outs(self, layers: int) -> list[int]:
        """``fan_out`` for every layer, the last first."""
        numbers = [int(text) for text in self.fan_out.split(",")]
        if len(numbers) == 1:
            return numbers * layers
        if len(numbers) != layers:
            raise UserError(
                f"fan_out is {self.fan_out!r}, {len(numbers)} numbers, but the model has {layers} "
                "layers: expected one number for all layers, or one for each"
            )
        return numbers

    def conv_decay(self, step: float, nodes: int) -> float:
        """Of the convolutions, whose layers go ``step`` of the way, on a graph of n nodes."""
        decay = self.weight_decay if self.weight_decay_conv is None else self.weight_decay_conv
        return step * (decay * self.decay_nodes / nodes if 0 < self.decay_nodes < nodes else decay)

    def head_decay(self, step: float, nodes: int) -> float:
        """Of the class heads of layers, likewise."""
        if self.weight_decay_heads is None and not self.decay_nodes_heads:
            return self.weight_decay
        decay = self.weight_decay if self.weight_decay_heads is None else self.weight_decay_heads
        return decay * max(step, min(1.0, self.decay_nodes_heads / nodes))

    @property
    def chunk(self) -> int:
        """Nodes at a time in evaluation, where the graph was too large for a step; else 0: all."""
        return 0 if self.batches == "none" else self.most_nodes

    def to_dict(self) -> dict[str, Any]:
        """As plain values; what is new and at its default is left out.

        So a run is written, and signed, as it was before there was such a setting.
        """
        return plain_values(self, LATER)

    def with_changes(self, changes: Mapping[str, Any]) -> TrainSettings:
        """These settings with some replaced; an unknown name is refused with the nearest one."""
        names = [setting.name for setting in fields(self)]
        for name in changes:
            if name not in names:
                raise unknown_name("training setting", name, names)
        return replace(self, **changes)
