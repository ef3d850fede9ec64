"""The paper's lemmas, checked on graphs that meet their assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_geometric.data import Data

from deepgat.data import class_regular_graph, csbm_graph
from deepgat.lab.paper.lemmas import LemmaCheck, check_lemma

LEMMAS = {"gcn": "Lemma 1 (GCN)", "oracle": "Lemma 2 (oracle)"}
LAYERS = 8
DRAWS, QUICK_DRAWS = 10_000, 2_000


@dataclass(frozen=True, eq=False)
class Checked:
    """One lemma on one graph."""

    lemma: str
    graph: str
    """A description."""
    regular: bool
    """Whether the path-count form must hold too."""
    check: LemmaCheck


def lemma_graphs() -> dict[str, tuple[Data, bool]]:
    """Graphs of two classes: one where all nodes look alike, one with hubs."""
    return {
        "regular, n = 100": (class_regular_graph(50, 2), True),
        "hubs, n = 200": (csbm_graph(200, 2, 2, degree=6, hubs=4, hub_degree=60), False),
    }


def check_lemmas(quick: bool = False) -> Iterator[Checked]:
    """Both lemmas on both graphs, each against its formula and the path-count form."""
    for name, (graph, regular) in lemma_graphs().items():
        for lemma, title in LEMMAS.items():
            check = check_lemma(
                lemma,
                graph.edge_index,
                graph.y,
                layers=LAYERS,
                draws=QUICK_DRAWS if quick else DRAWS,
            )
            yield Checked(title, name, regular, check)
