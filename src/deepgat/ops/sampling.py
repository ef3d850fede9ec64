"""Parts of neighbour lists for mini-batches: some neighbours of some nodes, and lists among nodes.

What is random is a hash of (seed, v, u): the same on every machine, whatever the number of threads.
The functions ``define_…`` are the definition, in plain torch; where the native kernels are built
(``kernels/sampling.cpp``) these run, with the very same result. All of it is on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.ops import backends, dropout_masks
from deepgat.ops.cpu import sampling as cpu_sampling
from deepgat.ops.neighbors import Neighbors, pointers


@dataclass(frozen=True, eq=False)
class Places:
    """Room to number some nodes of a graph anew; made once, since it is as long as the graph.

    ``of`` [n] int32: the new number of every node, −1 for those that have none.
    """

    of: Tensor

    @staticmethod
    def among(num_nodes: int) -> Places:
        return Places(torch.full((num_nodes,), -1, dtype=torch.int32))


def reach(
    neighbors: Neighbors,
    seeds: Tensor,
    fan_outs: Sequence[int],
    most_nodes: int,
    seed: int,
    places: Places,
) -> Tensor:
    """Nodes from which the seeds are reached in as many hops as there are fan-outs: [m] int64.

    In hop l every node that hop l − 1 found adds at most ``fan_outs[l]`` of its in-neighbours,
    drawn without replacement. Where they would become more than ``most_nodes``, those that the hash
    puts first are taken and the search ends; the seeds are always in.

    Args:
        neighbors: lists of a whole graph, on the CPU.
        seeds: [k] int64.
        fan_outs: one per hop, each 1 or more.
        most_nodes: the most that are returned, if there are not more seeds than that.
        seed: of the draws, below 2³².
        places: of that graph; left as it was.

    Returns:
        The nodes in ascending order, each once.
    """
    found = frontier = torch.unique(seeds)
    known = places.of
    try:
        for fan_out in fan_outs:
            known[frontier] = 0
            near = torch.unique(sample_neighbors(neighbors, frontier, fan_out, seed)).long()
            frontier = near[known[near] < 0]
            room = max(most_nodes - found.numel(), 0)
            if frontier.numel() > room:
                order = torch.argsort(
                    dropout_masks.mix(dropout_masks.mix(frontier) ^ seed), stable=True
                )
                frontier = frontier[order[:room]].sort().values
            if not frontier.numel():
                break
            found = torch.cat([found, frontier])
    finally:
        known[found] = -1
    return found.sort().values


def sample_neighbors(neighbors: Neighbors, nodes: Tensor, most: int, seed: int) -> Tensor:
    """At most ``most`` of N_v without v for every node of ``nodes`` [k] int64: [·] int32.

    One node's after the other's, each in the order of its list. They are drawn without
    replacement: those u whose hash of (seed, v, u) is smallest.
    """
    if cpu_sampling.available() and backends.chosen() != "reference":
        return cpu_sampling.sample_neighbors(neighbors, nodes, most, seed)
    return define_sample_neighbors(neighbors, nodes, most, seed)


def sublists(neighbors: Neighbors, nodes: Tensor, places: Places) -> Neighbors:
    """The lists among some nodes: N_v ∩ S for v ∈ S, numbered 0 … m − 1 in the order of S.

    Args:
        neighbors: lists of a whole graph, on the CPU.
        nodes: S, [m] int64, ascending.
        places: of that graph; left as it was.
    """
    fast = cpu_sampling.available() and backends.chosen() != "reference"
    run = cpu_sampling.sublists if fast else define_sublists
    places.of[nodes] = torch.arange(nodes.numel(), dtype=torch.int32)
    try:
        lists, edge = run(neighbors, nodes, places.of)
    finally:
        places.of[nodes] = -1
    return Neighbors.from_lists(
        **lists,
        symmetric=neighbors.symmetric,
        log_weight=None if neighbors.log_weight is None else neighbors.log_weight[edge],
        features=None if neighbors.features is None else neighbors.features[edge],
    )


def stretch(neighbors: Neighbors, begin: int, end: int) -> tuple[Neighbors, Tensor]:
    """The lists of the nodes from ``begin`` to ``end``, whole, with the nodes that they name.

    Returns:
        Square lists of these nodes, which come first, and of their in-neighbours elsewhere, whose
        lists hold themselves alone; and what all of them are called in ``neighbors``, [·] int64.
        They are the ``square`` and the ``ids`` of a part.
    """
    own = end - begin
    edges = slice(int(neighbors.ptr[begin]), int(neighbors.ptr[end]))
    source, target = neighbors.source[edges].long(), neighbors.target[edges].long() - begin
    outside = (source < begin) | (source >= end)
    halo = torch.unique(source[outside])
    source = torch.where(outside, own + torch.searchsorted(halo, source), source - begin)
    size = own + halo.numel()
    order = torch.argsort(target * size + source)
    loops = torch.arange(own, size)
    source, target = torch.cat([source[order], loops]), torch.cat([target[order], loops])

    def listed(values: Tensor | None) -> Tensor | None:
        if values is None:  # of a list with one entry, their values make no difference
            return None
        values = values[edges][order]
        return torch.cat([values, values.new_zeros(loops.numel(), values.size(1))])

    by_source = torch.argsort(source, stable=True)
    lists = Neighbors.from_lists(
        ptr=pointers(target, size),
        source=source.int(),
        target=target.int(),
        source_ptr=pointers(source, size),
        by_source=by_source,
        target_by_source=target[by_source].int(),
        symmetric=False,
        log_weight=listed(neighbors.log_weight),
        features=listed(neighbors.features),
    )
    return lists, torch.cat([torch.arange(begin, end), halo])


def define_sample_neighbors(neighbors: Neighbors, nodes: Tensor, most: int, seed: int) -> Tensor:
    """The definition of :func:`sample_neighbors`."""
    row, edge = _listed(neighbors.ptr, nodes)
    source = neighbors.source[edge].long()
    others = source != nodes[row]
    row, source = row[others], source[others]
    draw = dropout_masks.mix(dropout_masks.mix(seed ^ nodes[row]) + source)
    order = torch.argsort((row << 32) | draw, stable=True)  # equal draws: by u
    first = torch.searchsorted(row, torch.arange(nodes.numel() + 1))
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel()) - first[row[order]]
    return source[rank < most].int()


def define_sublists(
    neighbors: Neighbors, nodes: Tensor, place: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """(the lists in both orders, [E'] int64: each one's edge in ``neighbors``)."""
    size = nodes.numel()
    target, edge = _listed(neighbors.ptr, nodes)
    source = place[neighbors.source[edge].long()]
    inside = source >= 0
    source, target, edge = source[inside], target[inside], edge[inside]
    by_source = torch.argsort(source, stable=True)
    lists = {
        "ptr": pointers(target, size),
        "source": source,
        "target": target.int(),
        "source_ptr": pointers(source, size),
        "by_source": by_source,
        "target_by_source": target[by_source].int(),
    }
    return lists, edge


def _listed(ptr: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of the lists of some nodes: (which of the nodes, place in all lists)."""
    degree = ptr[nodes + 1] - ptr[nodes]
    row = torch.repeat_interleave(torch.arange(nodes.numel()), degree)
    inner = torch.arange(row.numel()) - (degree.cumsum(0) - degree)[row]
    return row, ptr[nodes][row] + inner
