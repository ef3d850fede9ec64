"""The parts of a dataset: the data that each process of a team needs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data import NodeDataset, PropagateLabels
from deepgat.data.tables.label_lists import HOPS
from deepgat.data.transforms import MASKS
from deepgat.distributed.partition import owners
from deepgat.distributed.team import Team
from deepgat.errors import UserError


@dataclass(frozen=True, kw_only=True)
class PartDataset(NodeDataset):
    """One part of every graph of a dataset (:func:`cut`).

    ``node_ids`` are those of the whole graph in the first process, and empty elsewhere.
    """

    number: int
    """Index of the part, from 0."""
    of: int
    """Number of parts."""


def cut(
    graph: Data, owner: Tensor, part: int, parts: int, label_features: Tensor | None = None
) -> Data:
    """One of k parts of a graph: the nodes that it owns and all their in-neighbours.

    Args:
        graph: the whole graph.
        owner: [n] int64, the part that owns each node.
        part, parts: the number of this part, and k.
        label_features: [n, hops, C].

    Own nodes come first, sorted by their number in the whole graph. The *halo*, in-neighbours that
    other parts own, follows, sorted by owner and number. The result has, beside ``y``, the masks,
    ``label_features`` [own, …] and ``x`` [own, d], dense or ``torch.sparse_csr``:

    - ``own``: number of own nodes; ``num_nodes``: n of the whole graph;
    - ``ids``: [own + halo] int64, numbers in the whole graph;
    - ``halo_counts``: [k] int64, number of halo nodes that each part owns;
    - ``edge_index``: [2, e] int64; sources are own or halo nodes, targets own nodes; with
      ``edge_weight`` [e] and ``edge_attr`` [e, edge_dim] where the graph has them.
    """
    mine = owner == part
    own = mine.nonzero().view(-1)
    source, target = graph.edge_index
    inward = mine[target]
    source, target = source[inward], target[inward]
    halo = torch.unique(source[~mine[source]])
    halo = halo[torch.argsort(owner[halo], stable=True)]
    ids = torch.cat([own, halo])
    place = torch.full_like(owner, -1)
    place[ids] = torch.arange(ids.numel())
    found = Data(
        own=own.numel(),
        num_nodes=owner.numel(),
        ids=ids,
        halo_counts=torch.bincount(owner[halo], minlength=parts),
        edge_index=torch.stack([place[source], place[target]]),
        x=_rows(graph.x, own),
        y=graph.y[own],
        **{name: graph[name][own] for name in MASKS},
    )
    if label_features is not None:
        found.label_features = label_features[own]
    for name in ("edge_weight", "edge_attr"):
        if name in graph:
            found[name] = graph[name][inward]
    return found


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    if x.layout == torch.strided:
        return x[rows]
    return x.to_sparse_coo().index_select(0, rows).coalesce().to_sparse_csr()


def cut_dataset(
    dataset: NodeDataset, all_owners: list[Tensor], number: int, of: int
) -> PartDataset:
    """Part ``number`` of a dataset; ``all_owners`` has the owner of each node, per graph.

    The label features of a part are z_1 … z_3 with ``"neighbor-counts"`` in z_1.
    """
    parts = []
    for graph, owner in zip(dataset.graphs, all_owners, strict=True):
        z = None
        if not dataset.multi_label:
            propagate = PropagateLabels(HOPS, "neighbor-counts", num_classes=dataset.num_classes)
            z = propagate(graph).label_features
        parts.append(cut(graph, owner, number, of, z))
    return PartDataset(**_fields(dataset) | {"graphs": tuple(parts)}, number=number, of=of)


def part_of(dataset: NodeDataset, team: Team) -> PartDataset:
    """This process's part of the data; the first process computes the partition."""
    if not isinstance(dataset, PartDataset):
        found = []
        for graph in dataset.graphs:
            owner = torch.zeros(graph.num_nodes, dtype=torch.long)
            if team.rank == 0:
                owner = owners(graph.edge_index, graph.num_nodes, team.size)
            found.append(team.broadcast(owner))
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
    for part in dataset.graphs:
        ids = team.gather_to_first(part.ids[: part.own])
        found = {name: team.gather_to_first(part[name]) for name in ("y", *MASKS)}
        if team.rank == 0:
            place = torch.argsort(torch.cat(ids).cpu())
            whole = {name: torch.cat(rows).cpu()[place] for name, rows in found.items()}
            graphs.append(Data(num_nodes=part.num_nodes, **whole))
    if team.rank:
        return None
    return NodeDataset(**_fields(dataset) | {"graphs": tuple(graphs)})


def _fields(dataset: NodeDataset) -> dict[str, Any]:
    return {item.name: getattr(dataset, item.name) for item in fields(NodeDataset)}
