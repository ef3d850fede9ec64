"""Peak memory of every process of a team against its share of one process's.

    python benchmarks/part_memory.py                 # 10 million edges, 1 million nodes, 4 parts
    python benchmarks/part_memory.py --groups 64     # the same with groups that can be found

A random hub-rich graph is written as .npz, divided by what ``deepgat partition`` runs, and trained
on for an epoch (a step and an evaluation) by a team, each process holding its part, and by one
process that has all of it. Peak memory is what a process held above its start, mapped files
included; it is to be at most (own + halo) / n of what the one process held.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from deepgat.data import NodeDataset, ReadOptions
from deepgat.data.transforms import MASKS
from deepgat.distributed import PartDataset, Team
from deepgat.distributed.partition_folder import read_part
from deepgat.distributed.streaming import write_streamed
from deepgat.lab.bench.measure import measure_once
from deepgat.lab.bench.random_graphs import hub_rich
from deepgat.training import loop
from deepgat.training.recipes import recipe
from deepgat.training.run import ModelCard

FEATURES, CLASSES = 16, 8
ACROSS = 0.05
"""The share of edges that run between groups, where there are any."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000, help="undirected")
    parser.add_argument("--groups", type=int, default=1, help="of nodes with few edges between")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--method", default="stream")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--model", default="deep")
    parser.add_argument("--worker", type=Path, help="for the script's own processes")
    options = parser.parse_args()
    if options.worker is not None:
        train(options.worker, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), options)


def compare(folder: Path, options: argparse.Namespace) -> None:
    path = folder / "graph.npz"
    write_graph(path, options.nodes, options.edges, options.groups)
    for parts in (1, options.parts):
        divide = partial(
            write_streamed, folder / str(parts), path, ReadOptions(), None, parts, options.method
        )
        found = measure_once(divide)
        print(f"divided in {parts} by {options.method}: {found.milliseconds / 1e3:.0f} s, "
              f"{found.peak_megabytes:,.0f} MB")  # fmt: skip
    script = [__file__, "--model", options.model, "--layers", str(options.layers), "--worker"]
    (alone,) = rows_of([sys.executable, *script, str(folder / "1")])
    torchrun = ["-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", str(options.parts)]
    team = rows_of([sys.executable, *torchrun, *script, str(folder / str(options.parts))])
    print(f"one process: {alone['nodes']:,} nodes, {alone['edges']:,} edges with both directions, "
          f"{alone['peak']:,.0f} MB")  # fmt: skip
    print("| rank | own | halo | edges in | peak, MB | allowed, MB | within |")
    print("|---|---|---|---|---|---|---|")
    for row in sorted(team, key=lambda item: item["rank"]):
        allowed = (row["own"] + row["halo"]) / row["nodes"] * alone["peak"]
        cells = [row["rank"], row["own"], row["halo"], row["edges"], row["peak"], allowed]
        within = "yes" if row["peak"] <= allowed else "no"
        print("| " + " | ".join(f"{cell:,.0f}" for cell in cells) + f" | {within} |")


def write_graph(path: Path, nodes: int, edges: int, groups: int) -> None:
    """Labels and features are random; numbers of nodes say nothing about groups."""
    size, inner = nodes // groups, edges if groups == 1 else int(edges * (1 - ACROSS))
    pieces = [
        hub_rich(size, inner // groups, seed=group).edge_index + group * size
        for group in range(groups)
    ]
    if groups > 1:
        pieces.append(hub_rich(nodes, edges - inner, seed=groups).edge_index)
    random = np.random.default_rng(0)
    source, target = random.permutation(nodes)[torch.cat(pieces, 1).numpy()]
    proper = source != target
    ones = np.ones(int(proper.sum()), dtype=np.int8)
    matrix = sp.csr_matrix((ones, (source[proper], target[proper])), shape=(nodes, nodes))
    np.savez(
        path,
        adj_data=np.ones(matrix.nnz, dtype=np.int8),
        adj_indices=matrix.indices,
        adj_indptr=matrix.indptr,
        adj_shape=np.array(matrix.shape),
        attr_matrix=random.standard_normal((nodes, FEATURES), dtype=np.float32),
        labels=random.integers(CLASSES, size=nodes),
    )


def train(folder: Path, options: argparse.Namespace) -> None:
    """Print what one process held while it read its part, or all, and trained an epoch."""
    team = Team.join("cpu") if Team.launched() else None
    plan = recipe(options.model, num_layers=options.layers, hidden_channels=16)
    training = replace(plan.training, epochs=1, device="cpu")
    sizes: dict[str, Any] = {"rank": 0 if team is None else team.rank}

    def work() -> None:
        part = read_part(folder, sizes["rank"], 1 if team is None else team.size)
        (graph,) = part.graphs
        halo = len(graph.ids) - graph.own
        sizes.update(own=graph.own, halo=halo, nodes=graph.num_nodes, edges=graph.num_edges)
        model = ModelCard.of(part, plan).build()
        loop.train(model, part if team is not None else whole(part), training, team=team)

    sizes["peak"] = measure_once(work).peak_megabytes
    print(json.dumps(sizes) + "\n", end="", flush=True)  # in one piece, as others print too
    if team is not None:
        team.barrier()
        team.leave()


def whole(part: PartDataset) -> NodeDataset:
    """The only part of a graph as a dataset of one process."""
    own = {item.name: getattr(part, item.name) for item in fields(NodeDataset)}
    (graph,) = part.graphs
    names = ("x", "edge_index", "y", *MASKS)
    data = Data(**{name: graph[name] for name in names})
    return NodeDataset(**own | {"graphs": (data,)})


def rows_of(command: list[str]) -> list[dict[str, Any]]:
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in found.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    main()
