"""Execute one run: train as the spec says, measure, and store the result or the failure."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from deepgat.data import NodeDataset
from deepgat.errors import Diverged, UserError
from deepgat.files import writing
from deepgat.lab.bench.measure import begin_peak, peak_memory
from deepgat.lab.experiments.measures import MEASURES, GraphOutputs
from deepgat.lab.experiments.spec import SCHEMA, AnalysisSpec, DataSpec, RunSpec
from deepgat.lab.experiments.store import Store
from deepgat.models import Ensemble, LayerOutputs, Network
from deepgat.training.auto import train_auto
from deepgat.training.device import choose_device, lacks_memory, out_of_memory
from deepgat.training.evaluate import evaluate
from deepgat.training.inputs import prepare
from deepgat.training.run import Run, hardware, train_once, versions
from deepgat.training.search import AUTO


class Made(NamedTuple):
    """A finished run, ready to be stored."""

    record: dict[str, Any]
    arrays: dict[str, Tensor]


Perform: TypeAlias = Callable[[RunSpec, str], Made]
"""(spec, device) → the run."""


class Attempt(NamedTuple):
    """How an attempt to execute a run ended; its result or its failure is in the store."""

    problem: str = ""
    """Why there is neither, though no other process has the run: no memory, or a dead worker."""
    clean: bool = True
    """Whether the process can execute another run; an error on a GPU spoils it."""


def attempt(store: Store, spec: RunSpec, device: str, perform: Perform) -> Attempt:
    """Execute a run that no process has finished or is executing; store it or its failure."""
    mine = store.claim(spec.signature)
    if mine is None:
        return Attempt()
    with mine:
        if store.get(spec.signature) is not None:
            return Attempt()
        try:
            made = perform(spec, device)
        except (Exception, SystemExit) as error:
            if lacks_memory(error):  # perhaps only while other runs are on the GPU
                return Attempt(out_of_memory(error), clean=False)
            text = str(error)
            if not isinstance(error, UserError):
                text = f"{type(error).__name__}: {' '.join(text.split())}"[:500]
            store.fail(
                mine,
                spec,
                text,
                traceback.format_exc(),
                versions=versions(),
                hardware=hardware(device),
                diverged=isinstance(error, Diverged),
            )
            return Attempt(clean=False)
        with writing(store.folder):  # a full disk is not the run's failure
            store.add(mine, made.record, made.arrays)
        return Attempt()


def perform(spec: RunSpec, device: str) -> Made:
    """Train, score once and measure."""
    dataset = _dataset(spec.data)
    begin_peak(choose_device(device))
    start = time.perf_counter()
    if spec.system == AUTO:
        run = train_auto(dataset, spec.request(device), spec.seed, as_asked=True)
    else:
        recipe = spec.recipe
        recipe = recipe._replace(training=recipe.training.with_changes({"device": device}))
        run = train_once(dataset, recipe, spec.seed, as_asked=True)
    if run.fitted.stopped == "interrupted":
        raise KeyboardInterrupt
    arrays = {
        f"curve.{name}": torch.tensor([getattr(epoch, name) for epoch in run.fitted.history])
        for name in ("loss", "val_loss", "val_f1")
    }
    measures = {}
    if spec.analysis != AnalysisSpec():
        outputs = _outputs(run, dataset, spec.analysis.attention != "none")
        measures = {name: MEASURES[name](dataset, outputs) for name in spec.analysis.measures}
        arrays |= _kept(outputs, spec.analysis)
    plain = spec.to_dict()
    record = {
        "signature": spec.signature,
        "schema": SCHEMA,
        **run.record(),
        **({} if run.search is None else _searched(run, plain, dataset)),
        "data": plain["data"],
        "analysis": plain["analysis"],
        "measures": measures,
        "wall_seconds": round(time.perf_counter() - start, 3),
        "peak_memory": _peak_memory(choose_device(device)),
    }
    return Made(record, arrays)


def _searched(run: Run, plain: Mapping[str, Any], dataset: NodeDataset) -> dict[str, Any]:
    """What was asked of ``auto``, and what the chosen recipe scores without those averaged with it.

    The card of the run says what came of the search; so does its leaderboard.
    """
    alone = run.evaluation
    if isinstance(run.model, Ensemble):
        chosen = cast(Network, run.model.members[0])
        alone = evaluate(chosen, dataset, run.card.training.device)
    asked = {name: plain[name] for name in ("system", "settings", "training")}
    return {**asked, "alone": {"micro_f1": alone.micro_f1, "metrics": alone.metrics}}


@lru_cache(maxsize=2)
def _dataset(data: DataSpec) -> NodeDataset:
    return data.load()


def _peak_memory(device: torch.device) -> dict[str, Any]:
    """On a GPU, the memory that torch allocated; else the resident memory of the process.

    The latter includes the libraries (about 0.4 GB) and, where the system cannot reset its peak,
    earlier runs.
    """
    on_gpu = device.type == "cuda"
    what = "GPU memory allocated by torch" if on_gpu else "resident memory of the process"
    return {"bytes": int(peak_memory(device)), "of": what}


@torch.no_grad()
def _outputs(run: Run, dataset: NodeDataset, with_attention: bool) -> list[GraphOutputs]:
    """The outputs of every layer of the trained model on each graph."""
    device = choose_device(run.card.training.device)
    run.model.to(device).eval()
    return [
        GraphOutputs(data, _on_cpu(graph.run(run.model, with_attention)), graph.neighbors.to("cpu"))
        for data, graph in zip(dataset.graphs, prepare(run.model, dataset, device), strict=True)
    ]


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


def _kept(graphs: list[GraphOutputs], wanted: AnalysisSpec) -> dict[str, Tensor]:
    """The arrays that the spec keeps, with the nodes and edges of all graphs concatenated.

    ``hidden.l`` [n, width] is h^l. ``attention.l`` [E] is α of layer l, averaged over heads, with
    edges sorted by target v. The edges of v start at ``attention.ptr`` [n+1].
    """
    arrays: dict[str, Tensor] = {}
    layers = len(graphs[0].outputs.hidden)
    kept = {"none": [], "last": [layers], "all": list(range(1, layers + 1))}
    for layer in kept[wanted.representations]:
        parts = [graph.outputs.hidden[layer - 1] for graph in graphs]
        arrays[f"hidden.{layer}"] = torch.cat(parts)
    for layer in kept[wanted.attention]:
        weights = [graph.outputs.attention[layer - 1].weight.mean(1) for graph in graphs]
        arrays[f"attention.{layer}"] = torch.cat(weights)
    if wanted.attention != "none":
        degrees = torch.cat([graph.neighbors.degree for graph in graphs])
        arrays["attention.ptr"] = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)]).int()
    return arrays
