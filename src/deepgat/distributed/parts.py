"""One part of a graph: the data that one process needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data.transforms import SPLITS


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Some nodes of a graph and all their in-neighbours: one of k parts.

    Own nodes come first, sorted by their number in the whole graph. The halo follows, sorted by
    owner and number.

    Attributes:
        own: number of own nodes.
        num_nodes: n of the whole graph.
        ids: [own + halo] int64, numbers in the whole graph.
        halo_counts: [k] int64, number of halo nodes that each part owns.
        edge_index: [2, e] int64; sources are own or halo nodes, targets own nodes.
        x: [own, d], dense or ``torch.sparse_csr``.
        y: [own] or [own, C].
        masks: {"train", "val", "test"}: [own] bool.
        label_features: [own, hops, C], or None.
        edge_weight: [e] or None.
        edge_attr: [e, edge_dim] or None.
    """

    own: int
    num_nodes: int
    ids: Tensor
    halo_counts: Tensor
    edge_index: Tensor
    x: Tensor
    y: Tensor
    masks: dict[str, Tensor]
    label_features: Tensor | None = None
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None

    @property
    def halo(self) -> int:
        return self.ids.numel() - self.own


def cut(
    graph: Data, owner: Tensor, part: int, parts: int, label_features: Tensor | None = None
) -> GraphPart:
    """Part number ``part`` of a graph whose nodes have the owners ``owner`` [n] int64."""
    n = owner.numel()
    mine = owner == part
    own = mine.nonzero().view(-1)
    source, target = graph.edge_index
    inward = mine[target]
    source, target = source[inward], target[inward]
    halo = torch.unique(source[~mine[source]])
    halo = halo[torch.argsort(owner[halo], stable=True)]
    ids = torch.cat([own, halo])
    place = torch.full((n,), -1, dtype=torch.long)
    place[ids] = torch.arange(ids.numel())
    return GraphPart(
        own=own.numel(),
        num_nodes=n,
        ids=ids,
        halo_counts=torch.bincount(owner[halo], minlength=parts),
        edge_index=torch.stack([place[source], place[target]]),
        x=_rows(graph.x, own),
        y=graph.y[own],
        masks={name: graph[f"{name}_mask"][own] for name in SPLITS},
        label_features=None if label_features is None else label_features[own],
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[inward],
        edge_attr=None if graph.edge_attr is None else graph.edge_attr[inward],
    )


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    if x.layout == torch.strided:
        return x[rows]
    csr = x.to_sparse_csr() if x.layout != torch.sparse_csr else x
    numbers = (csr.values(), csr.col_indices(), csr.crow_indices())
    found = sp.csr_matrix(tuple(t.numpy() for t in numbers), shape=tuple(x.shape))[rows.numpy()]
    return torch.sparse_csr_tensor(
        torch.from_numpy(found.indptr.astype(np.int64)),
        torch.from_numpy(found.indices.astype(np.int64)),
        torch.from_numpy(found.data),
        found.shape,
        check_invariants=False,
    )
