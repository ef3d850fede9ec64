"""Reading a graph from CSV files, against pandas with and without NetworkX."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepgat.data import load_graph
from deepgat.lab.bench.measure import Step, measure_once
from deepgat.nn.checkpoint import free_memory

FEATURES, CLASSES, BLOCK = 8, 10, 1_000_000
NETWORKX_BYTES = 1_000
"""Memory per edge of NetworkX and PyG's conversion; 700 were measured."""
NETWORKX = "pandas, NetworkX, PyG"


def write_tables(folder: Path, nodes: int, edges: int, prefix: str, seed: int = 0) -> None:
    """A random graph as nodes.csv (id, label, 8 numbers) and edges.csv (source, target)."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "nodes.csv").open("w") as file:
        file.write("id,label," + ",".join(f"f{i}" for i in range(FEATURES)) + "\n")
        for begin in range(0, nodes, BLOCK):
            count = min(BLOCK, nodes - begin)
            values = random.standard_normal((count, FEATURES)).round(4).tolist()
            labels = random.integers(CLASSES, size=count).tolist()
            rows = zip(range(begin, begin + count), labels, values, strict=True)
            file.writelines(
                f"{prefix}{i},{label},{','.join(map(str, row))}\n" for i, label, row in rows
            )
    with (folder / "edges.csv").open("w") as file:
        file.write("source,target\n")
        for begin in range(0, edges, BLOCK):
            ends = random.integers(nodes, size=(min(BLOCK, edges - begin), 2)).tolist()
            file.writelines(f"{prefix}{a},{prefix}{b}\n" for a, b in ends)


def through_networkx(folder: Path) -> Any:
    """As in tutorials: pandas reads, NetworkX builds the graph, PyG converts it."""
    import networkx as nx
    import pandas as pd  # type: ignore[import-untyped]
    from torch_geometric.utils import from_networkx

    nodes = pd.read_csv(folder / "nodes.csv")
    graph = nx.from_pandas_edgelist(pd.read_csv(folder / "edges.csv"))
    graph.add_nodes_from(nodes["id"])
    nx.set_node_attributes(graph, nodes.set_index("id").to_dict("index"))
    return from_networkx(graph, group_node_attrs=[f"f{i}" for i in range(FEATURES)])


def through_pandas(folder: Path) -> Any:
    """Without a graph library: pandas looks up the ids, PyG makes the edges undirected."""
    import pandas as pd
    from torch_geometric.data import Data
    from torch_geometric.utils import to_undirected

    nodes, edges = pd.read_csv(folder / "nodes.csv"), pd.read_csv(folder / "edges.csv")
    place = pd.Series(np.arange(len(nodes)), index=nodes["id"])
    pairs = np.stack([place[edges[end]].to_numpy() for end in ("source", "target")])
    x = torch.from_numpy(nodes.iloc[:, 2:].to_numpy(dtype=np.float32, copy=True))
    y = torch.from_numpy(nodes["label"].to_numpy().copy())
    return Data(x=x, y=y, edge_index=to_undirected(torch.from_numpy(pairs), num_nodes=len(nodes)))


def reading_rows(quick: bool) -> Iterator[dict[str, Any]]:
    """A row per size, kind of id and way.

    If NetworkX does not fit into memory at the largest size, it is measured at two smaller sizes.
    """
    sizes = [(2_000, 20_000)] if quick else [(100_000, 1_000_000), (1_000_000, 10_000_000)]
    if not quick and not networkx_fits(sizes[-1][1]):
        sizes.insert(1, (200_000, 2_000_000))
    for nodes, edges in sizes:
        for name, prefix in (("whole numbers", ""), ("texts", "user-")):
            with tempfile.TemporaryDirectory() as work:
                folder = Path(work) / "graph"
                write_tables(folder, nodes, edges, prefix)
                ways: dict[str, Step] = {"deepgat": partial(load_graph, folder)}
                ways |= _rivals(folder, edges)
                ours = 0.0
                for way, step in ways.items():
                    result = measure_once(step)
                    ours = ours or result.milliseconds
                    yield {
                        "suite": "files", "graph": f"random, ids are {name}", "nodes": nodes,
                        "edges": edges, "way": way, "milliseconds": result.milliseconds,
                        "peak_megabytes": result.peak_megabytes,
                        "times_deepgat": result.milliseconds / ours,
                    }  # fmt: skip


def networkx_fits(edges: int) -> bool:
    """Whether NetworkX can hold a graph of this many edges in the free memory."""
    return edges * NETWORKX_BYTES < free_memory(torch.device("cpu"))


def _rivals(folder: Path, edges: int) -> dict[str, Callable[[], object]]:
    """The ways whose libraries are installed and whose memory suffices."""
    ways: dict[str, Callable[[], object]] = {}
    try:
        import pandas  # noqa: F401
    except ImportError:
        return ways
    ways["pandas by hand"] = partial(through_pandas, folder)
    try:
        import networkx  # noqa: F401
    except ImportError:
        return ways
    if networkx_fits(edges):
        ways[NETWORKX] = partial(through_networkx, folder)
    else:
        needed = edges * NETWORKX_BYTES / 1e9
        warnings.warn(
            f"NetworkX is not measured at {edges:,} edges: it needs about {needed:.0f} GB",
            stacklevel=2,
        )
    return ways
