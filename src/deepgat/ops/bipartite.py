"""Sources and targets as one set of nodes: the targets 0 … n_t − 1, then the sources."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops import neighbor_cache
from deepgat.ops.list_checks import check_edges
from deepgat.ops.neighbors import Neighbors


def joined_edges(edge_index: Any, num_sources: int, num_targets: int) -> Tensor:
    """Edges from sources (row 0) to targets (row 1) as edges of the joint set."""
    if hasattr(edge_index, "as_tensor"):  # PyG's EdgeIndex
        edge_index = edge_index.as_tensor()
    if isinstance(edge_index, Neighbors):
        raise UserError(
            "x is a pair: pass edge_index, since prepared Neighbors have one set of nodes"
        )
    check_edges(edge_index)
    sizes = num_sources, num_targets
    return neighbor_cache.joined_edges(edge_index, *sizes, lambda: _join(edge_index, *sizes))


def _join(edge_index: Tensor, num_sources: int, num_targets: int) -> Tensor:
    source, target = edge_index
    if not torch.compiler.is_compiling():
        _check("source", source, num_sources)
        _check("target", target, num_targets)
    # A traced graph cannot branch on numbers: one out of range becomes one that no node has.
    nobody = num_sources + num_targets
    source = torch.where((source >= 0) & (source < num_sources), source + num_targets, nobody)
    target = torch.where((target >= 0) & (target < num_targets), target, nobody)
    return torch.stack([source, target])


def _check(side: str, nodes: Tensor, count: int) -> None:
    if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < count:
        raise UserError(
            f"edge_index names {side} {int(nodes.min())} to {int(nodes.max())} but there are "
            f"{count} {side}s: {side} numbers run from 0 to {count - 1}"
        )
