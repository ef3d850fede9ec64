"""Execute one run: train as the spec says, measure, and record time and memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from deepgat.data import NodeDataset
from deepgat.lab.experiments.measures import MEASURES, Trained
from deepgat.lab.experiments.spec import SCHEMA, AnalysisSpec, DataSpec, RunSpec
from deepgat.models import LayerOutputs
from deepgat.training.loop import Epoch, choose_device, prepare
from deepgat.training.run import Run, train_once


class Made(NamedTuple):
    """A finished run, ready to be stored."""

    record: dict[str, Any]
    arrays: dict[str, Tensor]


OnEpoch: TypeAlias = Callable[[Epoch], None]
Perform: TypeAlias = Callable[[RunSpec, str, OnEpoch | None], Made]
"""(spec, device, callback after every epoch) → the run."""


def make_run(
    spec: RunSpec,
    dataset: NodeDataset,
    device: str = "auto",
    on_epoch: OnEpoch | None = None,
) -> Made:
    """Train, score once and measure; ``dataset`` is the result of ``spec.data.load()``."""
    memory = PeakMemory(choose_device(device))
    start = time.perf_counter()
    recipe = spec.recipe
    recipe = recipe._replace(training=recipe.training.with_changes({"device": device}))
    run = train_once(dataset, recipe, spec.seed, on_epoch)
    if run.fitted.stopped == "interrupted":
        raise KeyboardInterrupt
    arrays = _curve(run)
    measures = {}
    if spec.analysis != AnalysisSpec():
        trained = _trained(run, dataset, spec.analysis.attention != "none")
        measures = {name: MEASURES[name](trained) for name in spec.analysis.measures}
        arrays |= _kept(trained, spec.analysis)
    plain = spec.to_dict()
    record = {
        "signature": spec.signature,
        "schema": SCHEMA,
        **run.record(),
        "data": plain["data"],
        "analysis": plain["analysis"],
        "measures": measures,
        "wall_seconds": round(time.perf_counter() - start, 3),
        "peak_memory": memory.describe(),
    }
    return Made(record, arrays)


def perform(spec: RunSpec, device: str, on_epoch: OnEpoch | None) -> Made:
    """:func:`make_run` with the spec's dataset, cached for the next run."""
    return make_run(spec, _dataset(spec.data), device, on_epoch)


@lru_cache(maxsize=2)
def _dataset(data: DataSpec) -> NodeDataset:
    return data.load()


class PeakMemory:
    """Peak memory since this object was made.

    On a GPU, the memory that torch allocated. Else the resident memory of the process, which
    includes the libraries (about 0.4 GB) and, where the system cannot reset its peak, earlier runs.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak

    def describe(self) -> dict[str, Any]:
        if self.device.type == "cuda":
            size = torch.cuda.max_memory_allocated(self.device)
            return {"bytes": size, "of": "GPU memory allocated by torch"}
        unit = 1 if sys.platform == "darwin" else 1024
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return {"bytes": size, "of": "resident memory of the process"}


def _curve(run: Run) -> dict[str, Tensor]:
    """Training loss, validation loss and validation micro-F1 of every epoch."""
    names = ("loss", "val_loss", "val_f1")
    return {
        f"curve.{name}": torch.tensor([getattr(epoch, name) for epoch in run.fitted.history])
        for name in names
    }


@torch.no_grad()
def _trained(run: Run, dataset: NodeDataset, with_attention: bool) -> Trained:
    """The outputs of every layer of the trained model on each graph."""
    device = choose_device(run.card.training.device)
    run.model.to(device).eval()
    graphs = prepare(run.model, dataset, device)
    outputs = [_on_cpu(graph.run(run.model, with_attention)) for graph in graphs]
    return Trained(run, dataset, outputs, [graph.neighbors.to("cpu") for graph in graphs])


def _on_cpu(outputs: LayerOutputs) -> LayerOutputs:
    return LayerOutputs(
        outputs.logits.float().cpu(),
        {layer: logits.float().cpu() for layer, logits in outputs.layer_logits.items()},
        [hidden.float().cpu() for hidden in outputs.hidden],
        [
            item._replace(edge_index=item.edge_index.cpu(), weight=item.weight.float().cpu())
            for item in outputs.attention
        ],
    )


def _kept(trained: Trained, wanted: AnalysisSpec) -> dict[str, Tensor]:
    """The arrays that the spec keeps, with the nodes and edges of all graphs concatenated.

    ``hidden.l`` [n, width] is h^l. ``attention.l`` [E] is α of layer l, averaged over heads, with
    edges sorted by target v. The edges of v start at ``attention.ptr`` [n+1].
    """
    arrays: dict[str, Tensor] = {}
    layers = len(trained.outputs[0].hidden)
    for layer in _layers(wanted.representations, layers):
        parts = [out.hidden[layer - 1] for out in trained.outputs]
        arrays[f"hidden.{layer}"] = torch.cat(parts)
    for layer in _layers(wanted.attention, layers):
        weights = [out.attention[layer - 1].weight.mean(1) for out in trained.outputs]
        arrays[f"attention.{layer}"] = torch.cat(weights)
    if wanted.attention != "none":
        degrees = torch.cat([neighbors.degree for neighbors in trained.neighbors])
        arrays["attention.ptr"] = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)]).int()
    return arrays


def _layers(wanted: str, layers: int) -> range:
    return {"none": range(0), "last": range(layers, layers + 1), "all": range(1, layers + 1)}[
        wanted
    ]
