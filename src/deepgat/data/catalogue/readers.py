"""Readers of raw files: PyG's loaders, or our own where PyG's are slow or densify features.

``fetch`` downloads raw files into a data folder, ``read`` parses those of a data folder.
"""

import contextlib
import io
import json
import pickletools
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.datasets import HeterophilousGraphDataset
from torch_geometric.utils import coalesce, remove_self_loops, subgraph, to_undirected

from deepgat.data.feature_matrix import csr_from_scipy
from deepgat.errors import UserError

DOWNLOAD_TIMEOUT = 30.0
DENSE = 1 / 8
"""Features of which at least this share is not 0 are dense, else in CSR form."""
PLAIN_ARRAYS = {
    "numpy ndarray",
    "numpy dtype",
    "numpy.core.multiarray _reconstruct",
    "scipy.sparse.csr csr_matrix",
    "collections defaultdict",
    "__builtin__ list",
}
"""The only globals that the published Planetoid files refer to."""


@dataclass(frozen=True)
class PygLoader:
    """A dataset class of PyG and its arguments: ``kind(root / self.root, *arguments)``."""

    kind: type
    root: str = ""
    arguments: tuple[Any, ...] = ()

    def fetch(self, root: Path) -> None:
        """Download the raw files without parsing them."""
        self._open(root, process=lambda self: None, load=lambda self, path: None)

    def read(self, root: Path) -> list[Data]:
        """Parse the raw files with PyG; what it writes goes to a temporary folder."""
        quiet = contextlib.redirect_stderr(io.StringIO())  # "Processing...", "Done!"
        with tempfile.TemporaryDirectory() as folder, quiet:
            return list(self._open(root, processed_dir=folder))

    def _open(self, root: Path, **overrides: Any) -> Any:
        """The dataset, with some members of its class replaced.

        Without a timeout, PyG's download waits for ever behind a silent firewall.
        """
        kind = type(self.kind.__name__, (self.kind,), overrides)
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
        try:
            return kind(str(root / self.root), *self.arguments)
        finally:
            socket.setdefaulttimeout(before)


def read_with_pyg(loader: PygLoader, root: Path) -> list[Data]:
    """Graphs from PyG, with sparse features in CSR form."""
    graphs = loader.read(root)
    for graph in graphs:
        graph.x = _features(sp.csr_matrix(graph.x.numpy()))
    return graphs


def read_planetoid(loader: PygLoader, pickles: tuple[str, ...], root: Path) -> list[Data]:
    """Graphs from PyG, which unpickles these files; first check that they hold only arrays."""
    for pickle in pickles:
        refuse_code(root / pickle)
    return read_with_pyg(loader, root)


def refuse_code(path: Path) -> None:
    """Raise a :class:`UserError` if unpickling could call anything but array constructors."""
    for operation, argument, _ in pickletools.genops(path.read_bytes()):
        indirect = operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")
        if indirect or (operation.name == "GLOBAL" and argument not in PLAIN_ARRAYS):
            raise UserError(
                f"{path.name} in {path.parent} is not the published file: it would run code "
                f"({argument or operation.name}) when read; replace it with the original"
            )


def read_shchur(file: str, root: Path) -> list[Data]:
    """Read Shchur's npz directly (for Physics, PyG allocates 1.2 GB of zeros).

    Features become 0/1, self-loops are removed, and the graph is undirected.
    """
    with np.load(root / file, allow_pickle=False) as parts:
        x, adjacency = (
            sp.csr_matrix(
                (parts[f"{name}_data"], parts[f"{name}_indices"], parts[f"{name}_indptr"]),
                shape=tuple(parts[f"{name}_shape"]),
            )
            for name in ("attr", "adj")
        )
        y = torch.from_numpy(parts["labels"]).long()
    x.sum_duplicates()
    x.data[x.data > 0] = 1
    pairs = adjacency.tocoo()
    edge_index = torch.from_numpy(np.stack([pairs.row, pairs.col]).astype(np.int64))
    edge_index, _ = remove_self_loops(edge_index)
    edge_index = to_undirected(edge_index, num_nodes=len(y))
    return [Data(x=_features(x), edge_index=edge_index, y=y)]


def _features(x: sp.csr_matrix) -> Tensor:
    if x.nnz < DENSE * x.shape[0] * x.shape[1]:
        return csr_from_scipy(x)
    return torch.from_numpy(x.toarray()).float()


class FilteredWikipedia(HeterophilousGraphDataset):
    """The filtered Chameleon and Squirrel, which lie beside the graphs that PyG knows by name."""

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        InMemoryDataset.__init__(self, root)
        self.load(self.processed_paths[0])


def read_wikics(loader: PygLoader, root: Path) -> list[Data]:
    """WikiCS from PyG, with one mask of test nodes for all twenty splits.

    Its nodes for early stopping and those for choosing settings are one validation set here, which
    serves both.
    """
    (graph,) = loader.read(root)
    graph.edge_index = coalesce(graph.edge_index, num_nodes=graph.num_nodes)
    graph.val_mask |= graph.stopping_mask
    graph.test_mask = graph.test_mask[:, None].expand_as(graph.train_mask)
    del graph.stopping_mask
    return [graph]


def read_attributed(folder: str, root: Path) -> list[Data]:
    """Read an attributed graph: attrs.npz, edgelist.txt, labels.txt (node, class from 1)."""
    raw = root / folder
    x = sp.load_npz(raw / "attrs.npz")
    edges = np.loadtxt(raw / "edgelist.txt", dtype=np.int64, ndmin=2)
    nodes, classes = np.loadtxt(raw / "labels.txt", dtype=np.int64, ndmin=2).T
    y = torch.full((x.shape[0],), -1)
    y[torch.from_numpy(nodes)] = torch.from_numpy(classes) - 1
    edge_index = torch.from_numpy(edges.T.copy())
    return [Data(x=csr_from_scipy(x), edge_index=edge_index, y=y)]


def read_ppi(folder: str, root: Path) -> list[Data]:
    """Read GraphSAGE's files: each graph is entirely for training, validation or test.

    PyG's loader needs networkx, takes ten times as long, and shifts the nodes of a graph whose
    first node has no edge.
    """
    raw, graphs = root / folder, []
    for purpose in ("train", "valid", "test"):
        edge_index = _json_edges(raw / f"{purpose}_graph.json")
        x = torch.from_numpy(np.load(raw / f"{purpose}_feats.npy")).float()
        y = torch.from_numpy(np.load(raw / f"{purpose}_labels.npy")).float()
        member = torch.from_numpy(np.load(raw / f"{purpose}_graph_id.npy")).long()
        for graph in member.unique():
            nodes = (member == graph).nonzero().view(-1)
            own, _ = subgraph(nodes, edge_index, relabel_nodes=True, num_nodes=len(member))
            masks = {
                f"{name}_mask": torch.full((len(nodes),), purpose.startswith(name))
                for name in ("train", "val", "test")
            }
            graphs.append(Data(x=x[nodes], edge_index=own, y=y[nodes], **masks))
    return graphs


def _json_edges(path: Path) -> Tensor:
    """The edges of a node-link JSON file, sorted, without self-loops and duplicates."""
    content: dict[str, Any] = json.loads(path.read_text())
    pairs = [(link["source"], link["target"]) for link in content["links"]]
    edge_index, _ = remove_self_loops(torch.tensor(pairs).reshape(-1, 2).t().long())
    return coalesce(edge_index) if content["directed"] else to_undirected(edge_index)
