"""Coverage of prediction sets and calibration error over random splits.

Trains a model on every split and measures the test nodes: coverage and size of prediction sets,
marginal and class-conditional, calibrated on the validation nodes, which also chose the epoch and
the temperature. As a control, sets are also calibrated on as many nodes (at most half) drawn at
random from the test nodes, which chose nothing, and measured on the rest.

    python benchmarks/coverage.py --splits 20 --records coverage.jsonl

A line per run is added to the file of records; runs that are there are not repeated. The table is
printed as Markdown. cora needs DEEPGAT_DATA, the folder with its raw files.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import deepgat
from deepgat.analysis import Calibration, micro_f1, risk_coverage, set_coverage
from deepgat.analysis.calibration import confidence_and_hits

SPLITS = {
    "cora 20/30": ("cora", "random:{seed}:20/30"),
    "cora 60%/20%": ("cora", "fractions:0.6/0.2:{seed}"),
    "digits 20/30": ("digits", "random:{seed}:20/30"),
}
"""Name → dataset and split: nodes per class, or shares of all nodes, to train and to validate."""
ABSTAIN = 0.9
QUICK = {"device": "cpu", "lr": 0.05, "epochs": 100, "patience": 20}
"""A larger step and less patience than the recipe of gcn, for so many runs."""


def measure(model: deepgat.Model, data: deepgat.NodeDataset, coverage: float) -> dict[str, Any]:
    """What the test nodes say of one model."""
    graph = data.graph
    logits = model.outputs(data).logits.float().cpu()
    test = graph.test_mask.nonzero().squeeze(1)
    evaluation = model.run.evaluation
    sure, right = confidence_and_hits(
        model.calibration.probabilities(logits[test], False), graph.y[test]
    )
    (answered,) = risk_coverage(sure, right, [ABSTAIN])
    shuffled = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(0))]
    count = min(int(graph.val_mask.sum()), len(test) // 2)
    fresh, rest = shuffled[:count], shuffled[count:]
    again = Calibration.fit(logits[fresh], graph.y[fresh])
    sets = {
        "marginal": (model.calibration, test, False),
        "class-conditional": (model.calibration, test, True),
        "fresh nodes": (again, rest, False),
        "fresh nodes, class-conditional": (again, rest, True),
    }
    found = {}
    for name, (calibration, nodes, conditional) in sets.items():
        got = set_coverage(calibration.sets(logits[nodes], coverage, conditional), graph.y[nodes])
        by_class = [share for share in got.by_class if share is not None]
        found[name] = {
            "coverage": got.coverage, "size": got.size, "worst class": min(by_class),
        }  # fmt: skip
    return {
        "accuracy": float(micro_f1(logits[test], graph.y[test])),
        "temperature": model.calibration.temperature,
        "ece": evaluation.metrics["calibration_error"]["test"],
        "ece calibrated": evaluation.calibrated["calibration_error"]["test"],
        "brier": evaluation.metrics["brier"]["test"],
        "brier calibrated": evaluation.calibrated["brier"]["test"],
        "answered": answered.share,
        "accuracy of answers": answered.accuracy,
        "sets": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--splits", type=int, default=20, help="how many random splits of each")
    parser.add_argument("--coverage", type=float, default=0.9)
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--records", type=Path, default=Path("coverage.jsonl"))
    parser.add_argument("--only", default="", help="names that begin so")
    asked = parser.parse_args()
    lines = asked.records.read_text().splitlines() if asked.records.exists() else []
    records = [json.loads(line) for line in lines]
    names = [name for name in SPLITS if name.startswith(asked.only)]
    for seed in range(asked.splits):
        for name in names:
            key = {"name": name, "seed": seed, "model": asked.model, "wanted": asked.coverage}
            if any(key.items() <= record.items() for record in records):
                continue
            dataset, split = SPLITS[name]
            if dataset == "cora" and "DEEPGAT_DATA" not in os.environ:
                continue
            data = deepgat.load_graph(dataset, split.format(seed=seed))
            model = deepgat.fit(data, asked.model, training=QUICK)
            records.append({**key, **measure(model, data, asked.coverage)})
            with asked.records.open("a") as file:
                file.write(json.dumps(records[-1]) + "\n")
    mine = [r for r in records if r["model"] == asked.model and r["wanted"] == asked.coverage]
    print(f"{asked.model}, coverage {asked.coverage}; mean ± standard deviation over splits\n")
    table("calibration", mine, names, {
        "runs": None, "accuracy": ["accuracy"], "T": ["temperature"], "ECE": ["ece"],
        "ECE calibrated": ["ece calibrated"], "Brier": ["brier"],
        "Brier calibrated": ["brier calibrated"], "answered at 0.9": ["answered"],
        "accuracy of answers": ["accuracy of answers"],
    })  # fmt: skip
    for kind in ("marginal", "class-conditional", "fresh nodes", "fresh nodes, class-conditional"):
        columns = {each: ["sets", kind, each] for each in ("coverage", "size", "worst class")}
        table(kind, mine, names, columns)


def table(
    title: str, records: list[dict[str, Any]], names: list[str], columns: dict[str, Any]
) -> None:
    """Print a row per kind of split."""
    print(f"| {title} | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name in names:
        rows = [record for record in records if record["name"] == name]
        cells = []
        for path in columns.values():
            values = []
            for value in rows:
                for step in path or ():
                    value = value[step]
                values.append(value)
            if path is None:
                cells.append(str(len(rows)))
            else:
                spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
                cells.append(f"{fmean(values):.3f}{spread}" if values else "–")
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()


if __name__ == "__main__":
    main()
