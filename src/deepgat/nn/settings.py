"""A model as plain values: every named choice, checked.

The stack takes scores, normalisations and update rules as values; here they have names, so that
a command line, a file or a stored run can say which model it means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

from torch import nn

from deepgat.errors import UserError, unknown_name
from deepgat.nn.drop_edge import EdgeSampler, all_edges, no_edges
from deepgat.nn.ends import (
    EncoderFactory,
    HopGate,
    JumpReadout,
    LinearReadout,
    ReadoutFactory,
    class_encoder,
    last_layer,
    linear_encoder,
)
from deepgat.nn.labels import LabelInput, LabelsToLayer, LabelsToPrediction
from deepgat.nn.norms import BatchNorm, PairNorm
from deepgat.nn.scores import Scale, by_sqrt_output_width, by_width
from deepgat.nn.stack import NormFactory, no_norm
from deepgat.nn.updates import LinearSkip, Plain, Residual, UpdateFactory
from deepgat.ops import Normalization

SCORES: Mapping[str, tuple[str, ...]] = {
    "deepgat": ("dp", "sd"),
    "gat": ("ad", "dp", "sd"),
    "gcn": ("row", "symmetric"),
    "oracle": ("sum", "softmax"),
    "sage": ("mean",),
}
"""The scores of each model; the first is its default."""

NORMS: Mapping[str, Callable[[float], NormFactory]] = {
    "none": lambda scale: no_norm,
    "layer": lambda scale: nn.LayerNorm,
    "batch": lambda scale: BatchNorm,
    "pairnorm": lambda scale: lambda width: PairNorm(scale),
    "pairnorm-si": lambda scale: lambda width: PairNorm(scale, scale_individually=True),
}
"""Each from its scale, which PairNorm alone has."""
PAIR_NORMS = ("pairnorm", "pairnorm-si")
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
ENCODERS: Mapping[str, EncoderFactory | None] = {
    "none": None,
    "linear": linear_encoder,
    "classes": class_encoder,
}
READOUTS: Mapping[str, ReadoutFactory] = {
    "last-layer": last_layer,
    "linear": LinearReadout,
    "jump-cat": partial(JumpReadout, mode="cat"),
    "jump-max": partial(JumpReadout, mode="max"),
    "jump-lstm": partial(JumpReadout, mode="lstm"),
    "hop-gate": HopGate,
}
EDGES: Mapping[str, EdgeSampler] = {"all": all_edges, "none": no_edges}
NORMALIZATIONS: Mapping[str, Normalization | None] = {
    "by-score": None,
    "row": Normalization.ROW,
    "symmetric": Normalization.SYMMETRIC,
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
LOSSES = ("by-model", "output", "layers", "output-and-layers")
PREDICTING = ("deepgat", "oracle")
"""Models whose layers predict classes."""
GATE_LAYERS = ("same", "own")
GATE_REDUCTIONS = ("mean", "sum")
CLASS_HEADS = ("layer", "shared")
COMPATIBILITIES = ("same-class", "learnt")
LATER = ("compatibility", "attention_to", "dropout_depth", "step_depth", "shared_steps")
"""Settings that there were not always; at their defaults they are as if there were none."""
SHARES = (
    "dropout",
    "attention_dropout",
    "input_dropout",
    "output_dropout",
    "drop_edge",
    "initial_residual",
)
"""Settings between 0 and 1."""


def _choice(default: Any, meaning: str, options: Any = None, kind: type | None = None) -> Any:
    """A setting; one without a default value, None, says its type by ``kind``."""
    kind = type(default) if kind is None else kind
    return field(default=default, metadata={"meaning": meaning, "options": options, "kind": kind})


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
    dropout: float = _choice(
        0.0, "share of each layer's input dropped in training; see dropout_depth, step_depth"
    )
    dropout_depth: int = _choice(
        0, "layers up to which dropout is as it says; with more, less between them; 0: any number"
    )
    step_depth: int = _choice(
        0, "with more layers than this, d, each goes d/L of the way from input to output; 0: all"
    )
    shared_steps: bool = _choice(
        False, "one set of weights for the layers that together go the way of one of step_depth"
    )
    attention_dropout: float = _choice(0.0, "share of attention weights dropped in training")
    input_dropout: float | None = _choice(
        None, "share of the encoder's input dropped; left out: as dropout", kind=float
    )
    output_dropout: float | None = _choice(
        None, "share of the readout's input dropped; left out: as dropout", kind=float
    )
    drop_edge: float = _choice(0.0, "share of edges dropped anew at each epoch of training")
    edges: str = _choice("all", "which edges the model has: all, or self-loops alone", tuple(EDGES))
    feature_norm: str = _choice(
        "none", "PairNorm of the features, before anything else", ("none", *PAIR_NORMS)
    )
    norm: str = _choice("none", "normalisation before each activation", tuple(NORMS))
    norm_scale: float = _choice(1.0, "s of PairNorm, the length it gives to features")
    output_norm: bool = _choice(True, "normalise the last layer too, where it goes to the classes")
    bias: bool = _choice(False, "learn a bias in every layer")
    activation: str = _choice("elu", "σ", tuple(ACTIVATIONS))
    output_activation: bool = _choice(True, "apply σ to the last layer too")
    encoder: str = _choice(
        "none",
        "before the layers: nothing, a linear map to their width, or two to the classes",
        tuple(ENCODERS),
    )
    readout: str = _choice(
        "last-layer",
        "to the classes by: the last layer, a linear map, jumping knowledge, DAGNN's gate",
        tuple(READOUTS),
    )
    projection: bool = _choice(True, "multiply by W in each layer; else h itself is passed on")
    shared_layers: bool = _choice(False, "one set of weights for all layers")
    normalization: str = _choice(
        "by-score",
        "of the weights: over the neighbours, or symmetric",
        tuple(NORMALIZATIONS),
    )
    update: str = _choice("plain", "how a layer's output joins its input", tuple(UPDATES))
    initial_residual: float = _choice(0.0, "α, share of h⁰ in every layer; 0: none")
    identity_map: float = _choice(0.0, "θ in β = log(θ/l+1), a ((1−β)I + βW); 0: none")
    gate_power: float = _choice(0.0, "p of G²'s gate, at least 1; 0: no gate")
    gate_reduction: str = _choice(
        "mean", "G²'s gate takes the mean or the sum over neighbours", GATE_REDUCTIONS
    )
    gate_layer: str = _choice(
        "same", "G²'s gate looks at the layer's output, or at an own layer's", GATE_LAYERS
    )
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
    class_head: str = _choice(
        "layer", "who predicts a layer's classes: its own head, or the readout", CLASS_HEADS
    )
    class_bias: bool = _choice(False, "learn a bias in each layer's class head")
    clean_attention: bool = _choice(False, "compare class predictions made without dropout")
    detach_attention: bool = _choice(False, "no gradient through the class predictions compared")
    temperature: float = _choice(1.0, "τ, factor on the agreement of two class predictions")
    learn_temperature: bool = _choice(False, "learn τ, one per layer")
    temperature_ramp: int = _choice(
        0, "layers, of step_depth where there are more, over which τ grows; 0: none"
    )
    softening: float = _choice(1.0, "T in softmax(p/T), the class predictions compared")
    attention_from: int = _choice(
        1, "the first layer, of step_depth where there are more, that attends by class"
    )
    attention_to: int = _choice(
        0, "the last layer, of step_depth where there are more, that attends by class; 0: all do"
    )
    compatibility: str = _choice(
        "same-class",
        "which classes attend to which: each to itself, or by a learnt C×C matrix",
        COMPATIBILITIES,
    )
    sd_scale: str = _choice(
        "width", "SD divides by dim(q), or by sqrt(per-head output width)", tuple(SD_SCALES)
    )
    loss: str = _choice(
        "by-model",
        "trained on: the output, all layers by γ(l), or the output and λ times the layers",
        LOSSES,
    )
    layer_loss: float = _choice(1.0, "λ, the layers' share of the loss output-and-layers")
    loss_layers: str = _choice(
        "from-1",
        "loss terms l = 1..L, or l = 0..L with the raw-feature prediction",
        tuple(LOSS_LAYERS),
    )
    delta: float = _choice(0.4, "δ in γ(l) = δ/(l+δ) + 1, the weight of layer l's loss")

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, options = getattr(self, setting.name), setting.metadata["options"]
            if value is not None or setting.default is not None:
                check_type(setting.name, value, setting.metadata["kind"])
            if options is not None and value not in options:
                raise unknown_name(setting.name.replace("_", "-"), value, options)
        if self.score not in SCORES[self.model]:
            raise unknown_name(f"score for {self.model}", self.score, SCORES[self.model])
        for name in ("layers", "hidden", "heads", "output_heads", "attention_from"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: expected 1 or more")
        for name in SHARES:
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise UserError(f"{name} is {value}: expected a share of at least 0 and below 1")
        for name in (
            "label_hops", "temperature_ramp", "attention_to", "dropout_depth", "step_depth",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}: expected 0 or more")
        for name in ("delta", "identity_map", "layer_loss", "temperature"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}: expected 0 or more")
        for name in ("norm_scale", "softening"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}: expected a number above 0")
        if self.gate_power and not 1 <= self.gate_power < math.inf:
            raise UserError(f"gate_power is {self.gate_power}: expected 1 or more, or 0: no gate")
        self._check_combination()

    def _check_combination(self) -> None:
        """Refuse settings that would be without effect, or cannot be together."""
        if self.encoder == "none":
            for name in ("initial_residual", "gate_power"):
                if getattr(self, name):
                    raise UserError(f"{name} needs an encoder to make h⁰: set encoder=linear")
            if not self.projection:
                raise UserError("projection=no needs an encoder before it: set encoder=linear")
        if self.compatibility != "same-class" and self.model != "deepgat":
            raise UserError(
                f"compatibility is for class attention, and {self.model} has none: leave it out"
            )
        if 0 < self.step_depth < min(self.layers, self.attention_from):
            raise UserError(
                f"attention_from is {self.attention_from}, but {self.layers} layers are steps on "
                f"the way of {self.step_depth}: expected 1 to {self.step_depth}, or step_depth=0"
            )
        if self.dropout_depth and self.step_depth:
            raise UserError(
                f"dropout_depth is {self.dropout_depth} and step_depth is {self.step_depth}: each "
                "says what dropout deep networks have; set one of them to 0"
            )
        if self.shared_steps and not self.step_depth:
            raise UserError(
                "shared_steps is for layers that go a part of the way: set step_depth as well"
            )
        if self.shared_steps and self.shared_layers:
            raise UserError("shared_steps and shared_layers are both set: leave one of them out")
        if self.class_head == "shared" and self.readout != "linear":
            raise UserError("class_head=shared is the readout's linear map: set readout=linear")

    @property
    def layer_dropout(self) -> float:
        """The dropout p' between layers; the encoder and the readout keep p.

        A layer multiplies the second moment of the noise by (1 + p / (k (1 − p))) (1 − α)², k
        the number of neighbours that a node averages: above 1 for nodes with few of them, so it
        would grow with L. Beyond d = ``dropout_depth`` therefore 1 − p' = (1 − p)^√(d / L).

        Steps of d/L, beyond d = ``step_depth``, average the noise of L/d layers instead, and would
        leave next to none: p' / (1 − p') = √(L / d) · p / (1 − p).
        """
        if 0 < self.dropout_depth < self.layers:
            return 1 - (1 - self.dropout) ** math.sqrt(self.dropout_depth / self.layers)
        if 0 < self.step_depth < self.layers:
            odds = math.sqrt(self.layers / self.step_depth) * self.dropout / (1 - self.dropout)
            return odds / (1 + odds)
        return self.dropout

    @property
    def gradient_share(self) -> float:
        """As that of the network that is built: :class:`~deepgat.nn.stack.AttentionStack`."""
        shared = self.shared_layers or self.shared_steps
        steps = 0 < self.step_depth < self.layers and not shared
        return self.step_depth / self.layers if steps else 1.0

    def to_dict(self) -> dict[str, Any]:
        """As plain values; what is new and at its default is left out.

        So a run is written, and signed, as it was before there was such a setting.
        """
        return plain_values(self, LATER)

    @staticmethod
    def names() -> list[str]:
        return [setting.name for setting in fields(ModelSettings)]

    @staticmethod
    def kinds() -> dict[str, type]:
        """The type of every setting, also of those without a default."""
        return {setting.name: setting.metadata["kind"] for setting in fields(ModelSettings)}

    def with_changes(self, changes: Mapping[str, Any]) -> ModelSettings:
        """These settings with some replaced; an unknown name is refused with the nearest one."""
        for name in changes:
            if name not in self.names():
                raise unknown_name("model setting", name, self.names())
        if changes.get("dropout_depth"):  # it stands in the place of smaller steps
            changes = {"step_depth": 0, "shared_steps": False, **changes}
        return replace(self, **changes)


def plain_values(settings: Any, later: Collection[str]) -> dict[str, Any]:
    """The fields of a settings class, without those of ``later`` that are at their defaults."""
    usual = {setting.name: setting.default for setting in fields(settings)}
    return {
        name: value
        for name, value in asdict(settings).items()
        if name not in later or value != usual[name]
    }


def check_type(name: str, value: Any, expected: type) -> None:
    """Refuse a setting of another type; a whole number may stand for a float."""
    accepted = (int, float) if expected is float else (expected,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and expected is not bool):
        raise UserError(f"{name} is {value!r}: expected a value of type {expected.__name__}")
