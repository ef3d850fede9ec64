"""What can be known of a graph before training: labels, neighbours and features at a glance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from deepgat.data import NodeDataset

FEW_LABELS = 50
"""Up to so many training nodes per class on average are few."""
MANY_NEIGHBOURS = 20
FEW_COLUMNS = 32
"""Up to so many features tell little of a node by itself."""


@dataclass(frozen=True)
class Looks:
    """A graph at a glance; for several graphs, all their nodes together."""

    nodes: int
    edges: int
    features: int
    feature_kind: str
    """ "binary", "counts" (whole numbers), "shares" (rows that sum to 1) or "numbers"."""
    classes: int
    labels_per_class: float
    """Training nodes over classes."""
    labelled_share: float
    """Training nodes over nodes."""
    homophily: float | None
    """Share of edges between training nodes whose ends agree; None where there are too few."""
    chance: float
    """The share that would agree if labels were dealt out at random."""
    largest_class: float
    """Share of the training nodes that the largest class has."""
    uneven_scales: bool
    """Whether columns of numbers differ in scale so much that they must be normalised."""

    @property
    def few_labels(self) -> bool:
        return self.labels_per_class <= FEW_LABELS

    @property
    def poor_features(self) -> bool:
        return self.features <= FEW_COLUMNS

    @property
    def many_neighbours(self) -> bool:
        """Whether a layer or two already see much of the graph."""
        return self.edges > MANY_NEIGHBOURS * self.nodes

    @property
    def unlike_neighbours(self) -> bool:
        """Whether neighbours agree hardly more often than by chance."""
        return self.homophily is not None and self.homophily < self.chance + 0.2

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """The reasons for a choice, in words."""
        parts = [f"{self.labels_per_class:.0f} labels per class ({self.labelled_share:.0%} of all)"]
        if self.homophily is not None:
            parts.append(f"{self.homophily:.0%} of neighbours agree, {self.chance:.0%} by chance")
        return ", ".join([*parts, f"{self.features:,} features of {self.feature_kind}"])


def look_at(data: NodeDataset) -> Looks:
    """Labels of training nodes, edges and features; no other label is read."""
    agree = joined = trained = edges = 0
    sizes = torch.zeros(data.num_classes, dtype=torch.double)
    for graph in data.graphs:
        y, mask = graph.y, graph.train_mask
        trained += int(mask.sum())
        edges += graph.edge_index.size(1)
        if data.multi_label:
            sizes += y[mask].double().sum(0)
            continue
        sizes += torch.bincount(y[mask], minlength=data.num_classes)
        source, target = graph.edge_index
        known = mask[source] & mask[target] & (source != target)
        joined += int(known.sum())
        agree += int((y[source[known]] == y[target[known]]).sum())
    shares = sizes / sizes.sum().clamp(min=1)
    kind, uneven = _features(data.graphs[0].x)
    return Looks(
        data.num_nodes,
        edges,
        data.num_features,
        kind,
        data.num_classes,
        float(sizes.sum()) / max(data.num_classes, 1),
        trained / max(data.num_nodes, 1),
        agree / joined if joined >= 30 else None,
        float(shares.square().sum()),
        float(shares.max()) if len(shares) else 1.0,
        uneven,
    )


def _features(x: Tensor) -> tuple[str, bool]:
    """The kind of the numbers, and whether columns of numbers differ in scale."""
    some = _values(x).flatten()[: 2**20]
    if not len(some):
        return "binary", False
    if bool(((some == 0) | (some == 1)).all()):
        return "binary", False
    whole = bool((some >= 0).all())
    if whole and bool((some == some.round()).all()):
        large = float(some.max()) > 100
        return "counts", large and x.layout == torch.strided
    if x.layout != torch.strided:
        return "shares" if whole else "numbers", False
    rows = x[:4096]
    if whole and bool((rows.sum(1) - 1).abs().le(1e-3).float().mean() > 0.9):
        return "shares", False
    spread = x.float().std(0)
    spread = spread[spread > 0]
    uneven = len(spread) > 0 and not 0.05 < float(spread.min()) <= float(spread.max()) < 20
    return "numbers", uneven


def _values(x: Tensor) -> Tensor:
    return x if x.layout == torch.strided else x.to_sparse_csr().values()
