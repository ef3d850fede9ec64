"""What every model is trained on: labelled graphs whose masks say what each node is for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_geometric.data import Data

from deepgat.errors import UserError


@dataclass(frozen=True)
class NodeDataset:
    """One or many labelled graphs: masks say what each node is for.

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
    """As shown to people: "Cora"."""
    graphs: tuple[Data, ...]
    num_features: int
    num_classes: int
    multi_label: bool
    split: str
    """The canonical text of the split in the masks, as ``parse_split`` reads it."""
    node_ids: tuple[str, ...] = field(default=(), repr=False)
    """What the nodes of a user's own graph are called; empty: by their numbers."""
    class_names: tuple[str, ...] = ()
    """What its classes are called; empty: by their numbers."""
    feature_names: tuple[str, ...] = field(default=(), repr=False)
    reading: Mapping[str, Any] = field(default_factory=dict)
    """The options it was read with, where they are not the usual ones."""
    feature_plan: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """How its features were made of columns, as plain values; empty where they came ready."""
    notes: tuple[str, ...] = field(default=(), repr=False)
    """What was done to the graph when it was read, a sentence each."""

    @property
    def num_nodes(self) -> int:
        """Of all graphs together."""
        return sum(graph.num_nodes for graph in self.graphs)

    @property
    def has_edge_weights(self) -> bool:
        return any(graph.edge_weight is not None for graph in self.graphs)

    @property
    def num_edge_features(self) -> int:
        """Width of ``edge_attr``, 0 without it."""
        edge_attr = self.graphs[0].edge_attr
        return 0 if edge_attr is None else int(edge_attr.shape[1])

    @property
    def graph(self) -> Data:
        """The only graph; a :class:`UserError` when there are several."""
        if len(self.graphs) != 1:
            raise UserError(
                f"{self.title} has {len(self.graphs)} graphs: use its .graphs, one after another"
            )
        return self.graphs[0]
