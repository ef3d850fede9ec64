"""Whole training runs on graphs of growing size: time and memory until a given accuracy.

The graphs have planted classes, so the accuracy that can be reached is known: see
:mod:`deepgat.lab.bench.planted_graphs`. A way to train that runs out of memory or time at one size
is not tried at larger ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from deepgat.lab.bench.measure import begin_peak, empty_memory, peak_memory
from deepgat.lab.bench.planted_graphs import Bounds, PlantedGraph, bounds, planted_graph
from deepgat.machine import give_back_freed_memory
from deepgat.models import PreNorm
from deepgat.training.device import lacks_memory
from deepgat.training.inputs import GraphBatches, GraphInputs, Inputs
from deepgat.training.loop import run_epochs
from deepgat.training.minibatch import SampledInputs
from deepgat.training.resume import Epoch
from deepgat.training.settings import TrainSettings
from deepgat.training.trainer import Trainer

LAYERS, WIDTH, DROPOUT, RATE = 4, 64, 0.1, 0.01
SHARE = 0.95
"""Of the reachable accuracy: a run that has it ends."""
SIZES = {"cpu": (10**5, 10**6, 10**7), "cuda": (10**6, 10**7, 62 * 10**6, 200 * 10**6)}
QUICK_SIZES = (5_000, 20_000)
"""Undirected edges."""
SECONDS = 120.0
PATIENCE = 20
"""Epochs without a better accuracy after which a run ends, as ``deepgat train`` would end it."""
WARM_UP_PAIRS = 200_000
"""So many that hubs have more neighbours than one kernel program takes."""
REACHED, NO_MEMORY, NO_TIME = "reached", "out of memory", "out of time"
NOT_REACHED = "stays below"

WAYS: dict[str, Mapping[str, Any]] = {
    "full batch": {"checkpoint": "none"},
    "full batch, layers recomputed": {"checkpoint": "layer"},
    "neighbours": {
        "checkpoint": "none", "batches": "neighbours", "batch_size": 1024, "fan_out": "10,5,1,1",
    },
    "clusters": {
        "checkpoint": "none", "batches": "clusters", "clusters": 32, "batch_size": 4,
    },
}  # fmt: skip
"""Name → training settings. The ways in parts of the graph come last: they leave it on the CPU."""

Row = dict[str, Any]
Tell = Callable[[str], None]


class _Ended(Exception):  # noqa: N818 - no error
    """The run has reached its accuracy, or the end of its time."""


@dataclass
class _Run:
    """One training run, as far as it got."""

    seconds: float
    """Time budget."""
    tell: Tell
    target: float = math.inf
    spent: float = 0.0
    """Seconds that count already when it starts."""
    start: float = 0.0
    prepared: float | None = None
    """Seconds until the first epoch could begin."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since the start, accuracy) after every epoch."""
    stopped: str = ""

    def passed(self) -> float:
        return self.spent + time.perf_counter() - self.start

    def after_epoch(self, epoch: Epoch) -> None:
        seconds, accuracy = self.passed(), epoch.val_f1  # of one class per node: accuracy
        self.curve.append((seconds, accuracy))
        self.tell(f"epoch {epoch.number}, {100 * accuracy:.1f}% after {seconds:.1f} s")
        if accuracy >= self.target:
            self.stopped = REACHED
        elif seconds >= self.seconds:
            self.stopped = NO_TIME
        if self.stopped:
            raise _Ended


def training_rows(
    device: torch.device,
    sizes: Sequence[int],
    seconds: float = SECONDS,
    tell: Tell = lambda text: None,
    ways: Sequence[str] = tuple(WAYS),
) -> Iterator[Row]:
    """A row per size and way.

    Args:
        device: to train on. The graph is made there too.
        sizes: undirected edges of the graphs.
        seconds: time for each way and size, from which making the graph is excluded. The epoch in
            which it ends is completed.
        tell: is told of progress.
        ways: names in ``WAYS``.
    """
    if device.type == "cpu":
        give_back_freed_memory()  # else resident memory would hide what recomputing saves
    empty_memory(device)
    before = 0.0 if device.type == "cuda" else begin_peak(device)
    warm = _warm_up(device, ways, tell)
    earlier: dict[str, list[Row]] = {way: [] for way in ways}
    for pairs in sorted(sizes):
        going = [way for way in ways if not any(map(_is_over, earlier[way]))]
        if not going:
            return
        tell(f"{pairs:,} edges: making the graph")
        start = time.perf_counter()
        try:
            graph = planted_graph(pairs, device=device)
            known = bounds(graph)
        except RuntimeError as error:
            _require_lack_of_memory(error)
            for way in going:
                yield _head(pairs, way) | {"stopped": f"{NO_MEMORY}, making the graph"}
            return
        about = _described(graph, known) | {"graph_seconds": time.perf_counter() - start}
        moved = 0.0
        for way in going:
            in_parts = "batches" in WAYS[way]
            if in_parts and graph.x.is_cuda:
                start = time.perf_counter()
                graph = graph.to(torch.device("cpu"))
                moved = time.perf_counter() - start
            row = _head(pairs, way) | about | {"warm_up_seconds": warm.get(way, 0.0)}
            expected = _expected_preparation(earlier[way], pairs)
            if expected > seconds:
                row |= {"stopped": f"{NO_TIME}, preparing would take about {expected:.0f} s"}
            else:
                run = _Run(seconds, partial(_told, tell, f"{pairs:,} edges, {way}: "))
                run.spent = moved if in_parts else 0.0
                row |= _train(graph, known, way, device, run, before)
            earlier[way].append(row)
            yield row
        del graph
        empty_memory(device)


def _told(tell: Tell, head: str, text: str) -> None:
    tell(head + text)


def _is_over(row: Row) -> bool:
    """Whether a larger graph is out of the question after this row."""
    return str(row["stopped"]).startswith((NO_MEMORY, NO_TIME))


def _train(
    graph: PlantedGraph, known: Bounds, way: str, device: torch.device, run: _Run, before: float
) -> Row:
    """One run. ``before``: bytes of memory that do not count."""
    empty_memory(device)
    begin_peak(device)
    run.target, run.start = SHARE * known.reachable, time.perf_counter()
    try:
        _run_epochs(graph, way, device, run)
    except _Ended:
        pass
    except RuntimeError as error:
        _require_lack_of_memory(error)
        run.stopped = NO_MEMORY
    row: Row = {
        "stopped": run.stopped,
        "target": run.target,
        "prepare_seconds": run.prepared,
        "reached_seconds": run.curve[-1][0] if run.stopped == REACHED else None,
        "epochs": len(run.curve),
        "accuracy": max((accuracy for _, accuracy in run.curve), default=None),
        "peak_megabytes": max(0.0, peak_memory(device) - before) / 1e6,
        "curve": [(round(at, 3), round(accuracy, 5)) for at, accuracy in run.curve],
    }
    if len(run.curve) > 1:
        first, last = run.curve[0][0], run.curve[-1][0]
        row["seconds_per_epoch"] = (last - first) / (len(run.curve) - 1)
    empty_memory(device)
    return row


def _run_epochs(graph: PlantedGraph, way: str, device: torch.device, run: _Run) -> None:
    """Train until ``run`` ends it."""
    nodes = graph.y.numel()
    settings = TrainSettings(
        lr=RATE,
        epochs=10**6,
        patience=PATIENCE,
        monitor="val-f1",
        most_nodes=nodes,
        device=device.type,
        **WAYS[way],
    )
    torch.manual_seed(settings.seed)
    shape = (graph.x.size(1), WIDTH, LAYERS, graph.num_classes)
    model = PreNorm(*shape, dropout=DROPOUT, conv="deepgat").to(device)
    parts = {"train": graph.train, "val": graph.held_out}
    held = GraphInputs(
        x=graph.x,
        neighbors=graph.neighbors,
        y=graph.y,
        nodes=parts,
        counts={name: numbers.numel() for name, numbers in parts.items()},
    )
    inputs: Inputs
    if settings.in_parts:
        inputs = SampledInputs(model, [held], settings, device)
    else:
        inputs = GraphBatches([held], [held])
    # Steps of recomputed layers cannot be recorded, so none are; on large graphs it gains little.
    trainer = Trainer(model, inputs, settings, nodes, cuda_graphs=False)
    run.prepared = run.passed()
    if run_epochs(trainer, run.after_epoch).stopped == "interrupted":
        raise KeyboardInterrupt
    run.stopped = NOT_REACHED


def _warm_up(device: torch.device, ways: Sequence[str], tell: Tell) -> dict[str, float]:
    """Compile the kernels of every way, on a small graph with hubs; the seconds it took."""
    if device.type != "cuda":
        return {}
    graph = planted_graph(WARM_UP_PAIRS, device=device)
    seconds = {}
    for way in ways:
        tell(f"{way}: compiling kernels")
        start = time.perf_counter()
        where = torch.device("cpu") if "batches" in WAYS[way] else device
        out_of_reach = Bounds(reachable=2.0, features_alone=0.0)  # so that time ends it
        run = _Run(seconds=0.0, tell=lambda text: None)
        _train(graph.to(where), out_of_reach, way, device, run, before=0.0)
        seconds[way] = time.perf_counter() - start
    return seconds


def _expected_preparation(earlier: Sequence[Row], pairs: int) -> float:
    """Seconds, on the line through those at the two sizes before; 0 where nothing is known."""
    known = [row for row in earlier if row.get("prepare_seconds") is not None][-2:]
    if len(known) < 2:
        return 0.0
    one, two = known
    slope = (two["prepare_seconds"] - one["prepare_seconds"]) / (two["pairs"] - one["pairs"])
    return float(two["prepare_seconds"] + slope * (pairs - two["pairs"]))


def _head(pairs: int, way: str) -> Row:
    return {"suite": "training", "graph": "planted classes", "pairs": pairs, "way": way}


def _described(graph: PlantedGraph, known: Bounds) -> Row:
    return {
        "nodes": graph.y.numel(),
        "edges": graph.neighbors.num_edges,
        "largest_degree": int(graph.neighbors.degree.max()),
        "layers": LAYERS,
        "reachable": known.reachable,
        "features_alone": known.features_alone,
    }


def _require_lack_of_memory(error: RuntimeError) -> None:
    if not lacks_memory(error):
        raise error
