"""Propagated labels z_l = rm_diag(Â^(l−1)) Y as tensor operations that can be exported.

:mod:`deepgat.data.label_features` computes the same with scipy, and tests compare the two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepgat.ops.edge_list import EdgeList

SPARSE_HOPS = 3
"""Layers whose labels need memory in proportion to the edges; a further one takes n² numbers."""


def propagated_labels(
    edges: EdgeList, known: Tensor, num_classes: int, hops: int, first: str
) -> Tensor:
    """z_1 … z_hops: [n, hops, C] float64.

    Weights of edges do not matter here. As in training, the row of a node does not depend on its
    own label, to the last bit.

    Args:
        edges: the graph.
        known: [n] int64, the class of every node whose label is known, −1 elsewhere.
        num_classes: C.
        hops: number of layers.
        first: z_1, as in :func:`deepgat.data.label_features.propagate_labels`.
    """
    classes = torch.arange(num_classes, device=known.device)
    Y = (known.unsqueeze(1) == classes).double()
    there = edges.first.double().unsqueeze(1)
    other = there * (edges.source != edges.target).unsqueeze(1)
    size = edges.sums(there)
    counts = edges.sums(other * Y.index_select(0, edges.source))
    z = [counts if first == "neighbor-counts" else torch.zeros_like(Y), counts / size]
    if hops > 2:
        z.append(_two_hops(edges, Y, there, counts + Y, size))
    if hops > SPARSE_HOPS:
        z += _many_hops(edges, Y, there / size.index_select(0, edges.target), hops)
    return torch.stack(z[:hops], 1)


def _two_hops(edges: EdgeList, Y: Tensor, there: Tensor, counts: Tensor, size: Tensor) -> Tensor:
    """(1/|N_v|) Σ_{u ∈ N_v} (counts_u − [v ∈ N_u] Y_v) / |N_u|, [n, C].

    ``counts`` [n, C] are the labels in N_u. They are integers, so subtracting v's own is exact.
    """
    own = Y.index_select(0, edges.target) * _mutual(edges).unsqueeze(1)
    terms = (counts.index_select(0, edges.source) - own) / size.index_select(0, edges.source)
    return edges.sums(there * terms) / size


def _mutual(edges: EdgeList) -> Tensor:
    """[E] float64: 1 where v ∈ N_u too, else 0.

    Both directions of an edge have the same key; an edge is mutual if its key has both.
    """
    low = torch.minimum(edges.source, edges.target)
    high = torch.maximum(edges.source, edges.target)
    key, order = torch.sort(low * edges.num_nodes + high)
    new = key != torch.cat([key.new_full((1,), -1), key])[:-1]
    pair = torch.empty_like(order).index_copy(0, order, new.long().cumsum(0) - 1)
    ways = torch.stack([edges.source <= edges.target, edges.source >= edges.target], 1).double()
    found = torch.zeros_like(ways).index_add(0, pair, ways).index_select(0, pair)
    return (found > 0).all(1).double()


def _many_hops(edges: EdgeList, Y: Tensor, weight: Tensor, hops: int) -> list[Tensor]:
    """rm_diag(Â^k) Y for k = 3 … hops − 1, by the powers of Â [n, n]."""
    n = edges.num_nodes
    place = edges.target * n + edges.source
    step = weight.new_zeros(n * n).index_add(0, place, weight.squeeze(1)).view(n, n)
    nodes = torch.arange(n, device=Y.device)
    apart = (nodes.unsqueeze(0) != nodes.unsqueeze(1)).double()
    power, z = step @ step, []
    for _ in range(SPARSE_HOPS, hops):
        power = power @ step
        z.append((power * apart) @ Y)
    return z
