"""Assembles and checks your graph, and turns it into a :class:`NodeDataset` with a split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

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
from deepgat.data.tables.columns import Table
from deepgat.data.tables.edges import Edges
from deepgat.data.tables.feature_file import FeatureFile
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.data.tables.plan import FeaturePlan
from deepgat.data.transforms import MASKS, require_nodes
from deepgat.errors import UserError, counted, unknown_name

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


class Labels(NamedTuple):
    """The labels of n nodes of C classes."""

    y: Tensor
    """[n] class numbers, −1 for "unlabelled"; [n, C] of 0 and 1 with several labels per node."""
    names: tuple[str, ...]
    labelled: np.ndarray
    """[n] bool."""

    @staticmethod
    def none(nodes: int) -> Labels:
        return Labels(torch.full((nodes,), -1), (), np.zeros(nodes, dtype=bool))

    @staticmethod
    def of_codes(codes: np.ndarray, texts: Sequence[str], place: Callable[[int], str]) -> Labels:
        """From numbers [n] of texts, −1 for "unlabelled"; semicolons separate several labels.

        ``place`` says where a row is.
        """
        parts = [[part.strip() for part in text.split(";")] for text in texts]
        for code, found in enumerate(parts):
            if len(found) > 1 and not all(found):
                raise UserError(
                    f"{place(int((codes == code).argmax()))}: there is an empty label between "
                    "semicolons; remove it"
                )
        names = _in_order({part for found in parts for part in found})
        rank = {text: number for number, text in enumerate(names)}
        if all(len(found) == 1 for found in parts):
            numbers = np.array([rank[text] for (text,) in parts] + [-1], dtype=np.int64)
            return Labels(torch.from_numpy(numbers[codes]), tuple(names), codes >= 0)
        if len(names) * len(codes) > 2**31:
            raise UserError(
                f"{place(0)}: {len(names):,} different labels are too many for {len(codes):,} "
                "nodes; keep the frequent ones"
            )
        table = torch.zeros(len(parts) + 1, len(names))
        for code, found in enumerate(parts):
            table[code, [rank[part] for part in found]] = 1.0
        return Labels(table[torch.tensor(codes, dtype=torch.long)], tuple(names), codes >= 0)

    @staticmethod
    def several(y: np.ndarray, where: str, names: Sequence[str] = ()) -> Labels:
        """From labels [n, C] of 0 and 1; a node without any is unlabelled."""
        if not np.isin(y, (0, 1)).all():
            raise UserError(f"{where}: labels of two dimensions must be 0 or 1, a column per label")
        titles = tuple(names) or tuple(map(str, range(y.shape[1])))
        if len(titles) != y.shape[1]:
            raise UserError(
                f"{where}: {len(titles)} class_names for {y.shape[1]} columns of labels"
            )
        return Labels(torch.from_numpy(y.astype(np.float32)), titles, (y != 0).any(axis=1))


def own_graph(
    name: str,
    title: str,
    ids: Sequence[str],
    nodes: Table | None,
    edges: Edges,
    options: ReadOptions,
    *,
    header: Sequence[str] = (),
    x: Tensor | None = None,
    labels: Labels | None = None,
    masks: Tensor | None = None,
    store: FeatureFile | None = None,
) -> OwnGraph:
    """Check the node columns and turn them into features, labels and masks.

    Args:
        name: see :class:`OwnGraph`; so are ``title``, ``ids``, ``edges`` and ``options``.
        nodes: the columns of the nodes but the ids.
        header: the names of all columns of the nodes, dropped ones too.
        x: features from elsewhere, such as an .npz file; so are ``labels`` and ``masks``.
        store: where features are kept, if they may not fit into memory.
    """
    n = len(ids)
    if not n:
        raise UserError(f"{title} has no nodes: expected at least one")
    known = {item.lower() for item in header} | set(edges.columns)
    for item in sorted({item.lower() for item in listed(options.drop)} - known):
        if options.plan is None:  # columns that a model ignores may be missing
            raise unknown_name("column to drop", item, known)
    notes = _edge_notes(edges, options)
    columns: Iterator[FeatureBlock] = iter(())
    if nodes is not None:
        labels = _labels(nodes, options.label)
        masks = _masks(nodes, options.part)
        columns = column_blocks(nodes, options, notes)
    labels = Labels.none(n) if labels is None else labels
    if masks is not None:
        wrong = np.flatnonzero(masks.any(0).numpy() & ~labels.labelled)
        if len(wrong):
            where = title if nodes is None else nodes.at(int(wrong[0]), options.part)
            raise UserError(
                f"{where}: a node without a label is given to "
                f"{MASKS[int(masks[:, wrong[0]].int().argmax())].removesuffix('_mask')}; leave its "
                "cell empty, or give it a label"
            )
        masks = masks if bool(masks.any()) else None
    blocks = [
        block if store is None else store.keep(block)
        for block in chain(columns, structure_blocks(edges.index, n, options))
    ]
    names = tuple(text for block in blocks for text in block.plan.names)
    if store is not None:
        x = torch.zeros(1, 1).expand(n, len(names))
    elif x is None:
        x = joined(blocks, n)
    else:
        names = (*(f"x{i}" for i in range(x.shape[1])), *names)
        x = torch.cat([x.to_dense(), joined(blocks, n).to_dense()], dim=1) if blocks else x
    if gone := int((~labels.labelled).sum()):
        notes.append(f"{gone:,} of {n:,} nodes have no label: they are in no split")
    return OwnGraph(
        name, title, ids, blocks, x, names, labels.y, labels.labelled, labels.names, masks, edges,
        options, tuple(notes),
    )  # fmt: skip


def _columns(graph: OwnGraph) -> str:
    """The columns that became features, for a sentence that misses one."""
    names = [block.plan.name for block in graph.blocks]
    if not names:
        return ""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f" (there are {', '.join(names[:8])}{more})"


def to_dataset(graph: OwnGraph, split: str | Split | None = None) -> NodeDataset:
    """The graph with its own split, or with a random one; a note reports the default split.

    A graph that was read with the plan of a model may have no labels, or too few for a split. The
    nodes concerned are then in no mask.
    """
    lenient = split is None and graph.options.plan is not None
    if not graph.class_names and not lenient:
        raise UserError(
            f"{graph.title} has no labels: add a column {graph.options.label!r} to its nodes, or "
            f"name the column with label=…{_columns(graph)}"
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
        elif wanted.kind != "fractions":
            labels = graph.y  # which draw_masks refuses
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
            f"{others}, but the split {str(split)!r} needs {least} of every class: choose a "
            "smaller split, add a column named split, or read with rare=unlabel"
        )
    gone = torch.tensor([name in small for name in graph.class_names])
    y = graph.y.clone()
    y[(y >= 0) & gone[y.clamp(min=0)]] = -1
    nodes = sum(small.values())
    classes, all_nodes = counted(len(small), "class", "classes"), counted(nodes, "node")
    return y, [f"{classes} with fewer than {least} nodes, {all_nodes} in all: made unlabelled "
               "(rare=unlabel)"]  # fmt: skip


def _labels(nodes: Table, name: str) -> Labels:
    column = nodes.find(name)
    if column is None:
        return Labels.none(nodes.rows)
    column = column.as_texts()
    return Labels.of_codes(column.codes, column.texts, lambda row: nodes.at(row, column.name))


def _in_order(texts: Any) -> list[str]:
    """Sort integers by value, everything else alphabetically."""
    found = list(texts)
    if all(text.isascii() and text.lstrip("-").isdigit() and len(text) < 19 for text in found):
        return sorted(found, key=lambda text: (int(text), text))
    return sorted(found)


def _masks(nodes: Table, name: str) -> Tensor | None:
    """[3, n] bool: the nodes of each part of the split."""
    column = nodes.find(name)
    if column is None:
        return None
    column = column.as_texts()
    meaning = []
    for code, text in enumerate(column.texts):
        if text.lower() not in PARTS:
            row = int((column.codes == code).argmax())
            raise UserError(
                f"{nodes.at(row, column.name)}: {text[:40]!r} is not part of a split; write train, "
                "val or test, or leave the cell empty"
            )
        meaning.append(PARTS[text.lower()])
    part = np.array([*meaning, -1])[column.codes]
    return torch.from_numpy(np.stack([part == number for number in range(3)]))


def _edge_notes(edges: Edges, options: ReadOptions) -> list[str]:
    notes = []
    if edges.weightless:
        notes.append(f"{counted(edges.weightless, 'edge')} of weight 0 ignored")
    if edges.duplicates:
        how = " (weights added, features averaged)" if edges.weight is not None else ""
        notes.append(f"{counted(edges.duplicates, 'repeated edge')} merged{how}")
    if edges.self_loops:
        notes.append(
            f"{counted(edges.self_loops, 'self-loop')}: the models have one at every node anyway"
        )
    if edges.one_way:
        if options.undirected:
            notes.append(
                f"made undirected: {edges.one_way:,} edges that were given one way only now run "
                "both ways"
            )
        else:
            notes.append(f"directed: {edges.one_way:,} edges run one way only")
    return notes
