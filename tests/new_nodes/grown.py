"""Graphs that grow, for tests: a graph, new nodes, and both as one graph."""

import numpy as np
import torch
from hypothesis import strategies as st
from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.data.grown_graph import GrownGraph, NewNodes
from deepgat.data.kept_graph import KeptGraph
from deepgat.models import LayerOutputs, Network
from deepgat.training.inputs import prepare
from deepgat.training.receptive_field import field_outputs

FEATURES, CLASSES = 5, 3


def dataset_of(graph: Data) -> NodeDataset:
    multi = graph.y.dim() == 2
    return NodeDataset("grown", "Grown", (graph,), graph.x.shape[1], CLASSES, multi, "public")


def pieces(
    n: int,
    new: int,
    edges: torch.Tensor,
    links: torch.Tensor,
    *,
    weights: bool = False,
    edge_dim: int = 0,
    sparse: bool = False,
    seed: int = 0,
) -> tuple[NodeDataset, NewNodes, NodeDataset]:
    """(a graph of n nodes, ``new`` nodes with ``links``, the graph of both)."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n + new, FEATURES, generator=draw)
    if sparse:
        x = x * (x > 0.8)
    y = torch.randint(-1, CLASSES, (n + new,), generator=draw)
    y[n:] = -1
    part = torch.randint(4, (n + new,), generator=draw)
    part[y < 0] = 3

    def graph(nodes: int, index: torch.Tensor, edge: slice) -> NodeDataset:
        made = Data(x=x[:nodes], edge_index=index, y=y[:nodes])
        if sparse:
            made.x = made.x.to_sparse_csr()
        for number, name in enumerate(("train", "val", "test")):
            made[f"{name}_mask"] = part[:nodes] == number
        if weights:
            made.edge_weight = values[edge]
        if edge_dim:
            made.edge_attr = features[edge]
        return dataset_of(made)

    first, total = edges.shape[1], edges.shape[1] + links.shape[1]
    values = torch.rand(total, generator=draw) * (torch.rand(total, generator=draw) > 0.1)
    features = torch.randn(total, max(edge_dim, 1), generator=draw)
    added = NewNodes(
        x[n:].to_sparse_csr() if sparse else x[n:],
        links,
        values[first:] if weights else None,
        features[first:] if edge_dim else None,
    )
    whole = graph(n + new, torch.cat([edges, links], 1), slice(None))
    return graph(n, edges, slice(first)), added, whole


@st.composite
def growing(draw: st.DrawFn, most_nodes: int = 24):
    """A graph with hubs, isolated nodes, loops and repeats, and how new nodes are linked to it."""
    n, new = draw(st.integers(1, most_nodes)), draw(st.integers(1, 3))
    node, hub = st.integers(0, n - 1), draw(st.integers(0, n - 1))
    end = st.one_of(node, node, st.just(hub))
    pairs = draw(st.lists(st.tuples(end, end), max_size=2 * n))
    fresh = st.integers(n, n + new - 1)
    anyone = st.integers(0, n + new - 1)
    links = draw(
        st.lists(st.one_of(st.tuples(fresh, anyone), st.tuples(anyone, fresh)), max_size=6)
    )
    both = draw(st.booleans())

    def index(pairs: list[tuple[int, int]]) -> torch.Tensor:
        found = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
        return torch.cat([found, found.flip(0)], 1) if both else found

    return n, new, index(pairs), index(links)


def whole_outputs(network: Network, whole: NodeDataset) -> LayerOutputs:
    with torch.no_grad():
        return prepare(network, whole, torch.device("cpu"))[0].run(network)


def field_of(network: Network, graph: NodeDataset, new: NewNodes | None, targets) -> LayerOutputs:
    return field_outputs(network, GrownGraph(KeptGraph.of(graph), new), np.asarray(targets))


def assert_equal_rows(found: LayerOutputs, whole: LayerOutputs, rows) -> None:
    """The same logits in every layer, to 1e-6 of the largest number that any layer computes."""
    assert found.layer_logits.keys() == whole.layer_logits.keys()
    computed = [*whole.hidden, *whole.layer_logits.values()]
    scale = max(1.0, *(float(each.abs().max()) for each in computed))
    for layer, logits in whole.layer_logits.items():
        torch.testing.assert_close(
            found.layer_logits[layer], logits[rows], rtol=0, atol=1e-6 * scale, msg=f"layer {layer}"
        )
