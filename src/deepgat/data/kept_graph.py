"""A graph kept for predictions: plain arrays, in memory or mapped from files of a folder.

A prediction reads the lists and features that it needs, and no others. The graph never changes, so
threads may share it. :mod:`deepgat.data.kept_folder` writes and opens the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepgat.data.dataset import NodeDataset
from deepgat.data.feature_matrix import csr_tensor
from deepgat.data.label_features import one_hot_labels
from deepgat.data.node_ids import NodeIds
from deepgat.data.transforms import MASKS
from deepgat.errors import UserError
from deepgat.ops import Neighbors


class Lists(NamedTuple):
    """The neighbour lists of r nodes, one after the other: t entries."""

    length: np.ndarray
    """[r] int64: the length of each."""
    source: np.ndarray
    """[t] int32: u ∈ N_v, ascending, v itself included."""
    log_weight: np.ndarray | None = None
    """[t, 1] float32: logarithms of the weights."""
    features: np.ndarray | None = None
    """[t, k] float32."""


@dataclass(frozen=True, eq=False)
class KeptGraph:
    """A graph of n nodes with lists of E entries, self-loops included."""

    arrays: dict[str, np.ndarray]
    """``ptr`` [n + 1], ``source`` [E] and, for some graphs, ``log_weight`` [E, 1] and ``edge_attr``
    [E, k]: neighbour lists as in :class:`~deepgat.ops.Neighbors`. ``x`` [n, d], or ``x_ptr``,
    ``x_column`` and ``x_value``, its CSR form. ``y`` as in :class:`NodeDataset`; ``part`` [n] is 1
    for training nodes, 2 for validation, 3 for test, 0 for others. ``id_ptr``, ``id_text`` and
    ``id_order``: see :class:`NodeIds`."""
    num_features: int
    symmetric: bool
    """Whether u ∈ N_v implies v ∈ N_u."""
    where: str = "the graph"
    """Its name in messages."""

    @staticmethod
    def of(dataset: NodeDataset) -> KeptGraph:
        """A dataset of one graph, in memory; sorts its edges once."""
        graph = dataset.graph
        dataset.check()
        index, n = graph.edge_index.cpu(), graph.num_nodes
        lists = Neighbors.from_edge_index(index, n)
        weight, features = graph.edge_weight, graph.edge_attr
        lists = lists.with_given_values(
            index,
            None if weight is None else weight.cpu().float(),
            None if features is None else features.cpu().float(),
        )
        part = torch.zeros(n, dtype=torch.int8)
        for number, key in enumerate(MASKS, start=1):
            part[graph[key].cpu()] = number
        y = graph.y.cpu()
        found = {
            "ptr": lists.ptr,
            "source": lists.source,
            "y": y.long() if y.dim() == 1 else y.float(),
            "part": part,
        }
        if lists.log_weight is not None:
            found["log_weight"] = lists.log_weight
        if lists.features is not None:
            found["edge_attr"] = lists.features
        x = graph.x.cpu()
        if x.layout == torch.strided:
            found["x"] = x.float()
        else:
            x = x.to_sparse_csr()
            found["x_ptr"] = x.crow_indices().long()
            found["x_column"] = x.col_indices().int()
            found["x_value"] = x.values().float()
        arrays = {name: item.contiguous().numpy() for name, item in found.items()}
        if dataset.node_ids:
            arrays |= NodeIds.of(dataset.node_ids).arrays()
        return KeptGraph(arrays, dataset.num_features, lists.symmetric, dataset.title)

    @property
    def num_nodes(self) -> int:
        return len(self.arrays["ptr"]) - 1

    @property
    def sparse(self) -> bool:
        """Whether the features are stored sparse."""
        return "x" not in self.arrays

    @property
    def ids(self) -> NodeIds | None:
        """The ids of the nodes; None: they have numbers only."""
        if "id_ptr" not in self.arrays:
            return None
        return NodeIds(*(self.arrays[name] for name in ("id_ptr", "id_text", "id_order")))

    def number(self, node: int | str) -> int:
        """The number of a node given by number or, as a text, by id; −1 if there is none."""
        if isinstance(node, str):
            return self.find(node)
        return int(node) if 0 <= node < self.num_nodes else -1

    def find(self, text: str) -> int:
        """The number of the node with this id, or −1; without ids, nodes are called 0, 1, …"""
        ids = self.ids
        if ids is not None:
            return ids.find(text)
        plain = text.isascii() and text.isdigit() and len(text) < 11 and str(int(text)) == text
        return int(text) if plain and int(text) < self.num_nodes else -1

    def name(self, number: int) -> str:
        """The id of a node, or its number as a text."""
        ids = self.ids
        return str(number) if ids is None else ids[number]

    def lists(self, nodes: np.ndarray) -> Lists:
        """The lists of some nodes."""
        ptr = self.arrays["ptr"]
        begin = np.asarray(ptr[nodes])
        count = np.asarray(ptr[nodes + 1]) - begin
        place = stretches(begin, count)
        given = (self.arrays.get(name) for name in ("log_weight", "edge_attr"))
        values = (None if item is None else item[place] for item in given)
        return Lists(count, self._checked(self.arrays["source"][place]), *values)

    def all_lists(self) -> Lists:
        """The lists of all nodes; arrays that are mapped from disk are not copied."""
        source = self._checked(self.arrays["source"])
        given = (self.arrays.get(name) for name in ("log_weight", "edge_attr"))
        return Lists(np.diff(self.arrays["ptr"]), source, *given)

    def _checked(self, source: np.ndarray) -> np.ndarray:
        if len(source) and not 0 <= int(source.min()) <= int(source.max()) < self.num_nodes:
            raise self.damaged("source names nodes that do not exist")
        return source

    def features(self, nodes: np.ndarray) -> Tensor:
        """x of some nodes: [k, d], dense or CSR as the graph's."""
        if not self.sparse:
            return torch.from_numpy(np.ascontiguousarray(self.arrays["x"][nodes]))
        begin = np.asarray(self.arrays["x_ptr"][nodes])
        count = np.asarray(self.arrays["x_ptr"][nodes + 1]) - begin
        place = stretches(begin, count)
        row_ptr = np.concatenate([[0], np.cumsum(count)])
        try:
            return csr_tensor(
                torch.from_numpy(row_ptr),
                torch.from_numpy(self.arrays["x_column"][place].astype(np.int64)),
                torch.from_numpy(np.ascontiguousarray(self.arrays["x_value"][place])),
                self.num_features,
            )
        except RuntimeError as error:  # of torch: columns that do not exist or do not rise
            raise self.damaged("x_column names features that do not exist") from error

    def training_labels(self, nodes: np.ndarray, num_classes: int) -> Tensor:
        """Y [k, C] float64 of some nodes: one-hot labels of training nodes, zeros elsewhere."""
        y, part = np.asarray(self.arrays["y"][nodes]), np.asarray(self.arrays["part"][nodes])
        return one_hot_labels(torch.from_numpy(y), torch.from_numpy(part == 1), num_classes)

    def damaged(self, what: str) -> UserError:
        return UserError(f"{self.where} is damaged: {what}; save the model with its graph again")


def stretches(begin: np.ndarray, count: np.ndarray) -> np.ndarray:
    """begin_i, begin_i + 1, … (count_i numbers) for every i, one after the other: int64."""
    total = int(count.sum())
    return np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(total)
