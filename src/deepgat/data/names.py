"""What the nodes and classes of a graph are called, on the way out and on the way in."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from deepgat.data import NodeDataset
from deepgat.errors import UserError


@dataclass(frozen=True)
class Names:
    """Names of nodes and classes; empty where they go by their numbers."""

    nodes: Sequence[str] = ()
    classes: Sequence[str] = ()

    @staticmethod
    def of(dataset: NodeDataset) -> Names:
        """Those a user's own graph came with; a graph of the catalogue has numbers."""
        return Names(dataset.node_ids, dataset.class_names)

    def node(self, number: int) -> str:
        return self.nodes[number] if self.nodes else str(number)

    def label(self, number: int) -> str:
        return self.classes[number] if self.classes else str(number)

    def find(self, text: str, num_nodes: int) -> int:
        """The number of the node of this name."""
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
