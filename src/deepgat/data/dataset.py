"""The dataset that models train on: labelled graphs with train, validation and test masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.errors import UserError


@dataclass(frozen=True)
class NodeDataset:
    """One or several labelled graphs with train, validation and test masks.

    Every graph is a :class:`torch_geometric.data.Data` of n nodes with

    - ``x`` [n, num_features]: float32, dense, or ``torch.sparse_csr`` for bags of words;
    - ``edge_index`` [2, e] int64, row 0 the source and row 1 the target of an edge;
    - ``y``: [n] int64 class ids with −1 for "unlabelled", or [n, num_classes] float 0/1 when
      ``multi_label``;
    - ``train_mask``, ``val_mask``, ``test_mask``: [n] bool, disjoint; unlabelled nodes
      are in none of them;
    - for some graphs ``edge_weight`` [e] ≥ 0 and ``edge_attr`` [e, num_edge_features], float32.
    """

    name: str
    """The catalogue's key, as ``load_graph`` takes it: "cora"."""
    title: str
    """Display name: "Cora"."""
    graphs: tuple[Data, ...]
    num_features: int
    num_classes: int
    multi_label: bool
    split: str
    """The canonical text of the split in the masks, as ``parse_split`` reads it."""
    metric: str = "accuracy"
    """What results on it are published in: "accuracy" or "roc_auc"."""
    node_ids: tuple[str, ...] = field(default=(), repr=False)
    """Ids of the nodes, for a graph from your files; empty: nodes have numbers only."""
    class_names: tuple[str, ...] = ()
    """Names of the classes; empty: classes have numbers only."""
    feature_names: tuple[str, ...] = field(default=(), repr=False)
    reading: Mapping[str, Any] = field(default_factory=dict)
    """Reading options that differ from the defaults."""
    feature_plan: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """How columns became features, as plain values; empty if the features were given."""
    notes: tuple[str, ...] = field(default=(), repr=False)
    """Changes made to the graph while reading, one sentence each."""

    def check(self) -> None:
        """Refuse graphs that are not as described above; called before every use of a model."""
        for graph in self.graphs:
            self._check(graph)

    def _check(self, graph: Data) -> None:
        x, y, n = graph.x, graph.y, graph.num_nodes
        if not n:
            raise UserError(f"{self.title} has no nodes: expected one at least")
        if x.dim() == 2 and not x.size(1):
            raise UserError(
                f"x of {self.title} has no columns: give every node a feature, such as 1 "
                "(torch.ones(n, 1))"
            )
        if not x.is_floating_point():
            raise UserError(
                f"x of {self.title} holds {x.dtype} values: expected floating-point numbers; "
                f"convert it with x{'.real' if x.is_complex() else ''}.float()"
            )
        values = x if x.layout == torch.strided else x.to_sparse_csr().values()
        if values.numel():
            low, high = values.aminmax()  # NaN if any value is
            if not (low.isfinite() and high.isfinite()):
                raise UserError(
                    f"x of {self.title} holds NaN or infinite numbers: replace them, for example "
                    "with x.nan_to_num()"
                )
        shape = [n, self.num_classes] if self.multi_label else [n]
        if list(y.shape) != shape or (y.dim() == 1 and (y.is_floating_point() or y.is_complex())):
            wanted = "0 and 1" if self.multi_label else "class numbers, such as torch.int64"
            raise UserError(
                f"y of {self.title} has shape {list(y.shape)} and type {y.dtype}: expected {shape} "
                f"{wanted}"
            )
        used = torch.zeros(n, dtype=torch.uint8)
        for name in ("train_mask", "val_mask", "test_mask"):
            mask = graph[name]
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool or list(mask.shape) != [n]:
                given = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else mask
                raise UserError(
                    f"{name} of {self.title} is {given}: expected torch.bool [{n}]; for numbers "
                    "of nodes, mask = torch.zeros(n, dtype=torch.bool) and mask[numbers] = True"
                )
            used += mask.cpu()
        if int(used.max()) > 1:
            raise UserError(
                f"the masks of {self.title} overlap in {int((used > 1).sum())} nodes: every node "
                "is in one of train_mask, val_mask and test_mask at most"
            )

    def check_labels(self) -> None:
        """Refuse training and validation nodes without a class; test labels are not read."""
        for graph in self.graphs:
            for name in ("train_mask", "val_mask"):
                y = graph.y[graph[name]]
                if not y.numel():
                    continue
                if y.dim() == 2:
                    if not bool(((y == 0) | (y == 1)).all()):
                        raise UserError(
                            f"y of {self.title} has labels other than 0 and 1 in {name}: expected "
                            "1 where a node has the label, 0 where it has not"
                        )
                elif not 0 <= int(y.min()) <= int(y.max()) < self.num_classes:
                    raise UserError(
                        f"{name} of {self.title} has nodes with the classes {int(y.min())} to "
                        f"{int(y.max())}: expected 0 to {self.num_classes - 1}; leave unlabelled "
                        "nodes, -1, out of the masks"
                    )

    @property
    def num_nodes(self) -> int:
        """Total over all graphs."""
        return sum(graph.num_nodes for graph in self.graphs)

    @property
    def has_edge_weights(self) -> bool:
        return any(graph.edge_weight is not None for graph in self.graphs)

    @property
    def num_edge_features(self) -> int:
        """Width of ``edge_attr``; 0 without edge features."""
        edge_attr = self.graphs[0].edge_attr
        return 0 if edge_attr is None else int(edge_attr.shape[1])

    @property
    def graph(self) -> Data:
        """The only graph; a :class:`UserError` if there are several."""
        if len(self.graphs) != 1:
            raise UserError(f"{self.title} has {len(self.graphs)} graphs: iterate over its .graphs")
        return self.graphs[0]
