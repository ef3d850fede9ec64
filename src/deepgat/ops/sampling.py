"""Neighbour sampling and induced subgraphs for mini-batches, on the CPU.

A hash of (seed, v, u) makes every random choice, so samples are the same on every machine and for
any number of threads. The ``define_…`` functions are the reference implementation in plain torch.
The C++ kernels (``cpu/sampling.cpp``), where they are built, return exactly the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops import backends, checks, dropout_masks
from deepgat.ops.cpu import kernels
from deepgat.ops.cpu import sampling as cpu_sampling
from deepgat.ops.neighbors import Neighbors


def no_places(num_nodes: int) -> Tensor:
    """A buffer [n] int32 for the place of every node in a subgraph; −1 outside it.

    It is allocated once per graph, because it has n entries. The functions below leave it as it is.
    """
    return torch.full((num_nodes,), -1, dtype=torch.int32)


def reach(
    neighbors: Neighbors,
    seeds: Tensor,
    fan_outs: Sequence[int],
    most_nodes: int,
    seed: int,
    places: Tensor,
) -> Tensor:
    """The nodes sampled around the seeds, one hop per fan-out: [m] int64.

    In hop l, every node found in hop l − 1 adds at most ``fan_outs[l]`` of its in-neighbours,
    drawn without replacement. The hop that would exceed ``most_nodes`` is filled at random, and
    the search ends there. The result always contains the seeds.

    Args:
        neighbors: lists of a whole graph, on the CPU.
        seeds: [k] int64.
        fan_outs: one per hop, each 1 or more.
        most_nodes: limit on the number of nodes returned; more seeds than this exceed it.
        seed: random seed, below 2³².
        places: the buffer of that graph (:func:`no_places`).

    Returns:
        The nodes in ascending order, each once.
    """
    _check(neighbors, seeds, places)
    found = frontier = torch.unique(seeds)
    try:
        for fan_out in fan_outs:
            places[frontier] = 0
            near = torch.unique(sample_neighbors(neighbors, frontier, fan_out, seed)).long()
            frontier = near[places[near] < 0]
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
        places[found] = -1
    return found.sort().values


def sample_neighbors(neighbors: Neighbors, nodes: Tensor, most: int, seed: int) -> Tensor:
    """At most ``most`` neighbours u ≠ v of every node v in ``nodes`` [k] int64: [·] int32.

    Neighbours of one node are contiguous and in the order of its list. They are the u with the
    smallest hash of (seed, v, u), which is a draw without replacement.
    """
    _check(neighbors, nodes)
    if most < 1:
        raise UserError(f"at most {most} neighbours are wanted: expected 1 or more")
    run = cpu_sampling.sample_neighbors if _fast() else define_sample_neighbors
    return run(neighbors, nodes, most, seed)


def sublists(neighbors: Neighbors, nodes: Tensor, places: Tensor) -> Neighbors:
    """The subgraph induced by S: lists N_v ∩ S for v ∈ S, nodes renumbered in the order of S.

    Args:
        neighbors: lists of a whole graph, on the CPU.
        nodes: S, [m] int64, ascending.
        places: the buffer of that graph (:func:`no_places`).
    """
    _check(neighbors, nodes, places)
    if not bool((nodes.diff() > 0).all()):
        raise UserError("nodes are not ascending: sort them, each once")
    run = cpu_sampling.sublists if _fast() else define_sublists
    places[nodes] = torch.arange(nodes.numel(), dtype=torch.int32)
    try:
        lists, edge = run(neighbors, nodes, places)
    finally:
        places[nodes] = -1
    return replace(
        lists,
        log_weight=None if neighbors.log_weight is None else neighbors.log_weight[edge],
        features=None if neighbors.features is None else neighbors.features[edge],
    ).with_fallback_loops()


def consecutive_nodes(neighbors: Neighbors, begin: int, end: int) -> tuple[Neighbors, Tensor]:
    """The complete lists of the nodes ``begin`` … ``end`` − 1, with a halo.

    Returns:
        The ``square`` and the ``ids`` of a part. The lists of the range come first, then one list
        per in-neighbour outside it, which holds that node alone. ``ids`` [·] int64 are the nodes'
        numbers in ``neighbors``.
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

    def listed(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        values = values[edges][order]  # values in lists of one entry have no effect: zeros
        return torch.cat([values, values.new_zeros(loops.numel(), values.size(1))])

    lists = Neighbors.from_sorted(
        torch.cat([source[order], loops]),
        torch.cat([target[order], loops]),
        size,
        symmetric=False,
        derived=True,
        log_weight=listed(neighbors.log_weight),
        features=listed(neighbors.features),
    )
    return lists, torch.cat([torch.arange(begin, end), halo])


def define_sample_neighbors(neighbors: Neighbors, nodes: Tensor, most: int, seed: int) -> Tensor:
    """Reference implementation of :func:`sample_neighbors`."""
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
    neighbors: Neighbors, nodes: Tensor, places: Tensor
) -> tuple[Neighbors, Tensor]:
    """(the lists without values, [E'] int64 the number of each edge in ``neighbors``)."""
    target, edge = _listed(neighbors.ptr, nodes)
    source = places[neighbors.source[edge].long()]
    inside = source >= 0
    edges = source[inside], target[inside]
    lists = Neighbors.from_sorted(*edges, nodes.numel(), neighbors.symmetric, derived=True)
    return lists, edge[inside]


def _check(neighbors: Neighbors, nodes: Tensor, places: Tensor | None = None) -> None:
    """Refuse what the kernels would read beyond its end."""
    checks.raw("nodes", nodes, torch.int64, "nodes")
    if nodes.numel():
        low, high = (int(end) for end in nodes.aminmax())
        if low < 0 or high >= neighbors.num_nodes:
            raise UserError(
                f"nodes run from {low} to {high}: expected 0 to {neighbors.num_nodes - 1}"
            )
    if places is not None:
        checks.raw("places", places, torch.int32, neighbors.num_nodes)


def _fast() -> bool:
    return kernels.available() and backends.current() != "reference"


def _listed(ptr: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """The edges of some nodes' lists: (index into ``nodes``, index into all edges)."""
    degree = ptr[nodes + 1] - ptr[nodes]
    row = torch.repeat_interleave(torch.arange(nodes.numel()), degree)
    inner = torch.arange(row.numel()) - (degree.cumsum(0) - degree)[row]
    return row, ptr[nodes][row] + inner
