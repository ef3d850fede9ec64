"""Sparse operators on neighbour lists. Imports torch only."""

from deepgat.ops.features import Columns, Features, SparseMatrix, as_features, dropout, linear
from deepgat.ops.neighbors import Neighbors, as_neighbors
from deepgat.ops.reference import attention_weights, neighbor_attention
from deepgat.ops.scores import (
    Additive,
    DotProduct,
    EdgeScore,
    Normalization,
    ScoreForm,
    Uniform,
)

__all__ = [
    "Additive",
    "Columns",
    "DotProduct",
    "EdgeScore",
    "Features",
    "Neighbors",
    "Normalization",
    "ScoreForm",
    "SparseMatrix",
    "Uniform",
    "as_features",
    "as_neighbors",
    "attention_weights",
    "dropout",
    "linear",
    "neighbor_attention",
]
