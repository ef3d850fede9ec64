"""Attention while rows travel: the same numbers and gradients, and really meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.distributed import HaloPart, Team, cut
from deepgat.distributed.team import Swap
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
    attention,
    neighbor_attention,
    use_backend,
)
from deepgat.ops.cpu import kernels
from deepgat.ops.partitioned.lists import Side

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


@dataclass(frozen=True, eq=False)
class NotedSwap(Swap):
    events: list[str]

    def wait(self) -> Tensor:
        self.events.append("wait")
        return super().wait()


def noted(team: Team, normalization: Normalization, kinds: tuple[str, ...]) -> list[list[str]]:
    """What happens in a forward and a backward pass, one after the other."""
    events: list[str] = []
    start = team.start_all_to_all

    def start_swap(*arguments: Any) -> Swap:
        events.append("send")
        return NotedSwap(**vars(start(*arguments)), events=events)

    forward, backward = attention.KERNELS["cpu"]

    def note(lists: list[Tensor], own: int, what: str) -> None:
        events.append(f"{'own' if lists[0].numel() - 1 == own else 'halo'} {what}")

    found = []
    for kind in kinds:
        lists, rows = part_lists(team, kind)

        def run_forward(
            given: list[Tensor], *rest: Any, own: int = len(rows)
        ) -> tuple[Tensor, Tensor]:
            note(given, own, "there")
            return forward(given, *rest)

        def run_backward(*given: Any, own: int = len(rows)) -> tuple[Tensor, ...]:
            note(given[3], own, "back")
            return backward(*given)

        leaves = inputs(lists.part.num_nodes, 0)
        attention.KERNELS["cpu"] = run_forward, run_backward
        team.start_all_to_all = start_swap
        try:
            form = DotProduct(leaves["query"][rows], leaves["key"][rows])
            out = neighbor_attention(lists, leaves["value"][rows], form, normalization)
            events.append("turn")
            out.sum().backward()
        finally:
            attention.KERNELS["cpu"] = forward, backward
            del team.start_all_to_all
        found.append(events.copy())
        events.clear()
    return found


ROW = ["send", "own there", "wait", "halo there", "turn",
       "halo back", "send", "own back", "wait"]  # fmt: skip
SYMMETRIC = [
    "send", "own there", "own there", "wait", "halo there", "halo there",  # d_v and its gradient
    "send", "own there", "wait", "halo there", "turn",
    "halo back", "send", "own back", "wait",
    "halo back", "send", "own back", "wait",
]  # fmt: skip


@pytest.mark.skipif(not kernels.available(), reason="the kernels are not built")
@pytest.mark.parametrize(
    ("normalization", "expected"), [(Normalization.ROW, ROW), (Normalization.SYMMETRIC, SYMMETRIC)]
)
def test_rows_travel_while_own_nodes_are_attended_to(normalization, expected):
    """In every process in the same order, also in one that needs nothing or has nothing."""
    for events in together(3, noted, normalization, ("undirected", "no border", "empty part")):
        middle, border, empty = events
        assert middle == expected
        assert border == expected
        # without a node both halves look alike
        plain = [[e.removeprefix("own ").removeprefix("halo ") for e in x] for x in (empty, middle)]
        assert plain[0] == plain[1]


def held(side: Side) -> Tensor:
    """[e] the numbers of the part's edges that a side holds."""
    assert side.chosen is not None
    return side.chosen.nonzero().squeeze(1)


def test_halves_hold_every_edge_once():
    class Part:
        own, ids = 5, torch.arange(10, 18)

    edges = both_ways((0, 1), (1, 2), (3, 4))
    edges = torch.cat([edges, torch.tensor([[5, 6, 5, 7], [1, 1, 3, 3]])], 1)
    lists = PartNeighbors.of(Neighbors.from_edge_index(edges, 8), Part())  # type: ignore[arg-type]
    ours, theirs = lists.sides
    assert ours.lists.symmetric
    assert ours.lists.num_nodes == 5
    assert theirs.targets.tolist() == [1, 3]
    assert theirs.ids.tolist() == [11, 13, 15, 16, 17]
    edge = torch.arange(lists.num_edges)
    assert sorted(torch.cat([held(ours), held(theirs)]).tolist()) == edge.tolist()
    for side in (ours, theirs):
        count = held(side).numel()
        named = torch.stack(
            [side.ids[side.lists.source.long()], side.ids[side.lists.target.long()]]
        )
        assert torch.equal(named[:, :count], lists.edge_index[:, held(side)])
        assert (side.lists.source == side.lists.target)[count:].all()
        assert torch.equal(side.lists.source[side.lists.by_source].sort().values,
                           side.lists.source[side.lists.by_source])  # fmt: skip
        assert torch.equal(side.lists.target[side.lists.by_source], side.lists.target_by_source)
        assert torch.equal(side.of_edges(edge)[:count], held(side))
    assert replace(theirs).of_nodes(torch.arange(1, 6)).tolist() == [2, 4, 0, 0, 0]
