"""From named settings to the model they stand for."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from deepgat.nn.drop_edge import DropEdge, EdgeSampler, all_edges
from deepgat.nn.layers import Gate, GatedLayer
from deepgat.nn.losses import LayerwiseLoss, Loss, OutputAndLayersLoss, OutputLoss
from deepgat.nn.scores import (
    AdditiveScore,
    ClassScore,
    DotScore,
    OracleScore,
    OthersScore,
    ScoreFactory,
    UniformScore,
    unscaled,
)
from deepgat.nn.settings import (
    ACTIVATIONS,
    EDGES,
    ENCODERS,
    LABEL_INPUTS,
    LOSS_LAYERS,
    NORMALIZATIONS,
    NORMS,
    PREDICTING,
    READOUTS,
    SD_SCALES,
    UPDATES,
    ModelSettings,
)
from deepgat.nn.stack import AttentionStack
from deepgat.nn.updates import IdentityMap, InitialResidual, Plain, UpdateFactory, chained
from deepgat.ops import Normalization


def build_model(
    settings: ModelSettings,
    in_channels: int,
    num_classes: int,
    multi_label: bool = False,
    edge_channels: int = 0,
) -> AttentionStack:
    """The model that the settings stand for, for d features and C classes or labels.

    ``edge_channels``: the width of the edges' features, where they have any.
    """
    arguments = stack_arguments(settings, multi_label)
    return AttentionStack(in_channels, num_classes, edge_channels=edge_channels, **arguments)


def stack_arguments(settings: ModelSettings, multi_label: bool) -> dict[str, Any]:
    """The values behind the names: keyword arguments of :class:`AttentionStack`."""
    return {
        "layers": settings.layers,
        "hidden": settings.hidden,
        "heads": settings.heads,
        "output_heads": settings.output_heads,
        "score": _score(settings, multi_label),
        "normalization": _normalization(settings),
        "project": settings.projection,
        "update": _update(settings),
        "gate": _gate(settings),
        "shared_layers": settings.shared_layers,
        "norm": NORMS[settings.norm](settings.norm_scale),
        "output_norm": settings.output_norm,
        "activation": ACTIVATIONS[settings.activation](),
        "output_activation": settings.output_activation,
        "encoder": ENCODERS[settings.encoder],
        "readout": READOUTS[settings.readout],
        "neighborhood": EDGES[settings.edges],
        "edge_sampler": _edge_sampler(settings),
        "label_input": LABEL_INPUTS[settings.label_input](),
        "label_hops": _label_hops(settings, multi_label),
        "first_labels": settings.first_labels,
        "shared_class_head": settings.class_head == "shared",
        "class_bias": settings.class_bias,
        "clean_attention": settings.clean_attention,
        "unit_features": settings.unit_features,
        "feature_norm": _feature_norm(settings),
        "step_depth": settings.step_depth,
        "shared_steps": settings.shared_steps,
        "dropout": settings.layer_dropout,
        "attention_dropout": settings.attention_dropout,
        "input_dropout": _given(settings.input_dropout, settings.dropout),
        "output_dropout": _given(settings.output_dropout, settings.dropout),
        "bias": settings.bias,
        "loss": _loss(settings),
    }


def _given(value: float | None, otherwise: float) -> float:
    """The dropout of an end: as ``dropout`` says, whatever is between deep networks' layers."""
    return otherwise if value is None else value


def _edge_sampler(settings: ModelSettings) -> EdgeSampler:
    """All where there are none to drop, so that the lists keep what they have of ``alone``."""
    dropped = settings.drop_edge if settings.edges == "all" else 0.0
    return DropEdge(dropped) if dropped else all_edges


def _score(settings: ModelSettings, multi_label: bool) -> ScoreFactory:
    scale = SD_SCALES[settings.sd_scale] if settings.score == "sd" else unscaled
    if settings.model == "deepgat":
        return partial(
            ClassScore,
            scale=scale,
            independent_labels=multi_label and settings.class_activation == "by-task",
            temperature=settings.temperature,
            learned=settings.learn_temperature,
            ramp=settings.temperature_ramp,
            first_layer=settings.attention_from,
            last_layer=settings.attention_to,
            softening=settings.softening,
            detached=settings.detach_attention,
            compatible=settings.compatibility == "learnt",
        )
    if settings.model == "oracle":
        return partial(OracleScore, inside_softmax=settings.score == "softmax")
    if settings.model == "gat":
        return AdditiveScore if settings.score == "ad" else partial(DotScore, scale=scale)
    return OthersScore if settings.model == "sage" else UniformScore


def _normalization(settings: ModelSettings) -> Normalization:
    given = NORMALIZATIONS[settings.normalization]
    if given is not None:
        return given
    return Normalization.SYMMETRIC if settings.score == "symmetric" else Normalization.ROW


def _update(settings: ModelSettings) -> UpdateFactory:
    rules: list[UpdateFactory] = []
    if settings.update != "plain":
        rules.append(UPDATES[settings.update])
    if settings.initial_residual:
        rules.append(partial(InitialResidual, alpha=settings.initial_residual))
    if settings.identity_map:
        rules.append(partial(IdentityMap, theta=settings.identity_map))
    return chained(*rules) if rules else Plain


def _gate(settings: ModelSettings) -> Gate | None:
    if not settings.gate_power:
        return None
    return partial(
        GatedLayer,
        power=settings.gate_power,
        mean=settings.gate_reduction == "mean",
        own=settings.gate_layer == "own",
    )


def _loss(settings: ModelSettings) -> Loss:
    kind = settings.loss
    if kind == "by-model":
        kind = "layers" if settings.model in PREDICTING else "output"
    if kind == "output":
        return OutputLoss()
    if kind == "layers":
        return LayerwiseLoss(settings.delta, LOSS_LAYERS[settings.loss_layers])
    return OutputAndLayersLoss(settings.delta, settings.layer_loss)


def _label_hops(settings: ModelSettings, multi_label: bool) -> int:
    """No labels for models that do not predict, nor for a head that sees the layers alone."""
    blind = settings.class_head == "shared" and settings.label_input == "prediction"
    if settings.model not in PREDICTING or multi_label or blind:
        return 0
    return settings.label_hops


def _feature_norm(settings: ModelSettings) -> nn.Module | None:
    if settings.feature_norm == "none":
        return None
    return NORMS[settings.feature_norm](settings.norm_scale)(0)
