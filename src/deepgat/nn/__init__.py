"""Layers, scores, norms and losses on PyTorch Geometric's conventions."""

from deepgat.nn.attention import NeighborAttention
from deepgat.nn.conv_output import Attention, ConvOutput
from deepgat.nn.drop_edge import DropEdge
from deepgat.nn.losses import (
    LayerwiseLoss,
    Loss,
    OutputAndLayersLoss,
    OutputLoss,
    classification_loss,
)
from deepgat.nn.residual import IdentityMap
from deepgat.nn.scores import (
    AdditiveScore,
    ClassScore,
    DotScore,
    HeadShape,
    NeighborMeanScore,
    OracleScore,
    Score,
    ScoreInputs,
    UniformScore,
)

__all__ = [
    "AdditiveScore",
    "Attention",
    "ClassScore",
    "ConvOutput",
    "DotScore",
    "DropEdge",
    "HeadShape",
    "IdentityMap",
    "LayerwiseLoss",
    "Loss",
    "NeighborAttention",
    "NeighborMeanScore",
    "OracleScore",
    "OutputAndLayersLoss",
    "OutputLoss",
    "Score",
    "ScoreInputs",
    "UniformScore",
    "classification_loss",
]
