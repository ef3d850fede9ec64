"""The benchmarks: one function per table, which yields its rows as it measures them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepgat.data import load_graph
from deepgat.errors import UserError, unknown_name
from deepgat.lab.bench import random_graphs
from deepgat.lab.bench.attention_layers import FusedClassAttention, PlainClassAttention
from deepgat.lab.bench.csv_reading import reading_rows
from deepgat.lab.bench.measure import Measurement, Step, copy_bandwidth, measure, replayed
from deepgat.models import DeepGAT
from deepgat.nn.checkpoint import chosen, free_memory, recomputed, segment_length
from deepgat.ops import Neighbors, SparseMatrix, dropout, linear, use_backend
from deepgat.training.loop import Epoch, train
from deepgat.training.recipes import recipe
from deepgat.training.run import ModelCard

Row = dict[str, Any]
WIDTH, CHANNELS, HEADS = 64, 8, 8
DEEP = 15


@dataclass(frozen=True)
class Options:
    """What every benchmark needs to know."""

    device: torch.device
    quick: bool = False
    """Small graphs and few rounds, to test the benchmark itself."""
    compiled: bool = True
    """Also measure torch.compile of the other implementations, which takes minutes."""

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 7


def layer(options: Options) -> Iterator[Row]:
    """Forward and backward of one attention layer, 64 → 8 heads of 8, against PyG and plain."""
    for name, near, classes in _layer_graphs(options):
        ways = _layer_ways(near.to(options.device), classes, options)
        found = measure(ways, options.device, options.rounds)
        bound = _gather_bound(near, classes, options.device)
        for way, result in found.items():
            yield _row("layer", name, near, way, result) | {
                "times_gatconv": found["PyG GATConv"].milliseconds / result.milliseconds,
                "times_plain": found["plain"].milliseconds / result.milliseconds,
                "gather_bound_milliseconds": bound,
            }


def step(options: Options) -> Iterator[Row]:
    """A training step of 15 DeepGAT layers, each with its class loss, against plain PyTorch."""
    for name, near, classes in _layer_graphs(options):
        device = options.device
        near = near.to(device)
        x = torch.randn(near.num_nodes, WIDTH, device=device)
        y = torch.randint(classes, (near.num_nodes,), device=device)
        shape = (WIDTH, CHANNELS, HEADS, classes)
        edge_index = near.edge_index
        fused = [FusedClassAttention(*shape).to(device) for _ in range(DEEP)]
        forgetful = [FusedClassAttention(*shape).to(device) for _ in range(DEEP)]
        for module in forgetful:
            module.conv.forget_projections = True
        plain = [PlainClassAttention(*shape).to(device) for _ in range(DEEP)]
        per_edge = [PlainClassAttention(*shape, True).to(device) for _ in range(DEEP)]
        ways: dict[str, Step] = {
            "plain": partial(_deep_step, plain, x, edge_index, y),
            "authors' style": partial(_deep_step, per_edge, x, edge_index, y),
            "deepgat": partial(_deep_step, fused, x, near, y),
            "deepgat, projections again": partial(_deep_step, forgetful, x, near, y),
            "deepgat, layers again": partial(_deep_step, fused, x, near, y, forget_layers=True),
        }
        if device.type == "cuda":
            ways["deepgat, replayed"] = replayed(ways["deepgat"])
        found = measure(ways, device, max(2, options.rounds // 2))
        for way, result in found.items():
            yield _row("step", name, near, way, result) | {
                "layers": DEEP,
                "times_plain": found["plain"].milliseconds / result.milliseconds,
                "memory_times_plain": found["plain"].peak_megabytes / result.peak_megabytes
                if result.peak_megabytes
                else None,
            }


def epoch(options: Options) -> Iterator[Row]:
    """An epoch of ``deepgat train`` at 15 layers with validation, against plain PyTorch."""
    try:
        data = load_graph("csbm" if options.quick else "cs")
    except UserError:  # not installed
        data = load_graph("csbm")
    on_gpu = options.device.type == "cuda"
    ways = {"plain": ("reference", False), "deepgat": ("auto", False)}
    if on_gpu:
        ways["deepgat, replayed"] = ("auto", True)
    count = 40 if on_gpu and not options.quick else 5
    training = {"epochs": count, "device": options.device.type}
    made = recipe(
        "deepgat", preset="authors", dataset=data.name, training=training, num_layers=DEEP
    )
    seconds: dict[str, float] = {}
    for way, (backend, recorded) in ways.items():
        times: list[float] = []
        model = ModelCard.of(data, made).build()
        with use_backend(backend):
            tick = partial(_tick, times)
            train(model, data, made.training, on_epoch=tick, cuda_graphs=recorded)
        seconds[way] = min(b - a for a, b in pairwise(times))
    for way, found in seconds.items():
        yield {
            "suite": "epoch", "graph": data.name, "layers": DEEP, "way": way,
            "milliseconds": 1e3 * found, "times_plain": seconds["plain"] / found,
        }  # fmt: skip


def _tick(times: list[float], _: Epoch) -> None:
    times.append(time.perf_counter())


def words(options: Options) -> Iterator[Row]:
    """The first projection of a bag of words, X W and the gradient of W, against dense."""
    for name in ("cs", "physics"):
        try:
            graph = load_graph(name).graph
        except UserError:  # not installed
            continue
        sparse = SparseMatrix.from_torch(graph.x).to(options.device)
        weight = nn.Parameter(torch.randn(WIDTH, sparse.size(1), device=options.device))
        dense, theirs = graph.x.to_dense().to(options.device), graph.x.to(options.device)
        ways: dict[str, Step] = {
            "dense": partial(_product_step, partial(torch.mm, dense), weight),
            "torch.sparse": partial(_product_step, partial(torch.mm, theirs), weight),
            "deepgat": partial(_product_step, partial(_sparse_product, sparse, 0.0), weight),
            "deepgat, dropout .6": partial(
                _product_step, partial(_sparse_product, sparse, 0.6), weight
            ),
        }
        found = measure(ways, options.device, options.rounds)
        for way, result in found.items():
            yield {
                "suite": "words", "graph": name, "way": way,
                "milliseconds": result.milliseconds, "peak_megabytes": result.peak_megabytes,
                "times_dense": found["dense"].milliseconds / result.milliseconds,
            }  # fmt: skip


def growth(options: Options) -> Iterator[Row]:
    """How the time of a layer grows with edges and heads, and that of a step with layers."""
    device = options.device
    largest = 10**8 if device.type == "cuda" else 10**7
    for edges in (10**5, 10**6, 10**7, 10**8):
        if edges > (10**6 if options.quick else largest):
            break
        near = random_graphs.hub_rich(max(edges // 20, 10), edges // 2, device=device)
        yield _growth_row("edges", near, _fused_layer(near, HEADS, CHANNELS, device), device)
    near = random_graphs.like_physics().to(device)
    for heads in (1, 2, 4, 8, 16):
        ways = _fused_layer(near, heads, WIDTH // heads, device)
        yield _growth_row("heads", near, ways, device) | {"heads": heads}
    for layers in (4, 16) if options.quick else (4, 16, 64):
        stack = [FusedClassAttention(WIDTH, CHANNELS, HEADS, 5).to(device) for _ in range(layers)]
        x = torch.randn(near.num_nodes, WIDTH, device=device)
        y = torch.randint(5, (near.num_nodes,), device=device)
        ways = {"deepgat": partial(_deep_step, stack, x, near, y)}
        yield _growth_row("layers", near, ways, device) | {"layers": layers}


def depth(options: Options) -> Iterator[Row]:
    """A training step of up to 1,000 layers, with and without activation checkpointing."""
    *_, (name, near, classes) = _layer_graphs(options)
    near = near.to(options.device)
    for layers in (10, 20) if options.quick else (15, 1000):
        for choice in ("none", "projections", "layer", "sqrt"):
            found = _step_of_a_model(near, WIDTH, classes, layers, choice, options.device)
            if found is not None:
                yield _row("depth", name, near, choice, found) | {
                    "layers": layers,
                    "megabytes_per_layer": found.peak_megabytes / layers,
                }


def large(options: Options) -> Iterator[Row]:
    """One training step of 15 layers on 2.4 million nodes and 62 million undirected edges."""
    if options.device.type == "cpu" and not options.quick:
        return  # takes minutes and more memory than most machines have
    nodes, pairs = (20_000, 200_000) if options.quick else (2_449_029, 62_500_000)
    near = random_graphs.hub_rich(nodes, pairs, device=options.device)
    found = _step_of_a_model(near, 100, 47, DEEP, "auto", options.device)
    if found is not None:
        yield _row("large", "random, hub-rich", near, "deepgat", found) | {
            "layers": DEEP,
            "largest_degree": int(near.degree.max()),
        }


def _step_of_a_model(
    near: Neighbors, features: int, classes: int, layers: int, checkpoint: str, device: torch.device
) -> Measurement | None:
    """Forward, loss, backward and Adam step of a DeepGAT; None if memory runs out."""
    model = DeepGAT(features, CHANNELS, layers, classes, heads=HEADS).to(device)
    checkpoint = chosen(checkpoint, layers, *model.layer_bytes(near.num_nodes), free_memory(device))
    model.forget_projections(checkpoint == "projections")
    segment = segment_length(checkpoint, layers)
    x = torch.randn(near.num_nodes, features, device=device)
    y = torch.randint(classes, (near.num_nodes,), device=device)
    some = torch.arange(0, near.num_nodes, 10, device=device)
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        outputs = model.run(x, near, segment=segment)
        model.loss(outputs.layer_logits, y, some).backward()
        optimizer.step()

    return measure({"deepgat": run}, device, rounds=1).get("deepgat")


SUITES: dict[str, Callable[[Options], Iterator[Row]]] = {
    "layer": layer,
    "step": step,
    "epoch": epoch,
    "words": words,
    "growth": growth,
    "depth": depth,
    "large": large,
    "files": lambda options: reading_rows(options.quick),
}


def run_suites(names: list[str], options: Options) -> Iterator[Row]:
    """The rows of the named benchmarks."""
    for name in names:
        if name not in SUITES:
            raise unknown_name("benchmark", name, SUITES)
    for name in names:
        yield from SUITES[name](options)


def _layer_graphs(options: Options) -> Iterator[tuple[str, Neighbors, int]]:
    """(name, neighbours, classes) of CS and Physics, or of a random graph if neither is there."""
    found = False
    for name, classes in (("cs", 15), ("physics", 5)):
        if options.quick:
            break
        try:
            graph = load_graph(name).graph
            yield name, Neighbors.from_edge_index(graph.edge_index, graph.num_nodes), classes
            found = True
        except UserError:  # not installed
            continue
    if options.quick:
        yield "random", random_graphs.hub_rich(3_000, 20_000), 5
    elif not found:
        yield "random, as large as physics", random_graphs.like_physics(), 5


def _layer_ways(near: Neighbors, classes: int, options: Options) -> dict[str, Step]:
    from torch_geometric.nn import GATConv, TransformerConv

    device, edge_index = options.device, near.edge_index
    x = torch.randn(near.num_nodes, WIDTH, device=device, requires_grad=True)
    upstream = torch.randn(near.num_nodes, CHANNELS * HEADS, device=device)
    shape = (WIDTH, CHANNELS, HEADS)
    gat = GATConv(*shape, add_self_loops=False).to(device)
    transformer = TransformerConv(*shape, root_weight=False).to(device)
    plain = PlainClassAttention(*shape, classes).to(device)
    per_edge = PlainClassAttention(*shape, classes, per_edge_softmax=True).to(device)
    fused = FusedClassAttention(*shape, classes).to(device)

    def both_ways(module: Callable[..., Tensor], graph: object) -> Step:
        def run() -> None:
            x.grad = None
            module(x, graph).backward(upstream)

        return run

    ways = {
        "PyG GATConv": both_ways(gat, edge_index),
        "PyG TransformerConv": both_ways(transformer, edge_index),
        "plain": both_ways(plain, edge_index),
        "authors' style": both_ways(per_edge, edge_index),
        "deepgat": both_ways(fused, near),
    }
    if options.compiled and not options.quick:
        compiled = torch.compile(gat, dynamic=False)
        ways["PyG GATConv, compiled"] = both_ways(compiled, edge_index)
        ways["plain, compiled"] = both_ways(torch.compile(plain, dynamic=False), edge_index)
    if device.type == "cuda":
        ways["deepgat, graphed"] = both_ways(_graphed(fused, near, x), near)
        ways["deepgat, replayed"] = replayed(ways["deepgat"])
        ways["PyG GATConv, replayed"] = replayed(ways["PyG GATConv"])
    return ways


class _OnGraph(nn.Module):
    """A layer bound to one graph, so that it takes only tensors, as CUDA graphs require."""

    def __init__(self, layer: nn.Module, near: Neighbors) -> None:
        super().__init__()
        self.layer = layer
        self.near = near

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x, self.near)
        return out


def _graphed(layer: nn.Module, near: Neighbors, x: Tensor) -> Callable[..., Tensor]:
    """The layer as a CUDA graph that is called like a module."""
    sample = x.detach().clone().requires_grad_()
    recorded: Any = torch.cuda.make_graphed_callables(_OnGraph(layer, near), (sample,))
    return lambda x, _: recorded(x)


def _sparse_product(x: SparseMatrix, share: float, weight: Tensor) -> Tensor:
    return linear(dropout(x, share, training=True), weight.t())


def _product_step(product: Callable[[Tensor], Tensor], weight: nn.Parameter) -> None:
    out = product(weight.t())
    out.backward(torch.ones_like(out))
    weight.grad = None


def _deep_step(
    stack: list[Any], x: Tensor, graph: object, y: Tensor, *, forget_layers: bool = False
) -> None:
    def one(module: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        h, logits = module.run(h, graph)
        return F.elu(h), F.cross_entropy(logits.mean(1), y)

    h, losses = x, []
    for module in stack:
        h, loss = recomputed(one, module, module, h) if forget_layers else one(module, h)
        losses.append(loss)
    torch.stack(losses).sum().backward()
    for module in stack:
        module.zero_grad(set_to_none=True)


def _fused_layer(
    near: Neighbors, heads: int, channels: int, device: torch.device
) -> dict[str, Step]:
    x = torch.randn(near.num_nodes, WIDTH, device=device, requires_grad=True)
    upstream = torch.randn(near.num_nodes, heads * channels, device=device)
    module = FusedClassAttention(WIDTH, channels, heads, 5).to(device)

    def run() -> None:
        x.grad = None
        module(x, near).backward(upstream)

    return {"deepgat": run}


def _growth_row(
    with_what: str, near: Neighbors, ways: dict[str, Step], device: torch.device
) -> Row:
    result = measure(ways, device, rounds=3)["deepgat"]
    return _row("growth", f"random, by {with_what}", near, "deepgat", result) | {
        "nanoseconds_per_edge": 1e6 * result.milliseconds / near.num_edges
    }


def _gather_bound(near: Neighbors, classes: int, device: torch.device) -> float | None:
    """Milliseconds to read every neighbour's rows once at the speed of a copy.

    Forward: V and ŷ; backward: V, ŷ and the gradient, each E rows. Only on a GPU.
    """
    if device.type != "cuda":
        return None
    numbers = near.num_edges * HEADS * (3 * CHANNELS + 2 * classes)
    return 4 * numbers / copy_bandwidth(device) / 1e6


def _row(suite: str, graph: str, near: Neighbors, way: str, result: Measurement) -> Row:
    return {
        "suite": suite,
        "graph": graph,
        "nodes": near.num_nodes,
        "edges": near.num_edges,
        "way": way,
        "milliseconds": result.milliseconds,
        "peak_megabytes": result.peak_megabytes,
    }
