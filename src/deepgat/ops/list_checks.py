"""Checks of edges, whose numbers kernels use as addresses."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops.unchanged import CheckedTensors

_IN_RANGE = {"edge_weight": CheckedTensors(), "edge_attr": CheckedTensors()}


def check_edge_values(weight: Any, features: Any, edges: int, order: str) -> None:
    """Weights [edges] ≥ 0 and features [edges, k] of edges, finite; each may be None."""
    for name, values, dimensions in (("edge_weight", weight, 1), ("edge_attr", features, 2)):
        if values is None:
            continue
        if not isinstance(values, Tensor) or values.is_complex():
            shape = _shape(edges, dimensions)
            raise UserError(f"{name} is {type(values).__name__}: expected real numbers {shape}")
        if values.dim() != dimensions or values.size(0) != edges:
            raise UserError(
                f"{name} has shape {list(values.shape)}: expected {_shape(edges, dimensions)}, one "
                f"row per edge, {order}"
            )
        if torch.compiler.is_compiling() or not values.numel():  # a graph cannot branch on values
            continue
        if values in (checked := _IN_RANGE[name]):  # reading them would stop a GPU at every call
            continue
        low, high = values.detach().aminmax()  # NaN if any value is
        least = 0 if name == "edge_weight" else -math.inf
        if not (low >= least and low.isfinite() and high.isfinite()):
            wanted = "finite numbers of at least 0" if name == "edge_weight" else "finite numbers"
            raise UserError(f"{name} runs from {low:g} to {high:g}: expected {wanted}")
        checked.add(values)


def _shape(edges: int, dimensions: int) -> str:
    """Only for an error: formatting a size binds a compiled graph to this size."""
    return f"[{edges}]" if dimensions == 1 else f"[{edges}, features]"


def check_edges(edge_index: Any) -> None:
    """Refuse anything but integers [2, m]."""
    if not isinstance(edge_index, Tensor):
        raise UserError(
            f"edge_index is a {type(edge_index).__name__}: expected a tensor [2, number of edges] "
            "or Neighbors"
        )
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise UserError(
            f"edge_index has shape {list(edge_index.shape)}: expected [2, number of edges], "
            "sources in row 0 and targets in row 1"
        )
    if edge_index.is_floating_point() or edge_index.dtype == torch.bool:
        raise UserError(f"edge_index holds {edge_index.dtype} values: expected integers")


def check_edge_index(edge_index: Any, num_nodes: int) -> None:
    """Refuse anything but integers [2, m] from 0 to ``num_nodes`` − 1."""
    check_edges(edge_index)
    if torch.compiler.is_compiling():  # the operator that builds the lists checks the numbers
        return
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise UserError(
            f"edge_index names node {int(edge_index.min())} to {int(edge_index.max())} but there "
            f"are {num_nodes} nodes: node numbers run from 0 to {num_nodes - 1}"
        )
