"""Readers of raw files: PyG's loaders, or our own where PyG's are slow or densify features.

A *work folder* is a temporary folder with the layout of the data folder and links to the raw
files, in which PyG may write. ``fetch`` downloads raw files into it, ``read`` parses them.
"""

import contextlib
import io
import json
import pickletools
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from deepgat.data.feature_matrix import csr_from_scipy
from deepgat.errors import UserError

DOWNLOAD_TIMEOUT = 30.0
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
    """A dataset class of PyG and its arguments: ``kind(work / root, *arguments)``."""

    kind: type
    root: str = ""
    arguments: tuple[str, ...] = ()

    def fetch(self, work: Path) -> None:
        """Download the raw files without parsing them."""
        nothing = {"process": lambda self: None, "load": lambda self, path: None}
        only_download = type(self.kind.__name__, (self.kind,), nothing)
        with _timeout(DOWNLOAD_TIMEOUT):
            only_download(str(work / self.root), *self.arguments)

    def read(self, work: Path) -> list[Data]:
        """Parse the raw files with PyG."""
        with contextlib.redirect_stderr(io.StringIO()):  # "Processing...", "Done!"
            return list(self.kind(str(work / self.root), *self.arguments))


def read_bag_of_words(loader: PygLoader, work: Path) -> list[Data]:
    """Graphs from PyG, with features in CSR form."""
    graphs = loader.read(work)
    for graph in graphs:
        graph.x = csr_from_scipy(sp.csr_matrix(graph.x.numpy()))
    return graphs


def read_planetoid(loader: PygLoader, pickles: tuple[str, ...], work: Path) -> list[Data]:
    """Graphs from PyG, which unpickles these files; first check that they hold only arrays."""
    for pickle in pickles:
        refuse_code(work / pickle)
    return read_bag_of_words(loader, work)


def refuse_code(path: Path) -> None:
    """Raise a :class:`UserError` if unpickling could call anything but array constructors."""
    for operation, argument, _ in pickletools.genops(path.read_bytes()):
        indirect = operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")
        if indirect or (operation.name == "GLOBAL" and argument not in PLAIN_ARRAYS):
            raise UserError(
                f"{path.name} in {path.parent} is not the published file: it would run code "
                f"({argument or operation.name}) when read; replace it with the original"
            )


def read_coauthor(path: Path) -> list[Data]:
    """Read Shchur's npz directly as CSR (for Physics, PyG allocates 1.2 GB of zeros).

    Features become 0/1, self-loops are removed, and the graph is undirected.
    """
    with np.load(path, allow_pickle=False) as file:
        x, adjacency = (
            sp.csr_matrix(
                (file[f"{part}_data"], file[f"{part}_indices"], file[f"{part}_indptr"]),
                shape=tuple(file[f"{part}_shape"]),
            )
            for part in ("attr", "adj")
        )
        y = torch.from_numpy(file["labels"]).long()
    x.sum_duplicates()
    x.data[x.data > 0] = 1
    pairs = adjacency.tocoo()
    edge_index = torch.from_numpy(np.stack([pairs.row, pairs.col]).astype(np.int64))
    edge_index, _ = remove_self_loops(edge_index)
    edge_index = to_undirected(edge_index, num_nodes=len(y))
    return [Data(x=csr_from_scipy(x), edge_index=edge_index, y=y)]


def read_attributed(raw: Path) -> list[Data]:
    """Read an attributed graph: attrs.npz, edgelist.txt, labels.txt (node, class from 1)."""
    x = sp.load_npz(raw / "attrs.npz")
    edges = np.loadtxt(raw / "edgelist.txt", dtype=np.int64, ndmin=2)
    nodes, classes = np.loadtxt(raw / "labels.txt", dtype=np.int64, ndmin=2).T
    y = torch.full((x.shape[0],), -1)
    y[torch.from_numpy(nodes)] = torch.from_numpy(classes) - 1
    edge_index = torch.from_numpy(edges.T.copy())
    return [Data(x=csr_from_scipy(x), edge_index=edge_index, y=y)]


def read_ppi(raw: Path) -> list[Data]:
    """Read GraphSAGE's files: each graph is entirely for training, validation or test.

    PyG's loader needs networkx, takes ten times as long, and shifts the nodes of a graph whose
    first node has no edge.
    """
    graphs = []
    for purpose in ("train", "valid", "test"):
        edge_index = _json_edges(raw / f"{purpose}_graph.json")
        x = torch.from_numpy(np.load(raw / f"{purpose}_feats.npy")).float()
        y = torch.from_numpy(np.load(raw / f"{purpose}_labels.npy")).float()
        member = torch.from_numpy(np.load(raw / f"{purpose}_graph_id.npy")).long()
        for graph in member.unique().tolist():
            nodes = (member == graph).nonzero().view(-1)
            place = torch.full((len(member),), -1)
            place[nodes] = torch.arange(len(nodes))
            inside = (member[edge_index] == graph).all(dim=0)
            masks = {
                f"{name}_mask": torch.full((len(nodes),), purpose.startswith(name))
                for name in ("train", "val", "test")
            }
            own = coalesce(place[edge_index[:, inside]], num_nodes=len(nodes))
            graphs.append(Data(x=x[nodes], edge_index=own, y=y[nodes], **masks))
    return graphs


def _json_edges(path: Path) -> Tensor:
    """The edges of a node-link JSON file without self-loops; undirected links run both ways."""
    content: dict[str, Any] = json.loads(path.read_text())
    pairs = [(link["source"], link["target"]) for link in content["links"]]
    edge_index = torch.from_numpy(np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
    edge_index, _ = remove_self_loops(edge_index)
    if not content["directed"]:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    return edge_index


@contextlib.contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """Limit downloads: without a timeout, PyG waits for ever behind a silent firewall."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
