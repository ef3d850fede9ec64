"""The graph in a model folder as a dataset, for what needs the whole graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.data.kept_graph import KeptGraph
from deepgat.data.transforms import MASKS
from deepgat.training.run import ModelCard


def kept_dataset(graph: KeptGraph, card: ModelCard) -> NodeDataset:
    """The kept graph in memory, with the names that the model gives to classes and features."""
    nodes = np.arange(graph.num_nodes)
    lists = graph.lists(nodes)
    index = np.stack([lists.source.astype(np.int64), np.repeat(nodes, lists.length)])
    part = np.asarray(graph.arrays["part"])
    data = Data(
        x=graph.features(nodes),
        edge_index=torch.from_numpy(index),
        y=torch.from_numpy(np.array(graph.arrays["y"])),
        **{name: torch.from_numpy(part == number) for number, name in enumerate(MASKS, start=1)},
    )
    if lists.log_weight is not None:
        data.edge_weight = torch.from_numpy(np.exp(lists.log_weight[:, 0]))
    if lists.features is not None:
        data.edge_attr = torch.from_numpy(np.array(lists.features))
    ids = graph.ids
    return NodeDataset(
        card.dataset,
        Path(card.dataset).name,  # the page shows it to people, whom no path concerns
        (data,),
        card.num_features,
        card.num_classes,
        card.multi_label,
        card.split,
        node_ids=() if ids is None else tuple(ids[number] for number in range(len(ids))),
        class_names=tuple(card.class_names),
        feature_names=tuple(card.feature_names),
    )
