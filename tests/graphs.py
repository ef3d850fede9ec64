"""Small graphs for tests: the awkward shapes by name, and random ones for hypothesis."""

import torch
from hypothesis import strategies as st
from torch import Tensor


def edges(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()


def undirected(edge_index: Tensor) -> Tensor:
    return torch.cat([edge_index, edge_index.flip(0)], 1)


AWKWARD: dict[str, tuple[int, Tensor]] = {
    "one node": (1, edges()),
    "no edges": (4, edges()),
    "isolated nodes": (5, undirected(edges((0, 1)))),
    "self-loops": (3, edges((0, 0), (1, 1), (0, 1), (1, 0))),
    "duplicates": (3, edges((0, 1), (0, 1), (1, 0), (1, 2), (2, 1), (2, 1))),
    "hub": (12, undirected(edges(*[(0, i) for i in range(1, 12)]))),
    "directed": (4, edges((0, 1), (1, 2), (2, 3), (3, 1))),
}


def random_edges(n: int, count: int, seed: int = 0, directed: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(n, (2, count), generator=generator)
    return edge_index if directed else undirected(edge_index)


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 9, max_edges: int = 30) -> tuple[int, Tensor]:
    """(n, edge_index): any graph, with loops, repeats, isolated nodes, directed or not."""
    n = draw(st.integers(1, max_nodes))
    node = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=max_edges))
    edge_index = edges(*pairs)
    return n, undirected(edge_index) if draw(st.booleans()) else edge_index
