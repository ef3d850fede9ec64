"""A model as plain values: every named choice, checked, and the model it stands for.

The stack takes scores, normalisations and update rules as values; here they have names, so that
a command line, a file or a stored run can say which model it means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from torch import nn

from deepgat.errors import UserError, unknown_name
from deepgat.nn.labels import LabelInput, LabelsToLayer, LabelsToPrediction
from deepgat.nn.losses import LayerwiseLoss, Loss, OutputLoss
from deepgat.nn.scores import (
    AdditiveScore,
    ClassScore,
    DotScore,
    OracleScore,
    Scale,
    ScoreFactory,
    UniformScore,
    by_sqrt_output_width,
    by_width,
    unscaled,
)
from deepgat.nn.stack import AttentionStack, NormFactory, no_norm
from deepgat.nn.updates import LinearSkip, Plain, Residual, UpdateFactory
from deepgat.ops import Normalization

SCORES: Mapping[str, tuple[str, ...]] = {
    "deepgat": ("dp", "sd"),
    "gat": ("ad", "dp", "sd"),
    "gcn": ("row", "symmetric"),
    "oracle": ("sum", "softmax"),
}
"""The scores of each model; the first is its default."""

NORMS: Mapping[str, NormFactory] = {
    "none": no_norm,
    "layer": nn.LayerNorm,
    "batch": nn.BatchNorm1d,
}
ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "relu": nn.ReLU,
    "identity": nn.Identity,
}
UPDATES: Mapping[str, UpdateFactory] = {
    "plain": Plain,
    "linear-skip": LinearSkip,
    "residual": Residual,
}
LABEL_INPUTS: Mapping[str, Callable[[], LabelInput]] = {
    "prediction": LabelsToPrediction,
    "layer": LabelsToLayer,
}
SD_SCALES: Mapping[str, Scale] = {
    "width": by_width,
    "sqrt-output-width": by_sqrt_output_width,
}
FIRST_LABELS = ("zero", "neighbor-counts")
CLASS_ACTIVATIONS = ("by-task", "softmax")
LOSS_LAYERS: Mapping[str, int] = {"from-1": 1, "from-0": 0}


def _choice(default: Any, meaning: str, options: Any = None) -> Any:
    return field(default=default, metadata={"meaning": meaning, "options": options})


@dataclass(frozen=True)
class ModelSettings:
    """Everything that makes a model, apart from the sizes of the data.

    The defaults are the paper's equations; :data:`deepgat.nn.PRESETS` has the authors' code.
    """

    model: str = _choice("deepgat", "which system", tuple(SCORES))
    score: str = _choice("dp", "how neighbours are compared; see the model's own list")
    layers: int = _choice(2, "L, number of layers")
    hidden: int = _choice(8, "D, width of each head in hidden layers")
    heads: int = _choice(8, "H, heads in hidden layers, concatenated")
    output_heads: int = _choice(1, "heads of the last layer, averaged")
    unit_features: bool = _choice(
        False, "divide every node's features by their sum before the first layer"
    )
    dropout: float = _choice(0.0, "share of each layer's input dropped in training")
    attention_dropout: float = _choice(0.0, "share of attention weights dropped in training")
    norm: str = _choice("none", "normalisation before each activation", tuple(NORMS))
    bias: bool = _choice(False, "learn a bias in every layer")
    activation: str = _choice("elu", "σ", tuple(ACTIVATIONS))
    output_activation: bool = _choice(True, "apply σ to the last layer too")
    update: str = _choice("plain", "how a layer's output joins its input", tuple(UPDATES))
    label_hops: int = _choice(3, "how many of the first layers see propagated labels z; 0: none")
    label_input: str = _choice(
        "prediction", "who sees z: the class head alone, or the whole layer", tuple(LABEL_INPUTS)
    )
    first_labels: str = _choice(
        "zero", "z of layer 1: rm_diag(I)Y = 0, or raw neighbour label counts", FIRST_LABELS
    )
    class_activation: str = _choice(
        "by-task",
        "inside attention: softmax for classes and sigmoid for labels, or always softmax",
        CLASS_ACTIVATIONS,
    )
    sd_scale: str = _choice(
        "width", "SD divides by dim(q), or by sqrt(per-head output width)", tuple(SD_SCALES)
    )
    loss_layers: str = _choice(
        "from-1",
        "loss terms l = 1..L, or l = 0..L with the raw-feature prediction",
        tuple(LOSS_LAYERS),
    )
    delta: float = _choice(0.4, "δ in γ(l) = δ/(l+δ) + 1, the weight of layer l's loss")

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, options = getattr(self, setting.name), setting.metadata["options"]
            _check_type(setting.name, value, type(setting.default))
            if options is not None and value not in options:
                raise unknown_name(setting.name.replace("_", "-"), value, options)
        if self.score not in SCORES[self.model]:
            raise unknown_name(f"score for {self.model}", self.score, SCORES[self.model])
        for name in ("layers", "hidden", "heads", "output_heads"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: expected 1 or more")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"{name} is {getattr(self, name)}: expected a share of at least 0 and below 1"
                )
        if self.label_hops < 0:
            raise UserError(f"label_hops is {self.label_hops}: expected 0 or more")
        if not 0 <= self.delta < float("inf"):
            raise UserError(f"delta is {self.delta}: expected 0 or more")

    @staticmethod
    def names() -> list[str]:
        return [setting.name for setting in fields(ModelSettings)]

    def with_changes(self, changes: Mapping[str, Any]) -> ModelSettings:
        """These settings with some replaced; an unknown name is refused with the nearest one."""
        for name in changes:
            if name not in self.names():
                raise unknown_name("model setting", name, self.names())
        return replace(self, **changes)


def build_model(
    settings: ModelSettings, in_channels: int, num_classes: int, multi_label: bool = False
) -> AttentionStack:
    """The model that the settings stand for, for d features and C classes or labels."""
    return AttentionStack(in_channels, num_classes, **stack_arguments(settings, multi_label))


def stack_arguments(settings: ModelSettings, multi_label: bool) -> dict[str, Any]:
    """The values behind the names: keyword arguments of :class:`AttentionStack`."""
    predicts = settings.model in ("deepgat", "oracle")
    return {
        "layers": settings.layers,
        "hidden": settings.hidden,
        "heads": settings.heads,
        "output_heads": settings.output_heads,
        "score": _score(settings, multi_label),
        "normalization": _normalization(settings),
        "update": UPDATES[settings.update],
        "norm": NORMS[settings.norm],
        "activation": ACTIVATIONS[settings.activation](),
        "output_activation": settings.output_activation,
        "label_input": LABEL_INPUTS[settings.label_input](),
        "label_hops": settings.label_hops if predicts and not multi_label else 0,
        "first_labels": settings.first_labels,
        "unit_features": settings.unit_features,
        "dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "bias": settings.bias,
        "loss": _loss(settings),
    }


def _score(settings: ModelSettings, multi_label: bool) -> ScoreFactory:
    scale = SD_SCALES[settings.sd_scale] if settings.score == "sd" else unscaled
    if settings.model == "deepgat":
        independent = multi_label and settings.class_activation == "by-task"
        return partial(ClassScore, scale=scale, independent_labels=independent)
    if settings.model == "oracle":
        return partial(OracleScore, inside_softmax=settings.score == "softmax")
    if settings.model == "gcn":
        return UniformScore
    return AdditiveScore if settings.score == "ad" else partial(DotScore, scale=scale)


def _normalization(settings: ModelSettings) -> Normalization:
    return Normalization.SYMMETRIC if settings.score == "symmetric" else Normalization.ROW


def _loss(settings: ModelSettings) -> Loss:
    if settings.model in ("gat", "gcn"):
        return OutputLoss()
    return LayerwiseLoss(settings.delta, LOSS_LAYERS[settings.loss_layers])


def _check_type(name: str, value: Any, expected: type) -> None:
    accepted = (int, float) if expected is float else (expected,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and expected is not bool):
        raise UserError(f"{name} is {value!r}: expected a value of type {expected.__name__}")
