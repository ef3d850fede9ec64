"""Torch modules on PyTorch Geometric's conventions."""

from deepgat.nn.conv import Attention, ConvOutput, NeighborAttention
from deepgat.nn.losses import LayerwiseLoss, Loss, OutputLoss, classification_loss, layer_weight
from deepgat.nn.models import GAT, GCN, DeepGAT, OracleGAT
from deepgat.nn.presets import PRESETS, model_settings
from deepgat.nn.scores import (
    AdditiveScore,
    ClassScore,
    DotScore,
    HeadShape,
    OracleScore,
    Score,
    ScoreInputs,
    UniformScore,
)
from deepgat.nn.settings import ModelSettings, build_model
from deepgat.nn.stack import AttentionStack, LayerOutputs
from deepgat.nn.updates import LinearSkip, Plain, Residual, Update

__all__ = [
    "GAT",
    "GCN",
    "PRESETS",
    "AdditiveScore",
    "Attention",
    "AttentionStack",
    "ClassScore",
    "ConvOutput",
    "DeepGAT",
    "DotScore",
    "HeadShape",
    "LayerOutputs",
    "LayerwiseLoss",
    "LinearSkip",
    "Loss",
    "ModelSettings",
    "NeighborAttention",
    "OracleGAT",
    "OracleScore",
    "OutputLoss",
    "Plain",
    "Residual",
    "Score",
    "ScoreInputs",
    "UniformScore",
    "Update",
    "build_model",
    "classification_loss",
    "layer_weight",
    "model_settings",
]
