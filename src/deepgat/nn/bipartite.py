"""A layer between two sets of nodes: (sources, targets) in the place of x."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepgat import ops
from deepgat.errors import UserError
from deepgat.nn.conv_output import Attention
from deepgat.ops import Neighbors

if TYPE_CHECKING:
    from deepgat.nn.attention import NeighborAttention


def between_sets(
    conv: NeighborAttention,
    pair: tuple[Tensor, ...],
    edge_index: Tensor | Neighbors,
    edge_attr: Tensor | None,
    edge_weight: Tensor | None,
    with_attention: bool,
) -> Tensor | tuple[Tensor, Attention]:
    """The output of every target [n, ·]: the layer on both sets as one, the targets first."""
    if conv.add_self_loops:
        raise UserError(
            "x is a pair, and a target is no source of its own: make the layer with "
            "add_self_loops=False"
        )
    if len(pair) != 2:
        raise UserError(f"x is a tuple of {len(pair)}: expected sources and targets")
    for name, x in zip(("x[0]", "x[1]"), pair, strict=True):
        if not isinstance(x, Tensor) or x.layout != torch.strided or x.dim() != 2:
            raise UserError(f"{name} is of the pair x: expected a dense tensor [nodes, features]")
        conv.check_width(x)
    source, target = pair
    n = target.size(0)
    x = torch.cat((target, source))
    edges = ops.joined_edges(edge_index, source.size(0), n)
    neighbors, isolated = ops.neighbors_without_loops(edges, len(x), edge_weight, edge_attr)
    result = conv.run(x, neighbors, with_attention=with_attention, isolated=isolated)
    if result.attention is None:
        return result.out[:n]
    pairs, weight = result.attention
    between = (pairs[0] >= n) & (pairs[1] < n)
    first = torch.tensor([[n], [0]], device=pairs.device)
    return result.out[:n], Attention(pairs[:, between] - first, weight[between])
