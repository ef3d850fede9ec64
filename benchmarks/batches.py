"""Time and memory of one training step on a whole graph and on mini-batches, and of evaluation.

    python benchmarks/batches.py cs --model deep --layers 16

Prints one JSON object. A step is forward pass, loss and backward pass, on the largest batch that
one epoch drew; memory is the peak above what was there before. Evaluation is that of all nodes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch

from deepgat.data import load_graph
from deepgat.lab.bench.measure import measure
from deepgat.models import Network
from deepgat.training.device import choose_device
from deepgat.training.inputs import GraphInputs, prepare
from deepgat.training.minibatch import SampledInputs, in_chunks
from deepgat.training.recipes import recipe
from deepgat.training.run import ModelCard

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--model", default="deep")
    parser.add_argument("--preset")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--fan-out", default="10")
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--most-nodes", type=int, default=4000)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = choose_device(options.device)
    data = load_graph(options.dataset)
    plan = recipe(
        options.model, preset=options.preset, dataset=data.name, num_layers=options.layers
    )
    model = ModelCard.of(data, plan).build()
    model.to(device)
    (whole,), (held,) = prepare(model, data, device), prepare(model, data, CPU)
    steps = {"whole": whole}
    counts = {"whole": 1}
    for kind in ("clusters", "neighbours"):
        training = plan.training.with_changes(
            {
                "batches": kind,
                "fan_out": options.fan_out,
                "batch_size": options.batch_size if kind == "neighbours" else 0,
                "most_nodes": options.most_nodes,
            }
        )
        batches = list(SampledInputs(model, [held], training, device).training())
        steps[kind] = max(batches, key=lambda batch: batch.y.size(0))
        counts[kind] = len(batches)
    model.train()
    found = measure({name: _step(model, graph) for name, graph in steps.items()}, device)
    model.eval()
    chunked = in_chunks(held, options.most_nodes, device)
    ways = {"evaluation, whole": whole, "evaluation, layer by layer": chunked}
    found |= measure({name: _evaluation(model, graph) for name, graph in ways.items()}, device)
    for name, graph in steps.items():
        print(f"{name}: {graph.y.size(0)} nodes, {graph.neighbors.num_edges} edges", flush=True)
    numbers = {
        name: {"milliseconds": round(each.milliseconds, 1), "megabytes": round(each.peak_megabytes)}
        for name, each in found.items()
    }
    about = {"dataset": data.name, "model": options.model, "layers": options.layers}
    print(json.dumps(about | {"steps_per_epoch": counts, "measured": numbers}))


def _step(model: Network, graph: GraphInputs) -> Callable[[], object]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        outputs = graph.run(model)
        model.loss(outputs.layer_logits, graph.y, graph.nodes["train"]).backward()

    return step


def _evaluation(model: Network, graph: GraphInputs) -> Callable[[], object]:
    @torch.no_grad()
    def step() -> object:
        return graph.run(model).logits

    return step


if __name__ == "__main__":
    main()
