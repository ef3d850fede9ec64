"""Step time, bytes exchanged and memory of a training step in one process or several.

    python benchmarks/scaling.py cs --model deep --layers 16
    torchrun --standalone --nproc-per-node 2 benchmarks/scaling.py cs --model deep --layers 16
    torchrun --standalone --nproc-per-node 2 benchmarks/scaling.py cs --model deepgat \\
        --preset authors
    torchrun --standalone --nproc-per-node 4 benchmarks/scaling.py FOLDER-OF-DEEPGAT-PARTITION

Prints one JSON object: the median epoch (a step and an evaluation) by the clock, and by the
processor time of each process, which others on the machine disturb less; what each process sends in
it (rows of neighbours, and with ``--interface`` all bytes that left the machine by it), in how many
messages; what it owns; and its peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from deepgat.data import NodeDataset, load_graph
from deepgat.distributed import Team
from deepgat.distributed.part_dataset import PartDataset, part_of
from deepgat.distributed.partition_folder import is_partition, read_part
from deepgat.training.loop import train
from deepgat.training.recipes import recipe
from deepgat.training.resume import Epoch
from deepgat.training.run import ModelCard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="a dataset's name, or a folder of deepgat partition")
    parser.add_argument("--model", default="deep")
    parser.add_argument("--preset")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--interface", help="count the bytes that leave by it")
    options = parser.parse_args()
    team = Team.join(options.device) if Team.launched() else None
    data: NodeDataset | PartDataset
    if is_partition(options.dataset):
        assert team is not None, "a partitioned graph needs torchrun"
        data = read_part(options.dataset, team.rank, team.size)
    else:
        data = load_graph(options.dataset)
    plan = recipe(
        options.model, preset=options.preset, dataset=data.name, num_layers=options.layers
    )
    model = ModelCard.of(data, plan).build()
    if team is not None:
        data = part_of(data, team)
    graphs = data.graphs
    own = sum(graph.num_nodes if team is None else graph.y.size(0) for graph in graphs)
    halo = sum(len(graph.ids) - graph.own for graph in graphs) if team is not None else 0
    edges = sum(graph.edge_index.size(1) for graph in graphs)
    messages = [0]
    count_calls(messages)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    moments: list[float] = []
    worked: list[float] = []
    sent: list[tuple[int, int, int]] = []

    def note(epoch: Epoch) -> None:
        moments.append(time.perf_counter())
        worked.append(time.process_time())
        rows = 0 if team is None else team.sent
        sent.append((rows, messages[0], bytes_out(options.interface)))

    training = replace(plan.training, epochs=options.epochs, patience=10**6, device=options.device)
    train(model, data, training, note, team=team)
    epochs = [later - earlier for earlier, later in pairwise(moments)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    work = median([later - earlier for earlier, later in pairwise(worked)][2:])
    apart = [later - earlier for earlier, later in zip(sent[-2], sent[-1], strict=True)]
    mine = [*apart, peak, peak - before, work, own, halo, edges]
    numbers = torch.tensor([mine], dtype=torch.float64)
    everyone = [numbers] if team is None else team.gather_to_first(numbers)
    if not team or team.rank == 0:
        rows, settings = torch.cat(everyone).tolist(), plan.settings.to_dict()
        found = {
            "dataset": data.name,
            "preset": options.preset or options.model,  # one name, as the stored rows have it
            "layers": options.layers,
            "processes": 1 if team is None else team.size,
            "threads_each": torch.get_num_threads(),
            "heads": settings.get("heads", 1),
            "hidden": settings["hidden_channels"],
            "classes": data.num_classes,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "load": round(os.getloadavg()[0], 1),
            "epoch_seconds": median(epochs[2:]),
            "processor_seconds": [round(row[5], 4) for row in rows],
            "sent_bytes_per_epoch": column(rows, 0),
            "messages_per_epoch": column(rows, 1),
            "interface_bytes_per_epoch": column(rows, 2),
            "peak_bytes": column(rows, 3),
            "peak_bytes_above_start": column(rows, 4),
            "own": column(rows, 6),
            "halo": column(rows, 7),
            "edges": column(rows, 8),
        }
        print(json.dumps(found), flush=True)
    if team is not None:
        team.barrier()
        team.leave()


def column(rows: list[list[float]], number: int) -> list[int]:
    return [int(row[number]) for row in rows]


def count_calls(count: list[int]) -> None:
    """From now on ``count[0]`` grows with every message to all: of rows, and of sums."""

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            return operation(*arguments, **named)

        return run

    for name in ("all_to_all_single", "all_gather"):
        setattr(dist, name, counted(getattr(dist, name)))


def bytes_out(interface: str | None) -> int:
    """Bytes that left by a network interface so far, as the kernel counts them; 0 without one."""
    if interface is None:
        return 0
    lines = Path("/proc/net/dev").read_text().splitlines()
    line = next(row for row in lines if row.strip().startswith(interface + ":"))
    return int(line.split(":")[1].split()[8])


if __name__ == "__main__":
    main()
