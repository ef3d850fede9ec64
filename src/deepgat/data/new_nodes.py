"""Reads new nodes of a kept graph from tables: columns as in the training graph's files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepgat.data.grown_graph import NewNodes
from deepgat.data.kept_graph import KeptGraph
from deepgat.data.tables.column_features import column_blocks, joined
from deepgat.data.tables.columns import Source
from deepgat.data.tables.convert import frame_table, records_table
from deepgat.data.tables.edges import given_edges, merged
from deepgat.data.tables.folder import TABLES, open_edges, open_table
from deepgat.data.tables.nodes import read_nodes
from deepgat.data.tables.options import ReadOptions
from deepgat.data.tables.text import quoted
from deepgat.data.tables.vocabulary import Vocabulary
from deepgat.errors import UserError, counted


def read_new_nodes(
    graph: KeptGraph, nodes: Any, edges: Any = None, options: ReadOptions | None = None
) -> NewNodes:
    """New nodes with their edges, from tables with the columns of nodes.csv and edges.csv.

    Args:
        graph: the graph that they are added to; edges name its nodes by their ids.
        nodes, edges: a path (CSV or Parquet), a data frame, or a list of dictionaries.
        options: those that the graph was read with, and the plan of its features.
    """
    options = options or ReadOptions()
    notes: list[str] = []
    given = open_table(Path(nodes)) if _is_path(nodes) else _in_memory(nodes, "nodes")
    ids, table = read_nodes(given, options)
    for row, text in enumerate(ids.texts()):
        if graph.find(text) >= 0:
            raise UserError(
                f"{table.at(row, options.id)}: the id {quoted(text)} is a node of the graph "
                "already; give new nodes ids of their own"
            )
    blocks = list(column_blocks(table, options, notes))
    x = joined(blocks, len(ids))
    if table.find(options.label) is not None:
        notes.append(f"{table.name}: the column {options.label!r} of new nodes is not read")
    if edges is None or (isinstance(edges, list | tuple) and not edges):
        notes.append("there are no new edges: every new node is predicted from its features alone")
        index = torch.empty(2, 0, dtype=torch.long)
        return NewNodes(x, index, ids=tuple(ids.texts()), notes=tuple(notes))
    source = _edges(edges, options)
    known = _AllIds(graph, ids)
    n, total = graph.num_nodes, graph.num_nodes + len(ids)
    found = merged(given_edges(source, known, options), total, options.undirected, source.header)
    old = np.flatnonzero((found.index < n).all(0))
    if len(old):
        one, other = (quoted(graph.name(int(node))) for node in found.index[:, old[0]])
        raise UserError(
            f"{source.name} has an edge between {one} and {other}, which are both in the graph "
            "already: give edges of new nodes only"
        )
    if found.weightless:
        notes.append(f"{counted(found.weightless, 'edge')} of weight 0 ignored")
    if found.duplicates:
        notes.append(f"{counted(found.duplicates, 'repeated edge')} merged")
    return NewNodes(
        x,
        torch.from_numpy(np.ascontiguousarray(found.index)),
        None if found.weight is None else torch.from_numpy(found.weight),
        None if found.features is None else torch.from_numpy(found.features),
        tuple(ids.texts()),
        tuple(notes),
    )


def _in_memory(given: Any, name: str) -> Source:
    """A table from a data frame or a list of dictionaries; ``name`` is its name in errors."""
    if isinstance(given, Sequence) and all(isinstance(row, Mapping) for row in given):
        if not given:
            raise UserError(f"{name} is empty: expected a row for every one")
        return records_table(given, name)
    return frame_table(given, name)


def _is_path(given: Any) -> bool:
    return isinstance(given, str | os.PathLike)


def _edges(given: Any, options: ReadOptions) -> Source:
    if not _is_path(given):
        return _in_memory(given, "edges")
    path = Path(given)
    return open_table(path) if path.suffix.lower() in TABLES else open_edges(path, options)


class _AllIds(Vocabulary):
    """The ids of a kept graph and of new nodes, which have the numbers after it."""

    def __init__(self, graph: KeptGraph, new: Vocabulary) -> None:
        super().__init__()
        self.graph, self.new = graph, new

    def hashed(self) -> int:
        return 0

    def find(self, texts: Any) -> np.ndarray:
        found = np.array(self.new.find(texts), dtype=np.int64)
        found[found >= 0] += self.graph.num_nodes
        numbers: dict[str, int] = {}
        for row in np.flatnonzero(found < 0):
            text = texts[int(row)].as_py()
            if text not in numbers:
                numbers[text] = self.graph.find(text)
            found[row] = numbers[text]
        return found
