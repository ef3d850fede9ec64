"""Assembles and checks your graph, and turns it into a :class:`NodeDataset` with a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data.dataset import NodeDataset
from deepgat.data.splits import Split, draw_masks, parse_split
from deepgat.data.tables.column_features import (
    FeatureBlock,
    column_blocks,
    joined,
    structure_blocks,
)
from deepgat.data.tables.columns import Column, Columns
from deepgat.data.tables.edges import Edges
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.data.tables.plan import FeaturePlan
from deepgat.data.transforms import MASKS, require_nodes
from deepgat.errors import UserError, unknown_name

PARTS = {
    "train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2,
    "": -1, "none": -1, "unused": -1,
}  # fmt: skip
"""The values allowed in the split column."""
DEFAULT_SPLIT = "fractions:0.6/0.2:0"


@dataclass(frozen=True, eq=False)
class OwnGraph:
    """A graph as it was read, with n nodes and C classes."""

    name: str
    """Its path, as ``load_graph`` takes it; empty for a graph made in Python."""
    title: str
    ids: Sequence[str]
    blocks: Sequence[FeatureBlock]
    x: Tensor
    feature_names: tuple[str, ...]
    y: Tensor
    """[n] class numbers, −1 for "unlabelled"; [n, C] of 0 and 1 with several labels per node."""
    labelled: np.ndarray
    """[n] bool."""
    class_names: tuple[str, ...]
    masks: Tensor | None
    """[3, n] bool: train, val, test; None if the graph comes without a split."""
    edges: Edges
    options: ReadOptions
    notes: tuple[str, ...] = field(default=())
    """Changes made to the graph while reading, one sentence each."""

    @property
    def multi_label(self) -> bool:
        return self.y.dim() == 2

    @property
    def class_sizes(self) -> dict[str, int]:
        if self.multi_label:
            counts = self.y.sum(0).long()
        else:
            counts = torch.bincount(self.y[self.y >= 0], minlength=len(self.class_names))
        return dict(zip(self.class_names, counts.tolist(), strict=True))

    def data(self) -> Data:
        """The graph as a PyG object, without masks."""
        index = self.edges.index
        graph = Data(x=self.x, edge_index=torch.from_numpy(np.ascontiguousarray(index)), y=self.y)
        if self.edges.weight is not None:
            graph.edge_weight = torch.from_numpy(self.edges.weight)
        if self.edges.features is not None:
            graph.edge_attr = torch.from_numpy(self.edges.features)
        return graph


def own_graph(
    name: str,
    title: str,
    ids: Sequence[str],
    nodes: Columns,
    edges: Edges,
    options: ReadOptions,
    *,
    x: Tensor | None = None,
    notes: Sequence[str] = (),
) -> OwnGraph:
    """Check the node columns and turn them into features, labels and masks.

    ``x`` are features from elsewhere, such as an .npz file.
    """
    if not len(ids):
        raise UserError(f"{nodes.name} has no nodes: expected at least one")
    dropped = {item.lower() for item in listed(options.drop)}
    known = {*(item.name.lower() for item in nodes.columns), *edges.columns}
    for item in sorted(dropped - known):
        if options.plan is None:  # columns that a model ignores may be missing
            raise unknown_name("column to drop", item, known)
    kept = [item for item in nodes.columns if item.name.lower() not in dropped]
    nodes = replace(nodes, columns=kept)
    y, class_names, labelled = _labels(nodes, options.label)
    masks = _masks(nodes, options.part, labelled)
    special = {item.lower() for item in (options.id, options.label, options.part)}
    columns = [item for item in kept if item.name.lower() not in special]
    blocks, more = column_blocks(nodes, columns, options)
    blocks += structure_blocks(edges.index, len(ids), options)
    names: tuple[str, ...]
    if x is None and not blocks:
        x, names = torch.zeros(len(ids), 0), ()
    elif x is None:
        x, names = joined(blocks, len(ids))
    elif blocks:
        more_x, names = joined(blocks, len(ids))
        names = (*(f"x{i}" for i in range(x.shape[1])), *names)
        x = torch.cat([x.to_dense(), more_x.to_dense()], dim=1)
    else:
        names = tuple(f"x{i}" for i in range(x.shape[1]))
    said = [*notes, *_edge_notes(edges, options), *more]
    if gone := int((~labelled).sum()):
        said.append(f"{gone:,} of {len(ids):,} nodes have no label: they are in no split")
    return OwnGraph(
        name, title, ids, blocks, x, names, y, labelled, class_names, masks, edges, options,
        tuple(said),
    )  # fmt: skip


def to_dataset(graph: OwnGraph, split: str | Split | None = None) -> NodeDataset:
    """The graph with its own split, or with a random one; a note reports the default split.

    A graph that was read with the plan of a model may have no labels, or too few for a split. The
    nodes concerned are then in no mask.
    """
    lenient = split is None and graph.options.plan is not None
    if not graph.class_names and not lenient:
        raise UserError(
            f"{graph.title} has no labels: add a column {graph.options.label!r} to its nodes, or "
            "name the column with label=…"
        )
    if not graph.x.shape[1]:
        raise UserError(
            f"{graph.title} has no features: add columns to its nodes, or ask for structural "
            "features with structure=degree,pagerank,spectral"
        )
    notes = list(graph.notes)
    if lenient and not graph.class_names:
        split = "public"
        graph = replace(graph, masks=torch.zeros(len(MASKS), len(graph.ids), dtype=torch.bool))
    elif lenient:
        graph = replace(graph, options=replace(graph.options, rare="unlabel"))
    if split is None:
        split = "public" if graph.masks is not None else DEFAULT_SPLIT
        if graph.masks is None:
            notes.append(
                f"{graph.title} comes without a split: 60% of every class train, 20% validate and "
                f"20% test (split {DEFAULT_SPLIT})"
            )
    wanted = parse_split(split) if isinstance(split, str) else split
    data = graph.data()
    if wanted.kind in ("public", "stored"):
        if graph.masks is None or wanted.kind == "stored":
            choices = "has no stored splits" if graph.masks is not None else "comes without a split"
            raise UserError(
                f"{graph.title} {choices}, so it has no split {str(wanted)!r}: random:SEED or "
                "fractions:TRAIN/VAL draw one"
            )
        masks = graph.masks
    else:
        labels, more = _large_classes(graph, wanted)
        notes += more
        if not graph.multi_label:
            data.y = labels
            masks = torch.stack(draw_masks(wanted, labels))
        elif wanted.kind != "fractions":
            masks = torch.stack(draw_masks(wanted, graph.y))  # raises an error
        else:
            masks = torch.stack(draw_masks(wanted, labels))
    for key, mask in zip(MASKS, masks, strict=True):
        data[key] = mask
    if not lenient:
        require_nodes([data], wanted, graph.title)
    return NodeDataset(
        name=graph.name,
        title=graph.title,
        graphs=(data,),
        num_features=graph.x.shape[1],
        num_classes=len(graph.class_names),
        multi_label=graph.multi_label,
        split=str(wanted),
        node_ids=tuple(graph.ids),
        class_names=graph.class_names,
        feature_names=graph.feature_names,
        reading=graph.options.changes(),
        feature_plan=FeaturePlan(tuple(block.plan for block in graph.blocks)).plain(),
        notes=tuple(notes),
    )


def _large_classes(graph: OwnGraph, split: Split) -> tuple[Tensor, list[str]]:
    """Labels [n] of the classes that are large enough for a split, and notes for the user.

    With several labels per node, all labelled nodes form one class.
    """
    if graph.multi_label:
        return torch.from_numpy(np.where(graph.labelled, 0, -1)), []
    per_class = split.kind != "fractions"
    least = int(split.train) + int(split.val) + 1 if per_class else 3
    small = {name: size for name, size in graph.class_sizes.items() if 0 < size < least}
    if not small:
        return graph.y, []
    name, size = min(small.items(), key=lambda item: (item[1], item[0]))
    others = f" and {len(small) - 1} more classes are as small" if len(small) > 1 else ""
    if graph.options.rare == "refuse":
        raise UserError(
            f"{graph.title}: the class {name[:40]!r} has {size} node{'s' if size > 1 else ''}"
            f"{others}, but the split {str(split)!r} needs {least} of every class; ask for fewer, "
            "give a column split, or read with rare=unlabel"
        )
    gone = torch.tensor([name in small for name in graph.class_names])
    y = graph.y.clone()
    y[(y >= 0) & gone[y.clamp(min=0)]] = -1
    nodes = sum(small.values())
    return y, [f"{len(small)} classes with fewer than {least} nodes, {nodes:,} nodes in all, were "
               "made unlabelled (rare=unlabel)"]  # fmt: skip


def _labels(nodes: Columns, name: str) -> tuple[Tensor, tuple[str, ...], np.ndarray]:
    column = nodes.find(name)
    if column is None:
        return torch.full((nodes.rows,), -1), (), np.zeros(nodes.rows, dtype=bool)
    column = column.as_texts()
    assert column.codes is not None
    labelled = column.codes >= 0
    if column.labels or any(";" in text for text in column.texts):
        return *_several_labels(nodes, column), labelled
    names = _in_order(column.texts)
    rank = {text: number for number, text in enumerate(names)}
    table = np.array([rank[text] for text in column.texts] + [-1], dtype=np.int64)
    return torch.from_numpy(table[column.codes]), tuple(names), labelled


def _several_labels(nodes: Columns, column: Column) -> tuple[Tensor, tuple[str, ...]]:
    assert column.codes is not None
    parts = [[part.strip() for part in text.split(";")] for text in column.texts]
    for code, found in enumerate(parts):
        if not all(found):
            row = int((column.codes == code).argmax())
            raise UserError(
                f"{nodes.at(row, column.name)}: there is an empty label between semicolons; "
                "remove it"
            )
    names = list(column.labels) or _in_order({part for found in parts for part in found})
    if len(names) * nodes.rows > 2**31:
        raise UserError(
            f"{nodes.name}, column {column.name!r}: {len(names):,} different labels are too many "
            f"for {nodes.rows:,} nodes; keep the frequent ones"
        )
    rank = {text: number for number, text in enumerate(names)}
    table = torch.zeros(len(parts) + 1, len(names))
    for code, found in enumerate(parts):
        table[code, [rank[part] for part in found]] = 1.0
    return table[torch.from_numpy(column.codes).long()], tuple(names)


def _in_order(texts: Any) -> list[str]:
    """Sort integers by value, everything else alphabetically."""
    found = list(texts)
    if all(text.isascii() and text.lstrip("-").isdigit() and len(text) < 19 for text in found):
        return sorted(found, key=lambda text: (int(text), text))
    return sorted(found)


def _masks(nodes: Columns, name: str, labelled: np.ndarray) -> Tensor | None:
    column = nodes.find(name)
    if column is None:
        return None
    column = column.as_texts()
    assert column.codes is not None
    meaning = []
    for code, text in enumerate(column.texts):
        if text.strip().lower() not in PARTS:
            row = int((column.codes == code).argmax())
            raise UserError(
                f"{nodes.at(row, column.name)}: {text[:40]!r} is not part of a split; write train, "
                "val or test, or leave the cell empty"
            )
        meaning.append(PARTS[text.strip().lower()])
    part = np.array([*meaning, -1])[column.codes]
    wrong = np.flatnonzero((part >= 0) & ~labelled)
    if len(wrong):
        raise UserError(
            f"{nodes.at(int(wrong[0]), column.name)}: a node without a label is given to "
            f"{column.texts[column.codes[wrong[0]]]}; leave its cell empty, or give it a label"
        )
    if not (part >= 0).any():
        return None
    return torch.from_numpy(np.stack([part == number for number in range(3)]))


def _edge_notes(edges: Edges, options: ReadOptions) -> list[str]:
    notes = []
    if edges.weightless:
        notes.append(f"{edges.weightless:,} edges of weight 0 were ignored")
    if edges.duplicates:
        how = " (weights added, features averaged)" if edges.weight is not None else ""
        notes.append(f"{edges.duplicates:,} repeated edges were merged{how}")
    if edges.self_loops:
        notes.append(f"{edges.self_loops:,} self-loops: the models have one at every node anyway")
    if edges.one_way:
        if options.undirected:
            notes.append(
                f"made undirected: {edges.one_way:,} edges that were given one way only now run "
                "both ways"
            )
        else:
            notes.append(f"directed: {edges.one_way:,} edges run one way only")
    return notes
