"""Datasets that train in milliseconds."""

import torch
from torch_geometric.data import Data

from deepgat.data import NodeDataset, SplitNodes, csbm_graph


def tiny_dataset(nodes: int = 60, split: str = "random:0:5/5", sparse: bool = False) -> NodeDataset:
    """Three classes, one graph; the rest of the nodes test."""
    graph = SplitNodes(split)(csbm_graph(nodes, 3, 6, degree=5, separation=2.0))
    if sparse:
        graph.x = (graph.x * (graph.x > 0.5)).to_sparse_csr()
    return NodeDataset("csbm", "Tiny", (graph,), 6, 3, False, split)


def tiny_labels(graphs: int = 4) -> NodeDataset:
    """Several graphs of four independent labels each: all train but the last two (val, test)."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(5, 4, generator=generator)
    made = []
    for number in range(graphs):
        n = 12 + number
        x = torch.randn(n, 5, generator=generator)
        part = {graphs - 2: "val", graphs - 1: "test"}.get(number, "train")
        made.append(
            Data(
                x=x,
                edge_index=torch.randint(n, (2, 3 * n), generator=generator),
                y=(x @ truth > 0).float(),
                **{f"{name}_mask": torch.full((n,), name == part) for name in PARTS},
            )
        )
    return NodeDataset("labels", "Tiny labels", tuple(made), 5, 4, True, "public")


PARTS = ("train", "val", "test")
