"""The benchmarks: one function per table, which yields its rows as it measures them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepgat.data import NodeDataset, load_graph
from deepgat.errors import UserError
from deepgat.lab.bench import random_graphs
from deepgat.lab.bench.csv_reading import reading_rows
from deepgat.lab.bench.large_training import QUICK_SIZES, SECONDS, SIZES, training_rows
from deepgat.lab.bench.layer_ways import (
    CHANNELS,
    HEADS,
    PEER,
    WIDTH,
    PlainClassAttention,
    both_ways,
    fused_layer,
    layer_ways,
    times_alike,
)
from deepgat.lab.bench.measure import Measurement, Step, copy_bandwidth, measure, replayed
from deepgat.machine import free_memory
from deepgat.models import DeepGAT
from deepgat.nn.checkpoint import choose_checkpoint, recomputed, segment_length
from deepgat.ops import Neighbors, SparseMatrix, dropout, linear, use_backend
from deepgat.training.loop import train
from deepgat.training.recipes import Recipe, recipe
from deepgat.training.run import ModelCard

Row = dict[str, Any]
DEEP = 15


class Options(NamedTuple):
    """What every benchmark needs to know."""

    device: torch.device
    quick: bool = False
    """Small graphs and few rounds, nothing compiled: to test the benchmark itself."""
    sizes: tuple[int, ...] = ()
    """Undirected edges of the graphs that are trained on; empty: those of the device."""
    seconds: float = SECONDS
    """For each training run."""
    tell: Callable[[str], None] = lambda text: None
    """Is told of progress within a row."""

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 7


def layer(options: Options) -> Iterator[Row]:
    """Forward and backward of one attention layer, 64 → 8 heads of 8, against PyG and plain.

    ``treatment`` is what was done to the layer; ``times_alike`` compares with GATConv after the
    same treatment.
    """
    for name, near, classes in _graphs(options):
        near = near.to(options.device)
        ways = layer_ways(near, classes, options.quick)
        steps = {way: item.step for way, item in ways.items()}
        found = measure(steps, options.device, options.rounds)
        bound = _gather_bound(near, classes, options.device)
        against = {"times_gatconv": PEER, "times_plain": "plain"}
        for row in _rows("layer", name, found, near, against, gather_bound_milliseconds=bound):
            way = row["way"]
            row["treatment"] = ways[way].treatment
            row["times_alike"] = times_alike(found, ways, way)
            yield row


def step(options: Options) -> Iterator[Row]:
    """A training step of 15 DeepGAT layers, each with its class loss, against plain PyTorch."""
    device = options.device
    for name, near, classes in _graphs(options):
        near = near.to(device)
        shape = (WIDTH, CHANNELS, HEADS, classes)
        fused = [fused_layer(*shape).to(device) for _ in range(DEEP)]
        forgetful = [fused_layer(*shape).to(device) for _ in range(DEEP)]
        for module in forgetful:
            module.forget_projections = True
        plain = [PlainClassAttention(*shape).to(device) for _ in range(DEEP)]
        per_edge = [PlainClassAttention(*shape, True).to(device) for _ in range(DEEP)]
        ways: dict[str, Step] = {
            "plain": _deep_step(plain, near.edge_index, near, classes),
            "authors' style": _deep_step(per_edge, near.edge_index, near, classes),
            "deepgat": _deep_step(fused, near, near, classes),
            "deepgat, projections again": _deep_step(forgetful, near, near, classes),
            "deepgat, layers again": _deep_step(fused, near, near, classes, forget_layers=True),
        }
        if device.type == "cuda":
            ways["deepgat, replayed"] = replayed(ways["deepgat"])
        found = measure(ways, device, max(2, options.rounds // 2))
        for row in _rows("step", name, found, near, {"times_plain": "plain"}, layers=DEEP):
            if row["peak_megabytes"] and "plain" in found:
                most = found["plain"].peak_megabytes
                row["memory_times_plain"] = most / row["peak_megabytes"]
            yield row


def epoch(options: Options) -> Iterator[Row]:
    """An epoch of ``deepgat train`` at 15 layers with validation, against plain PyTorch."""
    data = next(_installed("csbm") if options.quick else _installed("cs", "csbm"))
    on_gpu = options.device.type == "cuda"
    ways = {"plain": ("reference", False), "deepgat": ("auto", False)}
    if on_gpu:
        ways["deepgat, replayed"] = ("auto", True)
    epochs = 40 if on_gpu and not options.quick else 5
    training = {"epochs": epochs, "device": options.device.type}
    made = recipe(
        "deepgat", preset="authors", dataset=data.name, training=training, num_layers=DEEP
    )
    fastest = {way: _fastest_epoch(data, made, *how) for way, how in ways.items()}
    for way, milliseconds in fastest.items():
        yield {
            "suite": "epoch", "graph": data.name, "layers": DEEP, "way": way,
            "milliseconds": milliseconds, "times_plain": fastest["plain"] / milliseconds,
        }  # fmt: skip


def _fastest_epoch(data: NodeDataset, made: Recipe, backend: str, cuda_graphs: bool) -> float:
    """Milliseconds."""
    ends: list[float] = []
    model = ModelCard.of(data, made).build()
    with use_backend(backend):
        train(
            model,
            data,
            made.training,
            on_epoch=lambda _: ends.append(time.perf_counter()),
            cuda_graphs=cuda_graphs,
        )
    return 1e3 * min(b - a for a, b in pairwise(ends))


def words(options: Options) -> Iterator[Row]:
    """The first projection of a bag of words, X W and the gradient of W, against dense."""
    for data in _installed("cs", "physics"):
        x = data.graph.x.to(options.device)
        sparse = SparseMatrix.from_torch(data.graph.x).to(options.device)
        weight = nn.Parameter(torch.randn(WIDTH, sparse.size(1), device=options.device))
        ways: dict[str, Step] = {
            "dense": partial(_product, _torch_linear, x.to_dense(), weight),
            "torch.sparse": partial(_product, _torch_linear, x, weight),
            "deepgat": partial(_product, linear, sparse, weight),
            "deepgat, dropout .6": partial(_product, linear, sparse, weight, drop=0.6),
        }
        found = measure(ways, options.device, options.rounds)
        yield from _rows("words", data.name, found, against={"times_dense": "dense"})


def growth(options: Options) -> Iterator[Row]:
    """How the time of a layer grows with edges and heads, and that of a step with layers."""
    device = options.device
    largest = 10**6 if options.quick else 10**8 if device.type == "cuda" else 10**7
    for edges in (10**5, 10**6, 10**7, 10**8):
        if edges <= largest:
            near = random_graphs.hub_rich(max(edges // 20, 10), edges // 2, device=device)
            conv = fused_layer(WIDTH, CHANNELS, HEADS, 5).to(device)
            yield from _growth("edges", near, both_ways(conv, near, near))
    near = random_graphs.like_physics().to(device)
    for heads in (1, 2, 4, 8, 16):
        conv = fused_layer(WIDTH, WIDTH // heads, heads, 5).to(device)
        yield from _growth("heads", near, both_ways(conv, near, near), heads=heads)
    for layers in (4, 16) if options.quick else (4, 16, 64):
        stack = [fused_layer(WIDTH, CHANNELS, HEADS, 5).to(device) for _ in range(layers)]
        yield from _growth("layers", near, _deep_step(stack, near, near, 5), layers=layers)


def depth(options: Options) -> Iterator[Row]:
    """A training step of up to 1,000 layers, with and without activation checkpointing."""
    name, near, classes = _graphs(options)[-1]
    near = near.to(options.device)
    for layers in (10, 20) if options.quick else (15, 1000):
        for choice in ("none", "projections", "layer", "sqrt"):
            train = _model_step(near, WIDTH, classes, layers, choice)
            found = measure({choice: train}, options.device, rounds=1)
            for row in _rows("depth", name, found, near, layers=layers):
                yield row | {"megabytes_per_layer": row["peak_megabytes"] / layers}


def large(options: Options) -> Iterator[Row]:
    """One training step of 15 layers on 2.4 million nodes and 62 million undirected edges."""
    if options.device.type == "cpu" and not options.quick:
        return  # takes minutes and more memory than most machines have
    nodes, pairs = (20_000, 200_000) if options.quick else (2_449_029, 62_500_000)
    near = random_graphs.hub_rich(nodes, pairs, device=options.device)
    train = _model_step(near, 100, 47, DEEP, "auto")
    found = measure({"deepgat": train}, options.device, rounds=1)
    most = int(near.degree.max())
    yield from _rows("large", "random, hub-rich", found, near, layers=DEEP, largest_degree=most)


def training(options: Options) -> Iterator[Row]:
    """Whole training runs on graphs of growing size, until 95% of the reachable accuracy."""
    device, seconds = options.device, min(options.seconds, 2.0 if options.quick else math.inf)
    usual = QUICK_SIZES if options.quick else SIZES["cuda" if device.type == "cuda" else "cpu"]
    yield from training_rows(device, options.sizes or usual, seconds, options.tell)


SUITES: dict[str, Callable[[Options], Iterator[Row]]] = {
    "layer": layer,
    "step": step,
    "epoch": epoch,
    "words": words,
    "growth": growth,
    "depth": depth,
    "large": large,
    "training": training,
    "files": lambda options: reading_rows(options.quick),
}


def _installed(*names: str) -> Iterator[NodeDataset]:
    """Those of the named datasets that are available."""
    for name in names:
        try:
            yield load_graph(name)
        except UserError:
            continue


def _graphs(options: Options) -> list[tuple[str, Neighbors, int]]:
    """(name, neighbours, classes) of CS and Physics, or of a random graph if neither is there."""
    if options.quick:
        return [("random", random_graphs.hub_rich(3_000, 20_000), 5)]
    found = []
    for data in _installed("cs", "physics"):
        near = Neighbors.from_edge_index(data.graph.edge_index, data.num_nodes)
        found.append((data.name, near, data.num_classes))
    return found or [("random, as large as physics", random_graphs.like_physics(), 5)]


def _torch_linear(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(x, weight.t())


def _product(
    multiply: Callable[..., Tensor], x: Any, weight: nn.Parameter, drop: float = 0.0
) -> None:
    out = multiply(dropout(x, drop, training=True) if drop else x, weight)
    out.backward(torch.ones_like(out))
    weight.grad = None


def _deep_step(
    stack: list[Any], graph: object, near: Neighbors, classes: int, *, forget_layers: bool = False
) -> Step:
    """Forward and backward of many layers, each with its class loss."""
    device = near.ptr.device
    x = torch.randn(near.num_nodes, WIDTH, device=device)
    y = torch.randint(classes, (near.num_nodes,), device=device)

    def one(module: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        result = module.run(h, graph)
        return F.elu(result.out), F.cross_entropy(result.class_logits.mean(1), y)

    def run() -> None:
        h, losses = x, []
        for module in stack:
            h, loss = recomputed(one, module, module, h) if forget_layers else one(module, h)
            losses.append(loss)
        torch.stack(losses).sum().backward()
        for module in stack:
            module.zero_grad(set_to_none=True)

    return run


def _model_step(near: Neighbors, features: int, classes: int, layers: int, checkpoint: str) -> Step:
    """Forward, loss, backward and Adam step of a DeepGAT."""
    device = near.ptr.device
    model = DeepGAT(features, CHANNELS, layers, classes, heads=HEADS).to(device)
    checkpoint = choose_checkpoint(
        checkpoint, layers, *model.layer_bytes(near.num_nodes), free_memory(device)
    )
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

    return run


def _gather_bound(near: Neighbors, classes: int, device: torch.device) -> float | None:
    """Milliseconds to read every neighbour's rows once at the speed of a copy.

    Forward: V and ŷ; backward: V, ŷ and the gradient, each E rows. Only on a GPU.
    """
    if device.type != "cuda":
        return None
    numbers = near.num_edges * HEADS * (3 * CHANNELS + 2 * classes)
    return 4 * numbers / copy_bandwidth(device) / 1e6


def _growth(by: str, near: Neighbors, step: Step, **more: Any) -> Iterator[Row]:
    found = measure({"deepgat": step}, near.ptr.device, rounds=3)
    for row in _rows("growth", f"random, by {by}", found, near, **more):
        yield row | {"nanoseconds_per_edge": 1e6 * row["milliseconds"] / near.num_edges}


def _rows(
    suite: str,
    graph: str,
    found: Mapping[str, Measurement],
    near: Neighbors | None = None,
    against: Mapping[str, str] | None = None,
    **more: float | None,
) -> Iterator[Row]:
    """A row per way. ``against`` names columns of speed-ups, and the way each compares with."""
    if near is not None:
        more |= {"nodes": near.num_nodes, "edges": near.num_edges}
    for way, result in found.items():
        row = {"suite": suite, "graph": graph, "way": way, **result._asdict(), **more}
        for column, other in (against or {}).items():
            if other in found:
                row[column] = found[other].milliseconds / result.milliseconds
        yield row
