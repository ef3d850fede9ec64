"""From the ``edge_index`` that a user passes to neighbour lists.

In eager mode the lists of an ``edge_index`` are kept for the next call (``neighbor_cache.py``).
Inside ``torch.compile`` and ``torch.export`` one operator makes them (``list_operator.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops.list_checks import check_edge_values
from deepgat.ops.list_operator import traced_lists
from deepgat.ops.neighbor_cache import EdgeLists, edge_lists
from deepgat.ops.neighbors import Neighbors


def as_neighbors(edge_index: Tensor | Neighbors, num_nodes: int) -> Neighbors:
    """The lists of ``edge_index``; existing lists unchanged.

    Building sorts the edges. The lists of a tensor are kept for the next call with it; see
    :mod:`deepgat.ops.neighbor_cache`.
    """
    if not isinstance(edge_index, Neighbors):
        return _lists(edge_index, num_nodes).neighbors
    if edge_index.num_nodes != num_nodes:
        raise UserError(
            f"the neighbour lists are for {edge_index.num_nodes} nodes but x has {num_nodes} rows: "
            "build them from the same graph"
        )
    return edge_index


def weighted_neighbors(
    edge_index: Tensor | Neighbors,
    num_nodes: int,
    edge_weight: Tensor | None = None,
    edge_attr: Tensor | None = None,
) -> Neighbors:
    """The lists with the weights and features of their edges.

    ``edge_weight`` [number of edges] and ``edge_attr`` [number of edges, k] are in the order of
    ``edge_index``. If that is a :class:`Neighbors`, they replace the values it holds. A self-loop
    gets weight 1 if all edges into its node have weight 0.
    """
    if not isinstance(edge_index, Neighbors):
        return _with_values(_lists(edge_index, num_nodes), edge_weight, edge_attr)
    neighbors = as_neighbors(edge_index, num_nodes)
    if edge_weight is None and edge_attr is None:
        return neighbors
    check_edge_values(edge_weight, edge_attr, neighbors.num_edges, "in the order of the lists")
    features = neighbors.features if edge_attr is None else edge_attr
    if edge_weight is None:
        return replace(neighbors, features=features)
    log_weight = edge_weight.unsqueeze(-1).log()
    return replace(neighbors, log_weight=log_weight, features=features).with_fallback_loops()


def neighbors_without_loops(
    edge_index: Tensor | Neighbors,
    num_nodes: int,
    edge_weight: Tensor | None = None,
    edge_attr: Tensor | None = None,
) -> tuple[Neighbors, Tensor]:
    """(the lists with weight 0 for added self-loops, [n] bool nodes without incoming edges)."""
    if isinstance(edge_index, Neighbors):
        raise UserError(
            "prepared Neighbors always contain self-loops: pass edge_index to a layer with "
            "add_self_loops=False"
        )
    lists = _lists(edge_index, num_nodes)
    if edge_weight is None and edge_attr is None:
        return lists.without_loops()
    return lists.mask_loops(_with_values(lists, edge_weight, edge_attr))


def _with_values(lists: EdgeLists, weight: Tensor | None, features: Tensor | None) -> Neighbors:
    if weight is None and features is None:
        return lists.neighbors
    check_edge_values(weight, features, lists.pairs.size(1), "in the order of edge_index")
    placed = lists.neighbors.with_placed_values(lists.places(), weight, features)
    return placed.with_fallback_loops()


def _lists(edge_index: Any, num_nodes: int) -> EdgeLists:
    if hasattr(edge_index, "as_tensor"):  # PyG's EdgeIndex, without importing PyG
        edge_index = edge_index.as_tensor()
    if torch.compiler.is_compiling():
        return EdgeLists(edge_index, traced_lists(edge_index, num_nodes))
    return edge_lists(edge_index, num_nodes)
