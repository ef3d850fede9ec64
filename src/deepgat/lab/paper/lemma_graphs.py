"""The paper's lemmas, checked on graphs that meet their assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from deepgat.data import csbm_graph
from deepgat.lab.paper.lemmas import LemmaCheck, check_lemma

LEMMAS = {"gcn": "Lemma 1 (GCN)", "oracle": "Lemma 2 (oracle)"}
DRAWS, QUICK_DRAWS = 10_000, 2_000


class Checked(NamedTuple):
    """One lemma on one graph."""

    lemma: str
    graph: str
    """A description."""
    check: LemmaCheck


def regular_graph() -> Data:
    """Two classes of 50 nodes; each node has 4 neighbours in its class and 2 in the other.

    A class is a ring in random order, whose nodes are joined to the nearest two on either side.
    """
    random = np.random.default_rng(0)
    rings = random.permutation(100).reshape(2, 50)
    other = random.permutation(rings[1])
    pairs = [(ring, np.roll(ring, -step)) for ring in rings for step in (1, 2)]
    pairs += [(rings[0], np.roll(other, -step)) for step in (0, 1)]
    y = np.empty(100, dtype=np.int64)
    y[rings] = [[0], [1]]
    edge_index = to_undirected(torch.from_numpy(np.hstack(pairs)))
    return Data(edge_index=edge_index, y=torch.from_numpy(y), num_nodes=100)


def check_lemmas(quick: bool = False) -> Iterator[Checked]:
    """Both lemmas on a graph where all nodes look alike and on one with hubs."""
    hubs = csbm_graph(200, 2, 2, degree=6, hubs=4, hub_degree=60)
    draws = QUICK_DRAWS if quick else DRAWS
    for name, graph in {"regular, n = 100": regular_graph(), "hubs, n = 200": hubs}.items():
        for lemma, title in LEMMAS.items():
            check = check_lemma(lemma, graph.edge_index, graph.y, draws=draws)
            yield Checked(title, name, check)
