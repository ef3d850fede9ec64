"""Size and speed of exported programs: deepgat itself, pt2, ONNX and AOTInductor, in one run.

    python benchmarks/export.py cora --model deep --layers 16

Trains briefly, since time does not depend on the weights, and exports the model in every format.
"time" is the median of forward passes over the whole graph with one thread; the formats take turns,
so that other load on the machine meets all of them. "ratio" is the time over deepgat's. All take
dense features. The programs sort the edges at every call; deepgat keeps its neighbour lists, which
are built before the first pass. "difference" is the largest one between logits and deepgat's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import deepgat
from deepgat.export import FORMATS
from deepgat.export.running import Run
from deepgat.ops import Neighbors


def passes(
    model: deepgat.Model, data: deepgat.NodeDataset, folder: Path
) -> tuple[dict[str, Callable[[], Tensor]], dict[str, Path]]:
    """{name: a forward pass that returns logits} and {name: its file}."""
    graph = data.graph
    lists = Neighbors.from_edge_index(graph.edge_index, graph.num_nodes)
    x = graph.x.to_dense() if graph.x.layout != torch.strided else graph.x
    inputs = {"x": x.contiguous(), "edge_index": graph.edge_index}
    network = model.network.cpu().eval()
    model.save(folder / "model")
    run: dict[str, Callable[[], Tensor]] = {"deepgat": lambda: network.run(x, lists).logits}
    files = {"deepgat": folder / "model" / "model.safetensors"}
    for name, kind in FORMATS.items():
        file = folder / f"{name}.{'onnx' if name == 'onnx' else 'pt2'}"
        begin = time.perf_counter()
        exported = model.export(file, name)
        print(f"{name}: exported in {time.perf_counter() - begin:.0f} s", flush=True)
        if exported.inputs != tuple(inputs):
            raise SystemExit(f"the program takes {exported.inputs}: choose a model without labels")
        if name == "onnx":
            run[name] = onnx_pass(file, inputs)
        else:
            found = kind.read(file.read_bytes())
            assert found is not None
            run[name] = partial(_logits, found, inputs)
        files[name] = file
    return run, files


def onnx_pass(file: Path, inputs: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    """A pass by onnxruntime, which by default takes a thread per core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options)
    arrays = {name: x.numpy() for name, x in inputs.items()}
    return lambda: torch.from_numpy(session.run(["logits"], arrays)[0])


def _logits(run: Run, inputs: Mapping[str, Tensor]) -> Tensor:
    return run(inputs)["logits"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", nargs="?", default="cora")
    parser.add_argument("--model", default="deep")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        raise SystemExit("set OMP_NUM_THREADS=1: compiled code reads it at its start")
    torch.set_num_threads(1)
    data = deepgat.load_graph(args.dataset)
    training = {"epochs": args.epochs, "device": "cpu"}
    model = deepgat.fit(data, args.model, num_layers=args.layers, training=training)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        run, files = passes(model, data, Path(folder))
        wanted = run["deepgat"]()
        apart = {name: float((each() - wanted).abs().max()) for name, each in run.items()}
        times: dict[str, list[float]] = {name: [] for name in run}
        for _ in range(args.rounds):
            for name, each in run.items():
                begin = time.perf_counter()
                each()
                times[name].append(time.perf_counter() - begin)
        base = statistics.median(times["deepgat"])
        print("| | file, KiB | time, ms | ratio | difference |")
        print("|---|---|---|---|---|")
        for name, seconds in times.items():
            middle = statistics.median(seconds)
            size = files[name].stat().st_size / 1024
            print(
                f"| {name} | {size:,.0f} | {1e3 * middle:.1f} | {middle / base:.2f} "
                f"| {apart[name]:.0e} |"
            )


if __name__ == "__main__":
    main()
