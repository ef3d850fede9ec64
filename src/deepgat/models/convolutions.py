"""Convolutions by name, for systems such as GCNII and G² that take any of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from deepgat.models.network import Network
from deepgat.nn.attention import NeighborAttention
from deepgat.nn.losses import LayerwiseLoss, Loss, OutputLoss
from deepgat.nn.scores import AdditiveScore, ClassScore, NeighborMeanScore, UniformScore

CONVS = ("gcn", "gat", "deepgat", "sage")


def make_conv(
    network: Network, name: str, in_channels: int, out_channels: int, **arguments: Any
) -> NeighborAttention:
    """A layer of the network, by name; ``arguments`` are those of :class:`NeighborAttention`."""
    arguments["edge_dim"] = network.edge_dim
    match name:
        case "gcn":
            arguments |= {"score": UniformScore, "normalization": "symmetric"}
        case "gat":
            arguments |= {"score": AdditiveScore}
        case "sage":
            arguments |= {"score": NeighborMeanScore, "bias": False, "residual": True}
        case _:
            score = partial(ClassScore, independent_labels=network.multi_label)
            arguments |= {"score": score, "num_classes": network.out_channels}
    return NeighborAttention(in_channels, out_channels, **arguments)


def loss_with(conv: str) -> Loss:
    """The loss of every layer if layers predict classes, else that of the output alone."""
    return LayerwiseLoss(delta=0.4) if conv == "deepgat" else OutputLoss()
