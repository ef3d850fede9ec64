"""Datasets for graph classification in the text format of the TU collection.

A folder holds ``NAME_A.txt`` (one edge "u, v" per line, nodes numbered from 1 over all graphs),
``NAME_graph_indicator.txt`` (the graph of each node), ``NAME_graph_labels.txt`` and, for features,
``NAME_node_labels.txt`` or ``NAME_node_attributes.txt``. PyG's reader parses it.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.data.separate import separate
from torch_geometric.io import read_tu_data
from torch_geometric.utils import degree, one_hot

from deepgat.data.tables.opening import parsing
from deepgat.errors import UserError

NEEDED = ("A", "graph_indicator", "graph_labels")
MOST_DEGREES = 64
"""Width of the one-hot degrees, the features of nodes that have no others."""


@dataclass(frozen=True)
class GraphDataset:
    """Many graphs with ``x`` [n, num_features], ``edge_index`` [2, e] and ``y`` [1] each."""

    name: str
    graphs: tuple[Data, ...]
    num_features: int
    num_classes: int

    @property
    def y(self) -> torch.Tensor:
        """[number of graphs]: their classes."""
        return torch.cat([graph.y for graph in self.graphs])


def load_graphs(source: str | os.PathLike[str], attributes: bool = False) -> GraphDataset:
    """Load a set of graphs from a folder, or by its name from the folder in DEEPGAT_DATA.

    Features are the one-hot node labels, as is usual. ``attributes`` puts the numeric node
    attributes before them. Without either, features are the one-hot degrees.
    """
    folder, name = _find(source)
    files = f"the files {name}_*.txt in {folder}"
    with parsing(f"{files} cannot be read", "expected the text format of the TU collection"):
        whole, slices, sizes = read_tu_data(str(folder), name)
    if whole.y is None or whole.y.is_floating_point():
        raise UserError(f"{name} in {folder} has no classes: expected {name}_graph_labels.txt")
    first = 0 if attributes or not sizes["num_node_labels"] else sizes["num_node_attributes"]
    graphs = []
    for number in range(len(slices["y"]) - 1):
        one = separate(Data, whole, number, slices, decrement=False)
        x = _degrees(one) if one.x is None else one.x[:, first:]
        graphs.append(Data(x=x, edge_index=one.edge_index, y=one.y))
    return GraphDataset(name.lower(), tuple(graphs), graphs[0].num_features, int(whole.y.max()) + 1)


def _degrees(graph: Data) -> torch.Tensor:
    """[n, MOST_DEGREES]: one-hot degrees; the last column stands for all higher ones."""
    found = degree(graph.edge_index[1], graph.num_nodes).long().clamp(max=MOST_DEGREES - 1)
    return one_hot(found, MOST_DEGREES)


def _find(source: str | os.PathLike[str]) -> tuple[Path, str]:
    """The folder of the files, and the prefix of their names."""
    tried = [Path(source)]
    root = os.environ.get("DEEPGAT_DATA")
    if root:
        tried += [Path(root) / str(source).upper() / "raw"]
    for folder in tried:
        for path in sorted(folder.glob("*_graph_indicator.txt")) if folder.is_dir() else []:
            name = path.name.removesuffix("_graph_indicator.txt")
            missing = [part for part in NEEDED if not (folder / f"{name}_{part}.txt").is_file()]
            if missing:
                raise UserError(f"{folder} lacks {name}_{missing[0]}.txt, which the format needs")
            return folder, name
    raise UserError(
        f"there are no graphs in {source}: expected a folder with NAME_A.txt, "
        "NAME_graph_indicator.txt and NAME_graph_labels.txt, or the name of one in the folder "
        "DEEPGAT_DATA, such as MUTAG for MUTAG/raw"
    )
