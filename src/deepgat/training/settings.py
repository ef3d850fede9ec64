"""How a model is trained, as plain values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deepgat.analysis.metrics import METRICS
from deepgat.errors import UserError
from deepgat.models.config import Config, setting, share
from deepgat.nn.checkpoint import CHECKPOINTS
from deepgat.training.class_weights import as_text, parse

MONITORS = ("val-loss", "loss-and-errors", "val-f1", "train-loss")
PRECISIONS = ("float32", "bf16")
BATCHES = ("none", "graphs", "clusters", "neighbours")


@dataclass(frozen=True)
class TrainSettings(Config):
    """How a model is trained: by Adam, with early stopping, and what each step sees.

    The weights of the best epoch are kept.
    """

    lr: float = setting(0.01, "learning rate of Adam", above=0)
    weight_decay: float = setting(0.0, "weight decay of Adam", least=0)
    weight_decay_conv: float | None = setting(
        None, "weight decay of the convolutions; left out: weight_decay", kind=float, least=0
    )
    decay_nodes: int = setting(
        0,
        "n₀: on n nodes the convolutions' decay is scaled by min(1, n₀/n), and by the step of a "
        "layer; 0: by the step alone",
        least=0,
    )
    decay_nodes_heads: int = setting(
        0, "n₀: on n nodes the class heads' decay is scaled by max(δ, min(1, n₀/n)), δ the step "
        "of a layer; 0: not scaled", least=0,
    )  # fmt: skip
    epochs: int = setting(10_000, "the most epochs, if early stopping does not end it", least=1)
    patience: int = setting(
        100, "epochs without improvement of the monitor before training stops", least=1
    )
    monitor: str = setting(
        "val-loss", "what picks the best epoch; loss-and-errors is the validation loss at its "
        "best temperature plus the share of errors; a metric takes its best value on "
        "validation nodes", MONITORS + METRICS,
    )  # fmt: skip
    ema: float = share(
        0.0,
        "decay of a moving average of the weights, such as .99; the average is validated and kept",
    )
    self_training: float = setting(
        0.0, "weight of a second stage's loss, on predictions of nodes without a label; 0: none",
        least=0,
    )  # fmt: skip
    seed: int = setting(0, "of the weights, dropout and the order of graphs", most=2**63 - 1)
    device: str = setting("auto", "auto takes a GPU where there is one; else a torch device name")
    precision: str = setting("float32", "of the forward pass; bf16 on a GPU", PRECISIONS)
    checkpoint: str = setting(
        "auto", "what is recomputed in the backward pass instead of kept: projections, every "
        "layer, segments of √L layers; auto: no more than memory requires. Results are the same",
        CHECKPOINTS,
    )  # fmt: skip
    class_weight: str | None = setting(
        None, "weights of the classes in the loss: balanced, one for each as in 1,5, or by class "
        "as in spam=5; left out: all equal", kind=str,
    )  # fmt: skip
    batches: str = setting(
        "none", "what a step sees: one graph, several whole graphs, some clusters of nodes of one, "
        "or the neighbours of some of its training nodes", BATCHES,
    )  # fmt: skip
    batch_size: int = setting(
        0, "graphs or clusters per batch, or training nodes whose neighbours make a batch; "
        "0: 2, 4, or 512", least=0,
    )  # fmt: skip
    clusters: int = setting(32, "clusters that each graph is cut into", least=1, most=10**6)
    fan_out: str = setting(
        "10", "the most neighbours that a node brings along: one number for all layers, or one "
        "for each, the last layer's first, as in 15,10,5",
    )  # fmt: skip
    most_nodes: int = setting(
        20_000, "the most nodes of a batch of neighbours; with any batches, also of what "
        "evaluation computes at a time", least=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_weight", as_text(self.class_weight))
        super().__post_init__()

    def check(self) -> None:
        if self.class_weight is not None:
            parse(self.class_weight)
        if not re.fullmatch(r"0*[1-9]\d{0,8}(,0*[1-9]\d{0,8})*", self.fan_out):
            raise UserError(
                f"fan_out is {self.fan_out!r}: expected a number of neighbours above 0, or one per "
                "layer, as in 15,10,5"
            )

    @property
    def metric(self) -> str | None:
        """The metric that picks the best epoch, if one does."""
        return self.monitor if self.monitor in METRICS else None

    @property
    def in_parts(self) -> bool:
        """Whether a step sees a part of a graph."""
        return self.batches in ("clusters", "neighbours")

    @property
    def per_batch(self) -> int:
        """Graphs, clusters, or training nodes, of one batch."""
        usual = {"none": 1, "graphs": 2, "clusters": 4, "neighbours": 512}[self.batches]
        return self.batch_size or usual

    @property
    def graphs_per_step(self) -> int:
        """Whole graphs that a step joins, where the data has several."""
        return self.per_batch if self.batches == "graphs" else 1

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
        """Weight decay of the convolutions, whose layers go ``step`` of the way, on n nodes."""
        decay = self.weight_decay if self.weight_decay_conv is None else self.weight_decay_conv
        return step * (decay * self.decay_nodes / nodes if 0 < self.decay_nodes < nodes else decay)

    def head_decay(self, step: float, nodes: int) -> float:
        """Weight decay of the class heads of layers, likewise."""
        if not self.decay_nodes_heads:
            return self.weight_decay
        return self.weight_decay * max(step, min(1.0, self.decay_nodes_heads / nodes))

    @property
    def chunk(self) -> int:
        """Nodes at a time in evaluation, where the graph was too large for a step; else 0: all."""
        return self.most_nodes if self.in_parts else 0
