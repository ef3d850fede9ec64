"""Torch modules on PyTorch Geometric's conventions."""

from deepgat.nn.attention import Attention, ConvOutput, NeighborAttention
from deepgat.nn.build import build_model
from deepgat.nn.drop_edge import DropEdge
from deepgat.nn.losses import (
    LayerwiseLoss,
    Loss,
    OutputAndLayersLoss,
    OutputLoss,
    classification_loss,
    layer_weight,
)
from deepgat.nn.models import G2, GAT, GCN, GCNII, DeepGAT, OracleGAT
from deepgat.nn.outputs import LayerOutputs
from deepgat.nn.presets import PRESETS, model_settings
from deepgat.nn.scores import (
    AdditiveScore,
    ClassScore,
    DotScore,
    HeadShape,
    OracleScore,
    OthersScore,
    Score,
    ScoreInputs,
    UniformScore,
)
from deepgat.nn.settings import ModelSettings
from deepgat.nn.stack import AttentionStack
from deepgat.nn.systems import SYSTEMS, System
from deepgat.nn.updates import IdentityMap, InitialResidual, LinearSkip, Plain, Residual, Update

__all__ = [
    "G2",
    "GAT",
    "GCN",
    "GCNII",
    "PRESETS",
    "SYSTEMS",
    "AdditiveScore",
    "Attention",
    "AttentionStack",
    "ClassScore",
    "ConvOutput",
    "DeepGAT",
    "DotScore",
    "DropEdge",
    "HeadShape",
    "IdentityMap",
    "InitialResidual",
    "LayerOutputs",
    "LayerwiseLoss",
    "LinearSkip",
    "Loss",
    "ModelSettings",
    "NeighborAttention",
    "OracleGAT",
    "OracleScore",
    "OthersScore",
    "OutputAndLayersLoss",
    "OutputLoss",
    "Plain",
    "Residual",
    "Score",
    "ScoreInputs",
    "System",
    "UniformScore",
    "Update",
    "build_model",
    "classification_loss",
    "layer_weight",
    "model_settings",
]
