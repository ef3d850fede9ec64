"""One attention layer by this library, by PyG and in plain PyTorch, each treated in several ways.

A *treatment* is what is done to a layer before it is timed. A factor is fair only between two
layers of one treatment, so every way names its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from deepgat.lab.bench.measure import Measurement, Step, replayed
from deepgat.nn import ClassScore, NeighborAttention
from deepgat.nn.conv_output import ConvOutput
from deepgat.ops import Neighbors
from deepgat.ops.gpu import extension

WIDTH, CHANNELS, HEADS = 64, 8, 8
PEER = "PyG GATConv"
PRODUCT = "x W alone"
"""A matrix product without any edge: the least that a call of a layer costs."""
EAGER = "eager"
"""``layer(x, edge_index)``, as a user calls it."""
COMPILED = "compiled"
"""``torch.compile(layer)``."""
OVERHEAD = "compiled, reduce-overhead"
"""``torch.compile(layer, mode="reduce-overhead")``: recorded CUDA graphs, with inputs copied in."""
GRAPHED = "graphed"
"""``torch.cuda.make_graphed_callables``: forward and backward recorded, the graph's edges fixed."""
REPLAYED = "replayed"
"""The whole step as one CUDA graph, without any Python."""

Layer = Callable[..., Tensor]


class PlainClassAttention(nn.Module):
    """Gather and scatter, which store tensors of size E×H×C and E×H×D.

    ``per_edge_softmax`` computes the class softmax at both ends of every edge instead of once per
    node, as the authors' code does.
    """

    def __init__(
        self,
        width: int,
        channels: int,
        heads: int,
        num_classes: int,
        per_edge_softmax: bool = False,
    ) -> None:
        super().__init__()
        self.shape = (heads, num_classes, channels)
        self.per_edge_softmax = per_edge_softmax
        self.classes = nn.Linear(width, heads * num_classes, bias=False)
        self.values = nn.Linear(width, heads * channels, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(x, edge_index).out

    def run(self, x: Tensor, edge_index: Tensor) -> ConvOutput:
        source, target = edge_index
        heads, num_classes, channels = self.shape
        n = x.size(0)
        logits = self.classes(x).view(n, heads, num_classes)
        value = self.values(x).view(n, heads, channels)
        if self.per_edge_softmax:
            score = (logits[target].softmax(-1) * logits[source].softmax(-1)).sum(-1)
        else:
            y = logits.softmax(-1)
            score = (y[target] * y[source]).sum(-1)
        top = score.new_full((n, heads), -torch.inf)
        index = target.unsqueeze(-1).expand_as(score)
        top = top.scatter_reduce(0, index, score.detach(), "amax")
        weight = (score - top[target]).exp()
        total = weight.new_zeros(n, heads).index_add(0, target, weight)
        weight = weight / total[target]
        messages = weight.unsqueeze(-1) * value[source]
        out = messages.new_zeros(n, heads, channels).index_add(0, target, messages)
        return ConvOutput(out.flatten(1), logits)


class Product(nn.Module):
    """x W."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


def fused_layer(width: int, channels: int, heads: int, num_classes: int) -> NeighborAttention:
    """The same layer with this library's fused kernels."""
    return NeighborAttention(
        width, channels, heads, score=ClassScore, num_classes=num_classes, bias=False
    )


class Way(NamedTuple):
    """A step to be timed, and what was done to its layer."""

    step: Step
    treatment: str = EAGER


def layer_ways(near: Neighbors, classes: int, quick: bool = False) -> dict[str, Way]:
    """All ways to run forward and backward of one layer on this graph, by name.

    Self-loops are among the edges, so that no layer has to add them. Nothing is compiled if
    ``quick``, and CUDA graphs need a GPU.
    """
    device, edge_index = near.device, near.edge_index
    if device.type == "cuda":
        extension.wait()
    shape = (WIDTH, CHANNELS, HEADS)
    ours = fused_layer(*shape, classes).to(device)
    eager: dict[str, nn.Module] = {
        "deepgat": ours,
        "deepgat, GAT's score": NeighborAttention(*shape, bias=False).to(device),
        PEER: GATConv(*shape, add_self_loops=False, bias=False).to(device),
        "PyG GATv2Conv": GATv2Conv(*shape, add_self_loops=False, bias=False).to(device),
        "PyG TransformerConv": TransformerConv(*shape, root_weight=False, bias=False).to(device),
        "plain": PlainClassAttention(*shape, classes).to(device),
        "authors' style": PlainClassAttention(*shape, classes, True).to(device),
        PRODUCT: Product(WIDTH).to(device),
    }
    ways = {name: Way(both_ways(layer, edge_index, near)) for name, layer in eager.items()}
    ways["deepgat, lists prepared"] = Way(both_ways(ours, near, near))
    if not quick:  # torch.compile takes minutes
        for name in ("deepgat", PEER, "plain", PRODUCT):
            layer: Layer = torch.compile(eager[name], dynamic=False)
            ways[f"{name}, {COMPILED}"] = Way(both_ways(layer, edge_index, near), COMPILED)
    if device.type != "cuda":
        return ways
    for name in ("deepgat", PEER, PRODUCT):
        if not quick:
            layer = torch.compile(eager[name], dynamic=False, mode="reduce-overhead")
            step = both_ways(layer, edge_index, near, marked=True)
            ways[f"{name}, {OVERHEAD}"] = Way(step, OVERHEAD)
        layer = _graphed(eager[name], edge_index, near)
        ways[f"{name}, {GRAPHED}"] = Way(both_ways(layer, edge_index, near), GRAPHED)
        ways[f"{name}, {REPLAYED}"] = Way(replayed(ways[name].step), REPLAYED)
    return ways


def times_alike(found: dict[str, Measurement], ways: dict[str, Way], name: str) -> float | None:
    """How many times as fast as the peer with the same treatment; None if that was not timed."""
    treatment = ways[name].treatment
    peer = found.get(PEER if treatment == EAGER else f"{PEER}, {treatment}")
    return None if peer is None else peer.milliseconds / found[name].milliseconds


def both_ways(layer: Layer, graph: object, near: Neighbors, marked: bool = False) -> Step:
    """Forward and backward of a layer, whose output is as wide as its input.

    ``marked``: the layer's outputs lie in the memory of a recorded graph, which the next step
    overwrites, so every step begins with a mark and drops the gradients of the last.
    """
    device = near.device
    x = torch.randn(near.num_nodes, WIDTH, device=device, requires_grad=True)
    upstream = torch.randn(near.num_nodes, WIDTH, device=device)
    parameters = list(layer.parameters()) if isinstance(layer, nn.Module) else []

    def run() -> None:
        if marked:
            torch.compiler.cudagraph_mark_step_begin()
        for leaf in (x, *parameters):
            leaf.grad = None
        layer(x, graph).backward(upstream)

    return run


class _OnGraph(nn.Module):
    """A layer bound to one graph, so that it takes only tensors, as CUDA graphs require."""

    def __init__(self, layer: nn.Module, edge_index: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.edge_index = edge_index

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x, self.edge_index)
        return out


def _graphed(layer: nn.Module, edge_index: Tensor, near: Neighbors) -> Layer:
    """The layer as a CUDA graph that is called like a module."""
    sample = torch.randn(near.num_nodes, WIDTH, device=near.device, requires_grad=True)
    recorded: Any = torch.cuda.make_graphed_callables(_OnGraph(layer, edge_index), (sample,))
    return lambda x, _: recorded(x)
