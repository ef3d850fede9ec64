"""Sparse operators on neighbour lists. Imports torch only."""

import torch

from deepgat.ops import backends, checks, cpu, gpu
from deepgat.ops.additive_score import head_products
from deepgat.ops.attention import attention_weights, neighbor_attention
from deepgat.ops.backends import BACKENDS, use_backend
from deepgat.ops.bipartite import joined_edges
from deepgat.ops.deterministic import identity_map, layer_norm, linear_by_head, residual_map
from deepgat.ops.differences import neighbor_differences
from deepgat.ops.edges import as_neighbors, neighbors_without_loops, weighted_neighbors
from deepgat.ops.features import (
    Columns,
    Features,
    SparseMatrix,
    as_features,
    dropout,
    linear,
    take_rows,
    unit_rows,
)
from deepgat.ops.forward_lists import ForwardLists
from deepgat.ops.joint_product import joint_linear
from deepgat.ops.neighbor_cache import use_neighbor_cache
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.norm import layer_norm_elu
from deepgat.ops.part import (
    Part,
    PartNeighbors,
    current_part,
    node_mean,
    node_mean_share,
    use_part,
)
from deepgat.ops.score_forms import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Normalization,
    ScoreForm,
    Uniform,
)

cpu.register()
if torch.cuda.is_available() and backends.BUILT["cuda"]:
    gpu.register()

__all__ = [
    "BACKENDS",
    "Additive",
    "ClassAgreement",
    "Columns",
    "DotProduct",
    "EdgeScore",
    "Features",
    "ForwardLists",
    "Neighbors",
    "Normalization",
    "Part",
    "PartNeighbors",
    "ScoreForm",
    "SparseMatrix",
    "Uniform",
    "as_features",
    "as_neighbors",
    "attention_weights",
    "checks",
    "current_part",
    "dropout",
    "head_products",
    "identity_map",
    "joined_edges",
    "joint_linear",
    "layer_norm",
    "layer_norm_elu",
    "linear",
    "linear_by_head",
    "neighbor_attention",
    "neighbor_differences",
    "neighbors_without_loops",
    "node_mean",
    "node_mean_share",
    "residual_map",
    "take_rows",
    "unit_rows",
    "use_backend",
    "use_neighbor_cache",
    "use_part",
    "weighted_neighbors",
]
