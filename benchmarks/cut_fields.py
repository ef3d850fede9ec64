"""What cutting the receptive field costs: predictions from K hops against those of the whole graph.

    deepgat train cora --model deep --out model/ --keep-graph
    python benchmarks/cut_fields.py model/ --hops 2,4,8

Nodes are predicted one at a time, as a service would, so that no node profits from the field of
another. Prints for every K, on validation and test nodes: the share with the class that the whole
graph gives them, the accuracy, the largest change of a probability, the median number of nodes
read, and the mean processor time of a prediction.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from deepgat import Model
from deepgat.data.grown_graph import GrownGraph
from deepgat.data.surroundings import around
from deepgat.models.field import radius


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--hops", default="2,4,8")
    parser.add_argument("--nodes", type=int, default=0, help="Of each part; 0: all.")
    arguments = parser.parse_args()
    model = Model.load(arguments.model)
    data = model.training_data
    graph = model.with_graph(data).kept
    assert graph is not None
    full = radius(model.network).lists
    truth = model.predict(data).probabilities
    y = data.graph.y
    print(f"{data.title}, {model.card.system}, {model.network.num_layers} layers: {full} hops")
    print(f"{'hops':>5} {'part':5} {'agree':>7} {'right':>7} {'change':>8} {'nodes':>7} {'CPU':>9}")
    for hops in [*map(int, arguments.hops.split(",")), None]:
        for part in ("val", "test"):
            nodes = data.graph[f"{part}_mask"].nonzero().view(-1)
            if arguments.nodes:
                nodes = nodes[:: max(1, len(nodes) // arguments.nodes)][: arguments.nodes]
            begin = time.process_time()
            found = torch.cat(
                [model.predict(nodes=[n], hops=hops).probabilities for n in nodes.tolist()]
            )
            taken = (time.process_time() - begin) / len(nodes)
            limit, cut = full if hops is None else hops, hops is not None
            sizes = [
                len(around(GrownGraph(graph), np.array([n]), limit, cut=cut).nodes)
                for n in nodes[:50].tolist()
            ]
            agree = float((found.argmax(1) == truth[nodes].argmax(1)).double().mean())
            right = float((found.argmax(1) == y[nodes]).double().mean())
            change = float((found - truth[nodes]).abs().max())
            told = f"{100 * agree:6.1f}% {100 * right:6.1f}% {change:8.1e}"
            size = statistics.median(sizes)
            print(
                f"{hops or 'full':>5} {part:5} {told} {size:7.0f} {1000 * taken:6.1f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
