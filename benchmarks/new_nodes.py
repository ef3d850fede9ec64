"""Time to predict ten new nodes of a large random graph, against a pass over the whole graph.

    python benchmarks/new_nodes.py --nodes 1000000 --degree 10 --layers 2,16 --model gcn,deep

The graph is kept in a model folder and mapped from disk, as ``deepgat train --keep-graph`` leaves
it. Weights are random: time does not depend on them. "whole graph" is one pass of the network over
all nodes, with lists that are already built. "difference" is the largest one between the logits of
the new nodes in both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.data.grown_graph import GrownGraph, NewNodes
from deepgat.data.kept_folder import Expected, read_kept, write_kept
from deepgat.data.kept_graph import KeptGraph
from deepgat.models import LayerOutputs, Network, build_network, find_system
from deepgat.ops import Neighbors
from deepgat.training.fields import field_outputs

FEATURES, CLASSES, WIDTH, NEW = 64, 10, 64, 10


def random_graph(nodes: int, degree: float) -> NodeDataset:
    """An undirected random graph of the given mean degree."""
    edges = torch.randint(nodes, (2, int(nodes * degree / 2)))
    none = torch.zeros(nodes, dtype=torch.bool)
    graph = Data(
        x=torch.randn(nodes, FEATURES),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.randint(CLASSES, (nodes,)),
        train_mask=none,
        val_mask=none,
        test_mask=none,
    )
    return NodeDataset("random", "random", (graph,), FEATURES, CLASSES, False, "public")


def kept(data: NodeDataset, folder: Path) -> KeptGraph:
    digest = write_kept(folder / "graph", data)
    return read_kept(folder / "graph", digest, Expected(FEATURES, CLASSES, False, False, 0))


class Timed(NamedTuple):
    logits: torch.Tensor
    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:8.3f} s {self.cpu:8.3f} s"


def timed(run: Callable[[], LayerOutputs], times: int) -> Timed:
    """The result, and the medians of wall-clock and processor time."""
    walls, cpus = [], []
    for _ in range(times):
        begin = time.perf_counter(), time.process_time()
        logits = run().logits
        walls.append(time.perf_counter() - begin[0])
        cpus.append(time.process_time() - begin[1])
    return Timed(logits, statistics.median(walls), statistics.median(cpus))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--degree", type=float, default=10)
    parser.add_argument("--layers", default="2,16")
    parser.add_argument("--model", default="gcn,deep")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data, n = random_graph(arguments.nodes, arguments.degree), arguments.nodes
    index = data.graph.edge_index
    links = torch.stack([torch.randint(n, (5 * NEW,)), n + torch.arange(NEW).repeat(5)])
    links = torch.cat([links, links.flip(0)], 1)
    new = NewNodes(torch.randn(NEW, FEATURES), links)
    x = torch.cat([data.graph.x, new.x])
    lists = Neighbors.from_edge_index(torch.cat([index, links], 1), n + NEW)
    targets = np.arange(n, n + NEW)
    edges, threads = index.shape[1], torch.get_num_threads()
    print(f"{n:,} nodes, {edges:,} edges, {NEW} new nodes, {threads} threads; time and CPU time")
    print(f"{'model':8} {'layers':>6} {'new nodes':>21} {'whole graph':>21} {'difference':>12}")
    with tempfile.TemporaryDirectory() as folder:
        graph = kept(data, Path(folder))
        for name in arguments.model.split(","):
            for depth in map(int, arguments.layers.split(",")):
                settings = {"num_layers": depth, "hidden_channels": WIDTH}
                config = find_system(name).config.with_changes(settings)
                network = build_network(name, config, FEATURES, CLASSES).eval()
                compare(network, graph, new, targets, x, lists, name)


@torch.no_grad()
def compare(
    network: Network,
    graph: KeptGraph,
    new: NewNodes,
    targets: np.ndarray,
    x: torch.Tensor,
    lists: Neighbors,
    name: str,
) -> None:
    def field() -> LayerOutputs:
        return field_outputs(network, GrownGraph(graph, new), targets)

    few = network.num_layers <= 4
    if few:
        field()  # reads the pages from disk
    some = timed(field, 9 if few else 1)
    whole = timed(lambda: network.run(x, lists, segment=network.num_layers), 1)  # one state
    apart = float((some.logits - whole.logits[targets]).abs().max())
    print(f"{name:8} {network.num_layers:6} {some} {whole} {apart:12.1e}", flush=True)


if __name__ == "__main__":
    main()
