"""Reading a graph from CSV files, against pandas with and without NetworkX."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pyarrow import csv

from deepgat.data import load_graph
from deepgat.lab.bench.measure import Step, measure_once

FEATURES, CLASSES = 8, 10
SIZES, QUICK_SIZES = ((100_000, 10**6), (200_000, 2 * 10**6), (10**6, 10**7)), ((2_000, 20_000),)
"""Numbers of nodes and edges."""
NETWORKX_EDGES = 2 * 10**6
"""NetworkX is not measured above this: it needs 700 bytes per edge and minutes per million."""


def write_tables(folder: Path, nodes: int, edges: int, prefix: str) -> None:
    """A random graph as nodes.csv (id, label, 8 numbers) and edges.csv (source, target)."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)

    def ids(numbers: np.ndarray) -> pa.Array:
        return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")

    features = random.standard_normal((FEATURES, nodes)).round(4)
    described = {"id": ids(np.arange(nodes)), "label": random.integers(CLASSES, size=nodes)}
    described |= {f"f{i}": column for i, column in enumerate(features)}
    pairs = {end: ids(random.integers(nodes, size=edges)) for end in ("source", "target")}
    plain = csv.WriteOptions(quoting_style="none", quoting_header="none")
    csv.write_csv(pa.table(described), folder / "nodes.csv", plain)
    csv.write_csv(pa.table(pairs), folder / "edges.csv", plain)


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
    """A row per size, kind of id and way whose libraries are installed."""
    for nodes, edges in QUICK_SIZES if quick else SIZES:
        for name, prefix in (("whole numbers", ""), ("texts", "user-")):
            with tempfile.TemporaryDirectory() as work:
                folder = Path(work) / "graph"
                write_tables(folder, nodes, edges, prefix)
                ways: dict[str, Step] = {"deepgat": partial(load_graph, folder)}
                if find_spec("pandas"):
                    ways["pandas by hand"] = partial(through_pandas, folder)
                    if find_spec("networkx") and edges <= NETWORKX_EDGES:
                        ways["pandas, NetworkX, PyG"] = partial(through_networkx, folder)
                found = {way: measure_once(step) for way, step in ways.items()}
                for way, result in found.items():
                    yield {
                        "suite": "files", "graph": f"random, ids are {name}", "nodes": nodes,
                        "edges": edges, "way": way, **result._asdict(),
                        "times_deepgat": result.milliseconds / found["deepgat"].milliseconds,
                    }  # fmt: skip
