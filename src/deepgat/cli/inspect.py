"""``deepgat inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from deepgat.cli import options as opt
from deepgat.cli.parsing import check_picture, parse_reading
from deepgat.cli.show import OUT, echo_json, print_table
from deepgat.data.names import Names
from deepgat.errors import UserError
from deepgat.model import Model
from deepgat.predictions import Explanation

MOST_LAYERS = 6
"""Columns that fit beside each other; --json has all layers."""


def inspect(
    folder: opt.ModelFolder,
    node: Annotated[str, typer.Argument(help="The node, by its id or number.")],
    graph: Annotated[
        str | None, typer.Option(help="Another graph; left out: the training graph.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many neighbours to show, the most heard.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Draw a picture here (.png, .pdf).")] = None,
    read: opt.Read = None,
    json: opt.Json = False,
) -> None:
    """One node: the class that every layer gives it, and whom it listens to.

    A model that was trained with --keep-graph has the graph in its folder. Any other reads the
    training graph again from where it was.

    Example: deepgat inspect model/ 42 --out node-42.png
    """
    if top < 1:
        raise UserError(f"--top {top}: expected 1 or more")
    check_picture(out)
    model = Model.load(folder)
    data = model.data_for(graph, **parse_reading(read))
    names = Names.of(data)
    found = model.explain(names.find(node, data.graph.num_nodes), data)
    depth = len(found.attention)
    shown = np.linspace(1, depth, min(depth, MOST_LAYERS)).round().astype(int).tolist()
    order = found.attention.mean(0)[1:].argsort(descending=True)[:top] + 1
    kept = [0, *order.tolist()]  # the node itself first
    record = _record(found, names, kept)
    if json:
        echo_json(record)
    else:
        what = "Weights of the graph" if model.network.fixed_attention else "Attention"
        _print(record, shown, len(found.neighbors) - len(kept), what)
    if out is not None:
        from deepgat.figures import (  # here: it loads a plotting library
            inspection_figure,
            save_figure,
        )

        figure = inspection_figure(
            f"Node {record['node']} of {data.title}",
            [each["node"] for each in record["neighbours"]],
            [names.label(c) for c in range(model.card.num_classes)],
            {layer: shares[kept].tolist() for layer, shares in found.layers.items()},
            found.attention[:, kept].tolist(),
            shown,
        )
        save_figure(figure, out)
        if not json:
            OUT.print(f"Picture: {out}", soft_wrap=True)


def _record(found: Explanation, names: Names, kept: list[int]) -> dict[str, Any]:
    return {
        "node": names.node(found.node),
        "label": None if found.label is None else names.label(found.label),
        "layers": {
            str(layer): {
                "class": names.label(int(shares[0].argmax())),
                "probabilities": shares[0].tolist(),
            }
            for layer, shares in found.layers.items()
        },
        "neighbours": [
            {
                "node": names.node(int(found.neighbors[place])),
                "class": names.label(int(found.layers[max(found.layers)][place].argmax())),
                "attention": found.attention[:, place].tolist(),
            }
            for place in kept
        ],
    }


def _print(record: dict[str, Any], shown: list[int], more: int, what: str) -> None:
    told = "" if record["label"] is None else f", its class is {record['label']}"
    rows = []
    for layer in map(str, (0, *shown)):
        if layer in record["layers"]:
            found = record["layers"][layer]
            rows.append([layer, found["class"], f"{100 * max(found['probabilities']):.1f}%"])
    title = f"Node {record['node']}{told}: what the layers predict"
    print_table(title, ["after layer", "class", "probability"], rows)
    rows = []
    for place, each in enumerate(record["neighbours"]):
        weights = [f"{100 * each['attention'][layer - 1]:.1f}" for layer in shown]
        rows.append([each["node"] + (" (itself)" if place == 0 else ""), each["class"], *weights])
    hidden = f"; {more} more neighbours are not shown" if more else ""
    print_table(f"{what} (%) per layer{hidden}", ["neighbour", "class", *map(str, shown)], rows)
