"""Step time, bytes exchanged and memory of a training step in one process or several.

    python benchmarks/scaling.py cs --preset deep --layers 16
    torchrun --standalone --nproc-per-node 2 benchmarks/scaling.py cs --preset deep --layers 16
    torchrun --standalone --nproc-per-node 2 benchmarks/scaling.py cs --preset authors \\
        --parallel heads
    torchrun --standalone --nproc-per-node 4 benchmarks/scaling.py FOLDER-OF-DEEPGAT-PARTITION

Prints one JSON object: the median epoch (a step and an evaluation) by the clock, and by the
processor time of each process, which others on the machine disturb less; what each process sends in
it; and its peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import replace
from itertools import pairwise
from statistics import median

import torch

from deepgat.data import load_graph
from deepgat.distributed import Team
from deepgat.distributed.files import is_partition, read_part
from deepgat.nn import build_model
from deepgat.recipes import recipe
from deepgat.train import Epoch, fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="a dataset's name, or a folder of deepgat partition")
    parser.add_argument("--preset", default="deep")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parallel", default="parts", help="parts or heads")
    options = parser.parse_args()
    team = Team.join(options.device, options.parallel) if Team.launched() else None
    if is_partition(options.dataset):
        assert team is not None, "a partitioned graph needs torchrun"
        data = read_part(options.dataset, team.rank, team.size)
    else:
        data = load_graph(options.dataset)
    plan = recipe(options.preset, dataset=data.name, layers=options.layers)
    torch.manual_seed(0)
    model = build_model(plan.model, data.num_features, data.num_classes, data.multi_label)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    moments: list[float] = []
    worked: list[float] = []
    sent: list[int] = []

    def note(epoch: Epoch) -> None:
        moments.append(time.perf_counter())
        worked.append(time.process_time())
        sent.append(0 if team is None else team.sent)

    training = replace(plan.training, epochs=options.epochs, patience=10**6, device=options.device)
    fit(model, data, training, note, team=team)
    epochs = [later - earlier for earlier, later in pairwise(moments)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    work = median([later - earlier for earlier, later in pairwise(worked)][2:])
    mine = [sent[-1] - sent[-2], peak, peak - before, work]
    numbers = torch.tensor([mine], dtype=torch.float64)
    everyone = [numbers] if team is None else team.to_first(numbers)
    if not team or team.rank == 0:
        rows = torch.cat(everyone).tolist()
        found = {
            "dataset": data.name,
            "preset": options.preset,
            "layers": options.layers,
            "parallel": options.parallel,
            "processes": 1 if team is None else team.size,
            "threads_each": torch.get_num_threads(),
            "epoch_seconds": median(epochs[2:]),
            "processor_seconds": [round(row[3], 4) for row in rows],
            "sent_bytes_per_epoch": [int(row[0]) for row in rows],
            "peak_bytes": [int(row[1]) for row in rows],
            "peak_bytes_above_start": [int(row[2]) for row in rows],
        }
        print(json.dumps(found), flush=True)
    if team is not None:
        team.wait()
        team.leave()


if __name__ == "__main__":
    main()
