"""The convolutions that a body such as GCNII's or G²'s can be put around, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from deepgat.nn.attention import NeighborAttention
from deepgat.nn.losses import LayerwiseLoss, Loss, OutputLoss
from deepgat.nn.scores import AdditiveScore, ClassScore, OthersScore, UniformScore

Conv: TypeAlias = Callable[..., NeighborAttention]
"""(in_channels, out_channels, **arguments of NeighborAttention) → the convolution."""

CONVS = ("gcn", "gat", "deepgat", "sage")


def made_by(
    conv: str | Conv,
    in_channels: int,
    out_channels: int,
    *,
    num_classes: int,
    multi_label: bool = False,
    **arguments: Any,
) -> tuple[NeighborAttention, Loss]:
    """The convolution of a body's layer, and the loss of a network of such layers.

    Layers that predict classes are trained by the loss of every layer, others by the output's.
    """
    made: NeighborAttention
    if not isinstance(conv, str):
        made = conv(in_channels, out_channels, **arguments)
    elif conv == "gcn":
        made = NeighborAttention(
            in_channels, out_channels, score=UniformScore, normalization="symmetric", **arguments
        )
    elif conv == "gat":
        made = NeighborAttention(in_channels, out_channels, score=AdditiveScore, **arguments)
    elif conv == "sage":
        arguments |= {"bias": False, "residual": True}
        made = NeighborAttention(in_channels, out_channels, score=OthersScore, **arguments)
    else:
        score = partial(ClassScore, independent_labels=multi_label)
        made = NeighborAttention(
            in_channels, out_channels, score=score, num_classes=num_classes, **arguments
        )
    predicts = made.score.needs_class_logits
    return made, LayerwiseLoss(delta=0.4) if predicts else OutputLoss()
