"""The noise that dropout leaves in every layer of an untrained network, by α and dropout.

    python examples/dropout_noise.py cora

prints the table of docs/deep.md.
"""

import argparse

import torch

import deepgat
from deepgat.analysis import noise_by_layer
from deepgat.inputs import prepare
from deepgat.nn import build_model

SHOWN = (4, 16, 32, 64)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("dataset", nargs="?", default="csbm")
parser.add_argument("--draws", type=int, default=60)
options = parser.parse_args()
data = deepgat.load_graph(options.dataset)
print("| α | dropout | " + " | ".join(f"layer {layer}" for layer in SHOWN) + " |")
print("| --- | --- |" + " --- |" * len(SHOWN))
for alpha in (0.1, 0.2):
    for dropout in (0.6, 0.37):
        plan = deepgat.recipe(
            "deep", layers=64, initial_residual=alpha, dropout=dropout, step_depth=0,
            input_dropout=0.0,
        )  # fmt: skip
        torch.manual_seed(0)
        model = build_model(plan.model, data.num_features, data.num_classes).train()
        graph = prepare(model, data, torch.device("cpu"))[0]
        noise = noise_by_layer(lambda: graph.run(model).hidden, options.draws)  # noqa: B023
        leaves = graph.neighbors.square.degree == 2  # itself and one neighbour
        cells = [
            f"{noise[layer - 1].nanmedian():.2f} ({noise[layer - 1, leaves].nanmean():.1f})"
            for layer in SHOWN
        ]
        print(f"| {alpha} | {dropout} | " + " | ".join(cells) + " |", flush=True)
