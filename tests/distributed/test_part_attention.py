"""Attention on parts of a graph: the numbers and gradients of the whole."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.distributed import HaloPart, Team, cut
from deepgat.ops import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Neighbors,
    Normalization,
    PartNeighbors,
    ScoreForm,
    Uniform,
    neighbor_attention,
    use_backend,
)

from together import together

FORMS = ("dot", "shared", "classes", "labels", "additive", "edge", "skipped", "uniform")
HEADS, CHANNELS, CLASSES = 3, 5, 4


def both_ways(*pairs: tuple[int, int]) -> Tensor:
    edges = torch.tensor(pairs).t()
    return torch.cat([edges, edges.flip(0)], 1)


def graph_and_owner(kind: str, parts: int) -> tuple[Tensor, int, Tensor]:
    """Edges, number of nodes, and who owns which."""
    generator = torch.Generator().manual_seed(7)
    n = 40
    edges = torch.randint(n - 4, (2, 130), generator=generator)  # the last four are isolated
    owner = torch.randint(parts, (n,), generator=generator)
    match kind:
        case "one-way":
            pass
        case "undirected":
            edges = torch.cat([edges, edges.flip(0)], 1)
        case "hub":  # longer than a piece, both as a target and as a source
            n = 700
            edges = both_ways(*((0, v) for v in range(1, n)))
            owner = torch.arange(n) % parts
        case "no inner node":  # a ring dealt in turn; alone, every node has itself
            edges = both_ways(*((v, (v + 1) % n) for v in range(n)))
            owner = torch.arange(n) % parts
        case "no border":
            edges = both_ways(*((v, v + parts) for v in range(n - parts)))
            owner = torch.arange(n) % parts
        case "empty part":
            owner = owner.clamp(max=max(parts - 2, 0))
        case "one sends, none comes":  # edges out of the first part alone
            owner = torch.arange(n) * parts // n
            edges = edges[:, owner[edges[0]] <= owner[edges[1]]]
    return edges, n, owner


KINDS = ("one-way", "undirected", "hub", "no inner node", "no border", "empty part",
         "one sends, none comes")  # fmt: skip


def inputs(n: int, edges: int) -> dict[str, Tensor]:
    """Leaves with numbers for every node and every edge of the whole graph."""
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    return {
        "value": drawn(n, HEADS, CHANNELS),
        "query": drawn(n, HEADS, CLASSES),
        "key": drawn(n, HEADS, CLASSES),
        "target": drawn(n, HEADS),
        "source": drawn(n, HEADS),
        "edge": drawn(edges, HEADS),
    }


def form_of(
    name: str, given: dict[str, Tensor], rows: Tensor, edges: Tensor, edge_index: Tensor
) -> ScoreForm:
    query, key, score = given["query"][rows], given["key"][rows], given["edge"][edges]
    match name:
        case "dot":
            return DotProduct(query, key, 0.7)
        case "shared":
            return DotProduct(query, query, 0.7)
        case "classes":
            return ClassAgreement(query, 3.0)
        case "labels":
            return ClassAgreement(query, 3.0, independent_labels=True)
        case "additive":
            return Additive(given["target"][rows], given["source"][rows])
        case "skipped":  # a node that has others does not count itself, as GraphSAGE has it
            source, target = edge_index
            lonely = torch.bincount(target, minlength=len(given["value"]))[target] == 1
            skipped = (source == target) & ~lonely
            return EdgeScore(score.masked_fill(skipped.unsqueeze(1), -torch.inf))
        case "edge":
            return EdgeScore(score)
    return Uniform()


def attended(lists: Neighbors, whole: Neighbors, rows: Tensor, backend: str) -> dict[str, Tensor]:
    """{case: out by the nodes' numbers, and all gradients}: sums over the parts are the whole's."""
    found: dict[str, Tensor] = {}
    n, factors = whole.num_nodes, torch.tensor([1, whole.num_nodes])
    names = factors @ whole.edge_index
    edges = torch.searchsorted(names, factors @ lists.edge_index)
    weigh = torch.randn(n, HEADS, CHANNELS, generator=torch.Generator().manual_seed(9)).double()
    cases = product(FORMS, Normalization, ((0.0, False), (0.4, False), (0.4, True)))
    for form, normalization, (dropout, biased) in cases:
        if form == "skipped" and normalization is Normalization.SYMMETRIC:
            continue
        given = inputs(n, whole.num_edges)
        bias = (2 * given["edge"][edges]).cos() if biased else None
        torch.manual_seed(1)
        with use_backend(backend):
            out = neighbor_attention(
                lists,
                given["value"][rows],
                form_of(form, given, rows, edges, lists.edge_index),
                normalization,
                dropout,
                bias,
            )
        (out * weigh[rows]).sum().backward()
        name = f"{form}, {normalization.value}, dropout {dropout}, bias {biased}"
        found[name] = torch.zeros(n, HEADS, CHANNELS).double().index_copy(0, rows, out.detach())
        for leaf, x in given.items():
            if x.grad is not None:
                found[f"{name}: {leaf}"] = x.grad
    return found


def whole_lists(kind: str, parts: int) -> Neighbors:
    edges, n, _ = graph_and_owner(kind, parts)
    return Neighbors.from_edge_index(edges, n)


def part_lists(team: Team, kind: str) -> tuple[PartNeighbors, Tensor]:
    edges, n, owner = graph_and_owner(kind, team.size)
    nothing = torch.zeros(n, dtype=torch.bool)
    graph = Data(x=torch.zeros(n, 1), edge_index=edges, y=torch.zeros(n),
                 train_mask=nothing, val_mask=nothing, test_mask=nothing)  # fmt: skip
    part = cut(graph, owner, team.rank, team.size)
    live = HaloPart.meet(team, part.own, part.ids, part.halo_counts.tolist(), n)
    square = Neighbors.from_edge_index(part.edge_index, len(part.ids))
    return PartNeighbors.of(square, live), part.ids[: part.own]


def in_parts(team: Team, kinds: tuple[str, ...], backend: str, threads: int = 1) -> dict[str, Any]:
    torch.set_num_threads(threads)
    found = {}
    for kind in kinds:
        lists, rows = part_lists(team, kind)
        found[kind] = attended(lists, whole_lists(kind, team.size), rows, backend)
    return found


def check(size: int, kinds: tuple[str, ...], backend: str) -> None:
    parts = together(size, in_parts, kinds, backend)
    for kind in kinds:
        lists = whole_lists(kind, size)
        alone = attended(lists, lists, torch.arange(lists.num_nodes), "reference")
        for name, expected in alone.items():
            total = sum(part[kind][name] for part in parts if name in part[kind])
            assert isinstance(total, Tensor), (kind, name)
            apart = (total - expected).abs().max()
            assert apart <= 1e-10 * max(1.0, float(expected.abs().max())), (kind, name, apart)


def test_outputs_and_gradients_are_those_of_the_whole():
    check(2, ("one-way",), "auto")


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("size", "kinds", "backend"),
    [
        (1, KINDS[:1], "auto"),
        (2, KINDS, "auto"),
        (3, KINDS[:2], "reference"),
        (3, KINDS[1:], "auto"),
        (4, ("no inner node", "empty part"), "auto"),
    ],
)
def test_outputs_and_gradients_on_any_graph(size, kinds, backend):
    check(size, kinds, backend)


def twice(team: Team) -> bool:
    """Whether another number of threads, and another try, give the same bits."""
    kinds = ("undirected", "hub")
    first, second, third = (in_parts(team, kinds, "auto", threads) for threads in (1, 2, 1))
    return all(
        torch.equal(x, second[kind][name]) and torch.equal(x, third[kind][name])
        for kind in kinds
        for name, x in first[kind].items()
    )


@pytest.mark.distributed
def test_no_bit_depends_on_the_threads():
    assert all(together(2, twice))
