"""What a model has to beat: scores on validation nodes that take no training."""

from __future__ import annotations

import torch

from deepgat.analysis.metrics import score
from deepgat.data import NodeDataset
from deepgat.models import LabelPropagation

HOPS = 2
LARGEST_CLASS, PROPAGATION = "the largest class", "label propagation"


def baseline_scores(data: NodeDataset, metric: str) -> dict[str, float]:
    """Name → score of the largest class and, on one graph, of label propagation.

    Independent labels have no baselines.
    """
    if data.multi_label:
        return {}
    labels = torch.cat([graph.y[graph.val_mask] for graph in data.graphs])
    counts = torch.zeros(data.num_classes)
    for graph in data.graphs:
        counts += torch.bincount(graph.y[graph.train_mask], minlength=data.num_classes)
    shares = {LARGEST_CLASS: (counts / counts.sum()).expand(len(labels), -1)}
    if len(data.graphs) == 1:
        graph = data.graph
        propagate = LabelPropagation(HOPS, data.num_classes)
        spread = propagate(graph.edge_index, graph.y, graph.train_mask)
        shares[PROPAGATION] = spread[graph.val_mask].float()
    return {
        name: score(metric, each.clamp(min=1e-9).log(), labels, False)
        for name, each in shares.items()
    }
