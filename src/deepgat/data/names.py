"""Names of the nodes and classes of a graph, for output and input."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from deepgat.data import NodeDataset
from deepgat.errors import UserError


@dataclass(frozen=True)
class Names:
    """Names of nodes and classes; empty if they have numbers only."""

    nodes: Sequence[str] = ()
    classes: Sequence[str] = ()

    @staticmethod
    def of(dataset: NodeDataset) -> Names:
        """The names in a graph from your files; empty for a graph of the catalogue."""
        return Names(dataset.node_ids, dataset.class_names)

    def node(self, number: int) -> str:
        return self.nodes[number] if self.nodes else str(number)

    def label(self, number: int) -> str:
        return self.classes[number] if self.classes else str(number)

    def find(self, text: str, num_nodes: int) -> int:
        """The number of the node with this name."""
        if self.nodes:
            if text in self.nodes:
                return self.nodes.index(text)
            near = difflib.get_close_matches(text, self.nodes, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ": give one of its ids"
            raise UserError(f"the graph has no node {text!r}{hint}")
        if not text.isascii() or not text.isdigit() or int(text) >= num_nodes:
            raise UserError(
                f"the graph has no node {text!r}: its nodes are numbered from 0 to {num_nodes - 1}"
            )
        return int(text)
