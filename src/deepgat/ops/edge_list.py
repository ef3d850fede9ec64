"""Neighbour lists for exported programs: their sizes follow from those of ``edge_index``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.ops.neighbors import LISTS, Neighbors


@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeList(Neighbors):
    """The lists N_v with a place for every edge of the input and every self-loop.

    :meth:`Neighbors.from_edge_index` merges repeated edges, so its sizes depend on the values of
    ``edge_index``, which no exported program allows. Here E is the number of edges of the input
    plus n. Of equal pairs (v, u) the first stays and the others get weight 0 (``log_weight`` −inf),
    as dropped edges do in :meth:`Neighbors.masked`. Networks compute the same on both.

    Edges are sorted by target, then by source. The lists by source and the pieces, which only
    kernels and backward passes read, are empty. Sums over neighbours are scatters, which every
    runtime has.

    Attributes:
        first: [E] bool, whether the edge is the first of its pair (v, u).
    """

    first: Tensor

    @staticmethod
    def of(
        edge_index: Tensor,
        num_nodes: int,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> EdgeList:
        """From PyG's ``edge_index`` [2, m], with weights [m] and features [m, k] of its edges."""
        loops = torch.arange(num_nodes, device=edge_index.device)
        source = torch.cat([loops, edge_index[0]])
        target = torch.cat([loops, edge_index[1]])
        key, order = torch.sort(target * num_nodes + source)
        source, target = source.index_select(0, order), target.index_select(0, order)
        first = key != torch.cat([key.new_full((1,), -1), key])[:-1]
        degree = torch.zeros_like(loops).index_add(0, target, torch.ones_like(target))
        ptr = torch.cat([loops.new_zeros(1), degree.cumsum(0)])
        none = source[:0]
        lists = dict.fromkeys(LISTS, none) | {"ptr": ptr, "source": source, "target": target}
        log_weight = torch.zeros(source.size(0), 1, device=edge_index.device)
        pair = first.long().cumsum(0) - 1
        if edge_weight is not None:
            given = _per_pair(edge_weight.unsqueeze(1), num_nodes, order, pair, mean=False, loops=1)
            log_weight = given.log()
        if edge_attr is not None:
            edge_attr = _per_pair(edge_attr, num_nodes, order, pair, mean=True, loops=0)
        found = EdgeList(
            **lists,
            symmetric=False,
            log_weight=log_weight.masked_fill(~first.unsqueeze(1), -math.inf),
            features=edge_attr,
            first=first,
            checked=tuple(lists[name] for name in LISTS),
        )
        return found if edge_weight is None else found.with_fallback_loops()

    @property
    def others(self) -> Tensor:
        """[n] int64: the number of neighbours u ≠ v, without edges of weight 0."""
        assert self.log_weight is not None
        counted = (self.log_weight.squeeze(1) > -math.inf) & (self.source != self.target)
        return self.sums(counted.long())

    def sums(self, x: Tensor) -> Tensor:
        """Σ over the edges into v: [E, …] → [n, …]."""
        return x.new_zeros(self.num_nodes, *x.shape[1:]).index_add(0, self.target, x)

    def maxima(self, x: Tensor) -> Tensor:
        """The maximum over the edges into v: [E, H] → [n, H]."""
        lowest = x.new_full((self.num_nodes, x.size(1)), -math.inf)
        return lowest.scatter_reduce(0, self.target.unsqueeze(1).expand_as(x), x, "amax")


def _per_pair(
    values: Tensor, num_nodes: int, order: Tensor, pair: Tensor, *, mean: bool, loops: float
) -> Tensor:
    """Values [m, k] of the input's edges for every place of the list: [E, k].

    Values of a repeated pair are added, or averaged with ``mean``. A self-loop that the input lacks
    gets the value ``loops``.
    """
    padded = torch.cat([values.new_zeros(num_nodes, values.size(1)), values])
    given = torch.cat([values.new_zeros(num_nodes, 1), torch.ones_like(values[:, :1])])
    both = torch.cat([padded, given], 1).index_select(0, order)
    sums = torch.zeros_like(both).index_add(0, pair, both).index_select(0, pair)
    total, count = sums[:, :-1], sums[:, -1:]
    if mean:
        total = total / count.clamp(min=1)
    return torch.where(count == 0, torch.full_like(total, loops), total)
