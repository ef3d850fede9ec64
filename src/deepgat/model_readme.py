"""The model card: a ``README.md`` beside a saved model, as the Hugging Face Hub shows it.

It is made from what is saved with the model and from the training graph, and says nothing else: a
line whose value is not known is left out. Names come from a stranger's files, so every one of them
is escaped. Nothing reads the card again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from deepgat.analysis import METRICS, Calibration
from deepgat.data import NodeDataset
from deepgat.data.catalogue.entries import ENTRIES
from deepgat.data.transforms import SPLITS
from deepgat.errors import cut_middle, printable
from deepgat.models import find_system
from deepgat.models.registry import ENSEMBLE
from deepgat.training.settings import MONITORS, TrainSettings

MOST_ROWS = 50
"""Classes, columns or settings that are listed; more are counted."""
MOST_LETTERS = 80
"""Of a name; a longer one loses its middle."""
ON_THE_HUB = {
    "micro_f1": "f1",
    "macro_f1": "f1",
    "brier": "brier_score",
}
"""The Hub's names of metrics, where they differ from ours."""
ENTITIES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "&#124;",
    "`": "&#96;",
    "~": "&#126;",
    "$": "&#36;",
    "@": "&#64;",
    "://": ":&#47;&#47;",
    "www.": "www&#46;",
}
PARTS = {"train": "training", "val": "validation", "test": "test"}
PICKED_BY = {
    "val-loss": "the validation loss",
    "loss-and-errors": "the calibrated validation loss plus the share of validation errors",
    "val-f1": "the validation micro-F1",
    "train-loss": "the training loss",
}
assert PICKED_BY.keys() == set(MONITORS)


def readme(
    description: Mapping[str, Any],
    record: Mapping[str, Any],
    calibration: Calibration,
    data: NodeDataset,
) -> str:
    """The card's text.

    Args:
        description: of the model, as in ``model.json``.
        record: of the training run, as in ``metrics.json``.
        calibration: the temperature and the conformal scores.
        data: the training data; of its graphs labels and masks are enough.
    """
    counts = {part: sum(int(g[f"{part}_mask"].sum()) for g in data.graphs) for part in SPLITS}
    name = f"{description['system']} on {_data_name(data)}"
    sections = [
        _front_matter(name, description, record, data),
        f"# {text(name)}",
        "A deepgat model that predicts "
        + ("independent labels" if data.multi_label else "one class")
        + f" for every node of a graph, out of {data.num_classes:,}.",
        _data(description, data, counts),
        _training(description, record),
        _scores(record, counts),
        _probabilities(record, calibration),
        _limits(description, record, data, counts),
        _loading(description, data),
    ]
    return "\n\n".join(sections) + "\n"


def text(words: object) -> str:
    """Words as Markdown that shows them as they are: no markup, HTML or link, on one line."""
    plain = printable(str(words))
    # Entities where not every reader of Markdown takes a backslash; GitHub makes links by itself.
    for letter, entity in ENTITIES.items():
        plain = plain.replace(letter, entity)
    return re.sub(r"([\\*_{}\[\]()!]|#(?!\d))", r"\\\1", plain)


def _short(name: object) -> str:
    return cut_middle(printable(str(name)), MOST_LETTERS)


def _data_name(data: NodeDataset) -> str:
    """The name of the graph, without the folders above it."""
    return _short(os.path.basename(data.title.rstrip("/\\")) or data.title)


def _front_matter(
    name: str, description: Mapping[str, Any], record: Mapping[str, Any], data: NodeDataset
) -> str:
    """YAML that the Hub reads; every text is a JSON string, which YAML takes as it is."""
    known = {
        metric: {part: value for part, value in parts.items() if value is not None}
        for metric, parts in record["metrics"].items()
    }
    known = {metric: parts for metric, parts in known.items() if parts}
    lines = ["---", "library_name: deepgat", "pipeline_tag: graph-ml", "tags:"]
    tags = ["graph-neural-network", "node-classification", str(description["system"])]
    lines += [f"- {_quoted(tag)}" for tag in tags]
    if known:
        lines.append("metrics:")
        lines += [f"- {tag}" for tag in dict.fromkeys(ON_THE_HUB.get(m, m) for m in known)]
    results = [
        (part, metric, known[metric][part])
        for part in ("val", "test")
        for metric in known
        if part in known[metric]
    ]
    if results:
        lines += ["model-index:", f"- name: {_quoted(name)}", "  results:"]
    for part in ("val", "test"):
        rows = [row for row in results if row[0] == part]
        if not rows:
            continue
        title = _quoted(_data_name(data))
        lines += ["  - task:", "      type: node-classification", "    dataset:"]
        lines += [f"      name: {title}", f"      type: {title}", f"      split: {PARTS[part]}"]
        lines.append("    metrics:")
        for _, metric, value in rows:
            lines += [f"    - type: {ON_THE_HUB.get(metric, metric)}", f"      name: {metric}"]
            lines.append(f"      value: {value:.6g}")
    return "\n".join([*lines, "---"])


def _quoted(name: str) -> str:
    """A YAML string on one line."""
    return json.dumps(printable(name), ensure_ascii=False)


def _data(description: Mapping[str, Any], data: NodeDataset, counts: Mapping[str, int]) -> str:
    facts: list[tuple[str, object]] = [("name", _data_name(data))]
    if len(data.graphs) > 1:
        facts.append(("graphs", f"{len(data.graphs):,}"))
    facts.append(("nodes", f"{data.num_nodes:,}"))
    if all(graph.edge_index is not None for graph in data.graphs):
        edges = sum(graph.num_edges for graph in data.graphs)
        facts.append(("edges, each direction counted", f"{edges:,}"))
    facts.append(("features per node", f"{description['num_features']:,}"))
    if columns := [item["name"] for item in description["feature_plan"]]:
        facts.append(("columns they were made of", _listed(columns)))
    facts.append(("edge weights", "yes" if description["edge_weights"] else "no"))
    if description["edge_features"]:
        facts.append(("features per edge", f"{description['edge_features']:,}"))
    facts.append(("labels" if data.multi_label else "classes", f"{data.num_classes:,}"))
    facts.append(("split", data.split))
    facts += [(f"{PARTS[part]} nodes", f"{count:,}") for part, count in counts.items()]
    table = _table(["", ""], facts)
    return f"## Data\n\n{table}\n\n{_classes(data)}"


def _classes(data: NodeDataset) -> str:
    """A row per class: its name, and how many nodes of every part have it."""
    numbers = {part: torch.zeros(data.num_classes, dtype=torch.long) for part in SPLITS}
    for graph in data.graphs:
        for part in SPLITS:
            y = graph.y[graph[f"{part}_mask"]].cpu()
            numbers[part] += (
                (y > 0).sum(0) if data.multi_label else y.bincount(minlength=data.num_classes)
            )
    rows: list[Sequence[object]] = [
        (
            _short(data.class_names[c]) if data.class_names else c,
            *(f"{int(numbers[part][c]):,}" for part in SPLITS),
        )
        for c in range(min(data.num_classes, MOST_ROWS))
    ]
    kind = "label" if data.multi_label else "class"
    table = _table([f"{kind}, and its nodes in", *PARTS.values()], rows)
    if data.num_classes > MOST_ROWS:
        table += f"\n\n{data.num_classes - MOST_ROWS:,} more are not listed."
    return table


def _training(description: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    training, name = record["training"], str(description["system"])
    lines, of_what = ["## Training", ""], ""
    if name == ENSEMBLE:
        of_what = " of the first network"
        members = description["settings"]["members"]
        factors = description["settings"].get("class_factors", [])
        mean = "One network" if len(members) == 1 else f"A weighted mean of {len(members)} networks"
        if factors:
            mean += (
                ", whose probabilities are multiplied by a factor for each class "
                f"({min(factors):.2g} to {max(factors):.2g}), by how frequent it is estimated to be"
            )
        of_what = of_what if len(members) > 1 else ""
        lines.append(f"{mean}:\n")
        rows = [
            (each["system"], each["settings"]["num_layers"], f"{each['weight']:.3g}")
            for each in members
        ]
        lines.append(_table(["system", "layers", "weight"], rows))
    else:
        system = find_system(name)
        lines.append(f"System: {text(name)} ({text(system.paper)}).\n")
        lines.append(_table(["setting", "value"], description["settings"].items()))
    usual = TrainSettings().to_dict()
    other = {key: value for key, value in training.items() if value != usual.get(key)}
    if other:
        lines.append(f"\nTraining settings{of_what} other than the defaults:\n")
        lines.append(_table(["setting", "value"], other.items()))
    monitor = str(training["monitor"])
    picked = PICKED_BY.get(monitor, f"{text(monitor)} on validation nodes")
    versions = ", ".join(f"{key} {value}" for key, value in record["versions"].items())
    lines += [
        "",
        f"- Seed {record['seed']}. Epoch {record['best_epoch']:,} of {record['epochs']:,}{of_what} "
        f"was kept, chosen by {picked}.",
        f"- Training ended by: {text(record['stopped'])}, after {record['seconds']:,.0f} s on "
        f"{text(record['hardware'])}.",
        f"- Versions: {text(versions)}.",
    ]
    if record.get("memory", {}).get("asked"):
        asked = ", ".join(f"{key}={value}" for key, value in record["memory"]["asked"].items())
        lines.append(f"- Too little memory was free for what was asked for: {text(asked)}.")
    if "auto" in description:
        lines += ["", _search(description["auto"])]
    return "\n".join(lines)


def _search(auto: Mapping[str, Any]) -> str:
    """What ``auto`` tried."""
    rows = [
        (
            row["name"],
            row["system"],
            row["num_layers"] or "–",
            _percent(row["val"]),
            row["epochs"] or "–",
            row["outcome"],
        )
        for row in auto["leaderboard"]
    ]
    metric, quality = auto["metric"], auto["request"]["quality"]
    head = ["recipe", "system", "layers", f"validation {metric}, %", "epochs", "outcome"]
    told = [
        f"### What was tried\n\nauto (quality {text(quality)}) judged recipes by {text(metric)} "
        "on validation nodes.",
        _table(head, rows),
        f"Why: {text(auto['reason'])}.",
    ]
    if auto["warning"]:
        told.append(f"Warning: {text(auto['warning'])}.")
    return "\n\n".join(told)


def _scores(record: Mapping[str, Any], counts: Mapping[str, int]) -> str:
    parts = [part for part in SPLITS if counts[part]]
    rows = [
        (metric, *(_percent(record["metrics"][metric].get(part)) for part in parts))
        for metric in METRICS
        if metric in record["metrics"]
    ]
    rows += [
        (f"{metric}, calibrated", *(_percent(values.get(part)) for part in parts))
        for metric, values in record["calibrated"].items()
    ]
    head = ["in %", *(f"{PARTS[part]}, {counts[part]:,} nodes" for part in parts)]
    told = ["## Scores", _table(head, rows), "A dash: not defined for these nodes."]
    if not counts["test"]:
        told.append("There were no test nodes, so there is no test score.")
    return "\n\n".join(told)


def _probabilities(record: Mapping[str, Any], calibration: Calibration) -> str:
    temperature = calibration.temperature
    lines = ["## Probabilities", "", f"- Temperature: {temperature:.6g}."]
    if temperature == 1:
        lines[-1] += " Probabilities are as the network gives them."
    if calibration.scores:
        held = [len(each) for each in calibration.scores]
        lines.append(
            f"- Prediction sets rest on the scores of {sum(held):,} labelled nodes, between "
            f"{min(held):,} and {max(held):,} per class. The scores above do not include their "
            "coverage."
        )
    else:
        lines.append("- There are no scores for prediction sets.")
    return "\n".join(lines)


def _limits(
    description: Mapping[str, Any],
    record: Mapping[str, Any],
    data: NodeDataset,
    counts: Mapping[str, int],
) -> str:
    settings = description["settings"]
    members = [each["settings"] for each in settings.get("members", ())]
    hops = any(each.get("label_hops") for each in (settings, *members))
    reads_labels = hops and not data.multi_label
    needs = f"{description['num_features']:,} features per node, made as in training"
    if description["edge_weights"]:
        needs += ", a weight for every edge"
    if description["edge_features"]:
        needs += f", {description['edge_features']:,} features per edge"
    lines = [f"- A graph to predict needs {needs}."]
    if not description["edge_weights"]:
        lines.append("- Edge weights are refused: the model was trained without.")
    kinds = "labels" if data.multi_label else "classes"
    lines.append(f"- It knows these {data.num_classes:,} {kinds} and no others.")
    if reads_labels:
        lines.append("- It also reads the labels of a graph's training nodes.")
    seen = "this graph" if len(data.graphs) == 1 else f"these {len(data.graphs):,} graphs"
    lines.append(f"- It was scored on {seen}, with one split and one seed, and on nothing else.")
    chosen = record["training"]["monitor"] != "train-loss" or "auto" in description
    if chosen and counts["val"]:
        lines.append("- Validation nodes took part in choosing it, so their scores flatter it.")
    structure = [item for item in description["feature_plan"] if item.get("kind") == "structure"]
    if structure:
        lines.append("- It reads structural features, so it predicts whole graphs, no new nodes.")
    return "\n".join(["## Limits", "", *lines])


def _loading(description: Mapping[str, Any], data: NodeDataset) -> str:
    """Lines that run in the model's folder, wherever it is."""
    kept = "graph_sha256" in description
    named = data.name in ENTRIES
    files = os.path.isabs(data.name)
    python = ["import deepgat", "", 'model = deepgat.Model.load(".")  # the path of this folder']
    shell = []
    if kept:
        python.append("print(model.predict(nodes=[0]).labels)  # node 0 of the kept graph")
        shell.append("deepgat serve .")
    if named:
        python.append("print(model.predict().labels)  # the training graph, loaded by its name")
        shell += ["deepgat evaluate .", "deepgat predict . -o ../labels.csv"]
    elif files:
        python.append('print(model.predict(model.data_for("GRAPH")).labels)')
        shell.append("deepgat predict . GRAPH -o ../labels.csv")
    elif not kept:
        python.append("# model.predict(graph), where graph is a PyG graph with x and edge_index")
    told = ["## Loading", "", "In this folder, after `pip install deepgat`:", ""]
    told += ["```python", *python, "```"]
    if shell:
        told += ["", "```bash", *shell, "```"]
    if files and not named:
        told += ["", "Replace GRAPH by a folder or file of nodes and edges with the columns above."]
    if kept:
        told += ["", "`graph/` holds the training graph, for predictions of its nodes and of new "
                 "ones. `deepgat serve` needs `pip install 'deepgat[serve]'`."]  # fmt: skip
    return "\n".join(told)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_ROWS
    shown = [_short(name) for name in names[:MOST_ROWS]]
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of escaped cells."""
    lines = [" | ".join(text(cell) for cell in line) for line in (head, *rows)]
    lines.insert(1, " | ".join(["---"] * len(head)))
    return "\n".join(f"| {line} |" for line in lines)
