"""Time to predict ten new nodes of a large graph, against a pass over the whole graph.

    python benchmarks/new_nodes.py --nodes 1000000 --degree 10 --layers 2,16 --model gcn,deep
    python benchmarks/new_nodes.py --graph geometric

The graph is kept in a model folder and mapped from disk, as ``deepgat train --keep-graph`` leaves
it. In a random graph a few hops reach every node. In a geometric one, points of the unit square
that are joined to those nearby, the receptive field stays small. Weights are random: time does not
depend on them. "exact" reads the receptive field, "k hops" cuts it, and "whole graph" is one pass
of the network over all nodes, with lists that are already built. Runs take turns (--times), and the
best time of each is shown. "nodes" are those whose values are read. "difference" is the largest one
between the logits of the new nodes and those of the whole graph.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.data.grown_graph import GrownGraph, NewNodes
from deepgat.data.kept_folder import Expected, read_kept, write_kept
from deepgat.data.kept_graph import KeptGraph
from deepgat.data.surroundings import around
from deepgat.models import LayerOutputs, Network, build_network, find_system
from deepgat.models.field import radius
from deepgat.ops import Neighbors
from deepgat.training.receptive_field import field_outputs

FEATURES, CLASSES, NEW, LINKS = 64, 10, 10, 5


def random_edges(nodes: int, degree: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(edges [2, ·] of a random graph of this mean degree, and of new nodes to any others)."""
    edges = torch.randint(nodes, (2, int(nodes * degree / 2)))
    links = torch.randint(nodes, (LINKS * NEW,))
    return edges, torch.stack([links, nodes + torch.arange(NEW).repeat(LINKS)])


def geometric_edges(nodes: int, degree: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(edges [2, ·] between near points of the unit square, and of new points to the nearest)."""
    tree = cKDTree(torch.rand(nodes, 2).numpy())
    near = tree.query_pairs((degree / (np.pi * nodes)) ** 0.5, output_type="ndarray")
    _, links = tree.query(torch.rand(NEW, 2).numpy(), k=LINKS)
    ends = torch.from_numpy(links).flatten(), nodes + torch.arange(NEW).repeat_interleave(LINKS)
    return torch.from_numpy(near).t(), torch.stack(ends)


GRAPHS = {"random": random_edges, "geometric": geometric_edges}


def dataset(nodes: int, edges: torch.Tensor) -> NodeDataset:
    none = torch.zeros(nodes, dtype=torch.bool)
    graph = Data(
        x=torch.randn(nodes, FEATURES),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.randint(CLASSES, (nodes,)),
        train_mask=none,
        val_mask=none,
        test_mask=none,
    )
    return NodeDataset("graph", "graph", (graph,), FEATURES, CLASSES, False, "public")


def kept(data: NodeDataset, folder: Path) -> KeptGraph:
    digest = write_kept(folder / "graph", data)
    return read_kept(folder / "graph", digest, Expected(FEATURES, CLASSES, False, False, 0))


class Timed(NamedTuple):
    logits: torch.Tensor
    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:8.3f} s {self.cpu:8.3f} s"


def timed(runs: dict[str, Callable[[], LayerOutputs]], times: int) -> dict[str, Timed]:
    """The result of each, and the least wall-clock and processor time; they take turns."""
    best: dict[str, Timed] = {}
    for _ in range(times):
        for name, run in runs.items():
            begin = time.perf_counter(), time.process_time()
            logits = run().logits
            wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
            before = best.get(name, Timed(logits, wall, cpu))
            best[name] = Timed(logits, min(wall, before.wall), min(cpu, before.cpu))
    return best


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--graph", choices=GRAPHS, default="random")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--degree", type=float, default=10)
    parser.add_argument("--layers", type=numbers, default=[2, 16])
    parser.add_argument("--hops", type=numbers, default=[2, 4, 8])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--model", default="gcn,deep")
    parser.add_argument("--times", type=int, default=1, help="runs of the deep networks")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    n = arguments.nodes
    edges, links = GRAPHS[arguments.graph](n, arguments.degree)
    data = dataset(n, edges)
    index = data.graph.edge_index
    links = torch.cat([links, links.flip(0)], 1)
    new = NewNodes(torch.randn(NEW, FEATURES), links)
    x = torch.cat([data.graph.x, new.x])
    lists = Neighbors.from_edge_index(torch.cat([index, links], 1), n + NEW)
    print(
        f"{arguments.graph} graph of {n:,} nodes and {index.shape[1]:,} edges, {NEW} new nodes; "
        f"width {arguments.width}, {torch.get_num_threads()} threads"
    )
    print(
        f"{'model':8} {'layers':>6} {'read':>12} {'nodes':>10} {'time':>10} {'CPU time':>10} "
        f"{'difference':>11}"
    )
    with tempfile.TemporaryDirectory() as folder:
        grown = GrownGraph(kept(data, Path(folder)), new)
        for name in arguments.model.split(","):
            for depth in arguments.layers:
                settings = {"num_layers": depth, "hidden_channels": arguments.width}
                config = find_system(name).config.with_changes(settings)
                network = build_network(name, config, FEATURES, CLASSES).eval()
                compare(name, network, grown, x, lists, arguments.hops, arguments.times)


@torch.no_grad()
def compare(
    name: str,
    network: Network,
    grown: GrownGraph,
    x: torch.Tensor,
    lists: Neighbors,
    cuts: list[int],
    times: int,
) -> None:
    targets = np.arange(grown.base.num_nodes, grown.num_nodes)
    few = network.num_layers <= 4
    asked = radius(network)
    runs: dict[str, Callable[[], LayerOutputs]] = {}
    read: dict[str, int] = {}
    for hops in [*(cut for cut in cuts if cut < asked.lists), None]:
        what = "exact" if hops is None else f"{hops} hops"
        limit = asked.features if hops is None else min(hops, asked.features)
        read[what] = len(around(grown, targets, limit).nodes)
        runs[what] = partial(predict, network, grown, targets, hops)
    runs["whole graph"] = partial(network.run, x, lists, segment=network.num_layers)  # one state
    found = timed(runs, max(times, 5) if few else times)
    whole = found["whole graph"].logits[targets]
    for what, each in found.items():
        logits = whole if what == "whole graph" else each.logits
        apart = float((logits - whole).abs().max())
        nodes = read.get(what, len(x))
        print(
            f"{name:8} {network.num_layers:6} {what:>12} {nodes:10,} {each} {apart:11.1e}",
            flush=True,
        )


def predict(
    network: Network, grown: GrownGraph, targets: np.ndarray, hops: int | None
) -> LayerOutputs:
    """As a request does, which makes a graph of its own from its new nodes."""
    return field_outputs(network, GrownGraph(grown.base, grown.new), targets, hops)


if __name__ == "__main__":
    main()
