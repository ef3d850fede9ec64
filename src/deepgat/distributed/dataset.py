"""The data of one process of a team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch_geometric.data import Data

from deepgat.data import NodeDataset, PropagateLabels
from deepgat.data.tables.label_lists import HOPS
from deepgat.data.transforms import SPLITS
from deepgat.distributed.partition import owners
from deepgat.distributed.parts import GraphPart, cut
from deepgat.distributed.team import Team
from deepgat.errors import UserError

LABEL_HOPS = HOPS
"""Hops of propagated labels that a part stores; no preset uses more."""
SHARED = (
    "name", "title", "num_features", "num_classes", "multi_label", "split",
    "class_names", "feature_names", "reading", "feature_plan",
)  # fmt: skip
"""Fields that a dataset and its parts have in common."""


@dataclass(frozen=True)
class PartDataset:
    """One part of every graph of a dataset; the other fields are as in ``NodeDataset``.

    The label features of a part are z_1 … z_3 with ``"neighbor-counts"`` in z_1.
    """

    name: str
    title: str
    parts: tuple[GraphPart, ...]
    number: int
    """Index of the part, from 0."""
    of: int
    """Number of parts."""
    num_features: int
    num_classes: int
    multi_label: bool
    split: str
    node_ids: tuple[str, ...] = field(default=(), repr=False)
    """Of the whole graph, in the first process; empty elsewhere."""
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = field(default=(), repr=False)
    reading: Mapping[str, Any] = field(default_factory=dict)
    feature_plan: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def num_nodes(self) -> int:
        """Total over all graphs, with all their parts."""
        return sum(part.num_nodes for part in self.parts)

    @property
    def has_edge_weights(self) -> bool:
        return any(part.edge_weight is not None for part in self.parts)

    @property
    def num_edge_features(self) -> int:
        """Width of ``edge_attr``; 0 without edge features."""
        edge_attr = self.parts[0].edge_attr
        return 0 if edge_attr is None else edge_attr.size(1)


def cut_dataset(
    dataset: NodeDataset, all_owners: list[torch.Tensor], number: int, of: int
) -> PartDataset:
    """Part ``number`` of a dataset; ``all_owners`` has the owner of each node, per graph."""
    propagate = None
    if not dataset.multi_label:
        propagate = PropagateLabels(LABEL_HOPS, "neighbor-counts", num_classes=dataset.num_classes)
    parts = []
    for graph, owner in zip(dataset.graphs, all_owners, strict=True):
        z = None if propagate is None else propagate(graph).label_features
        parts.append(cut(graph, owner, number, of, z))
    return PartDataset(
        parts=tuple(parts),
        number=number,
        of=of,
        node_ids=dataset.node_ids,
        **{name: getattr(dataset, name) for name in SHARED},
    )


def part_of(dataset: NodeDataset | PartDataset, team: Team) -> PartDataset:
    """This process's part of the data; the first process computes the partition."""
    if isinstance(dataset, NodeDataset):
        found = []
        for graph in dataset.graphs:
            owner = torch.zeros(graph.num_nodes, dtype=torch.long)
            if team.rank == 0:
                owner = owners(graph.edge_index, graph.num_nodes, team.size)
            found.append(team.from_first(owner))
        return cut_dataset(dataset, found, team.rank, team.size)
    if dataset.of != team.size:
        raise UserError(
            f"{dataset.title} is partitioned for {dataset.of} processes but there are {team.size}: "
            f"start {dataset.of}, or partition it into {team.size} parts"
        )
    return dataset


def whole_labels(dataset: PartDataset, team: Team) -> NodeDataset | None:
    """Labels and masks of all nodes, without features and edges, in the first process."""
    graphs = []
    for part in dataset.parts:
        names = ("y", *SPLITS)
        mine = {"y": part.y, **part.masks}
        ids = team.to_first(part.ids[: part.own])
        found = {name: team.to_first(mine[name]) for name in names}
        if team.rank:
            continue
        place = torch.argsort(torch.cat(ids).cpu())
        graph = Data(y=torch.cat(found["y"]).cpu()[place], num_nodes=part.num_nodes)
        for name in SPLITS:
            graph[f"{name}_mask"] = torch.cat(found[name]).cpu()[place]
        graphs.append(graph)
    if team.rank:
        return None
    return NodeDataset(
        graphs=tuple(graphs),
        node_ids=dataset.node_ids,
        **{name: getattr(dataset, name) for name in SHARED},
    )
