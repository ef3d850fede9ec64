"""``deepgat inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepgat.cli.parsing import check_picture, parse_numbers
from deepgat.cli.reading import ReadOption, parse_reading
from deepgat.cli.show import OUT, plain_table
from deepgat.data.names import Names
from deepgat.errors import UserError
from deepgat.model import Explanation, Model
from deepgat.model_folder import to_json

MOST_LAYERS = 6
"""Columns that fit beside each other."""


def inspect(
    folder: Annotated[
        Path, typer.Argument(help="A folder written by deepgat train --out.", metavar="MODEL")
    ],
    node: Annotated[str, typer.Argument(help="The node, by its id or number.")],
    graph: Annotated[
        str | None, typer.Option(help="Another graph; left out: the training graph.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many neighbours to show, the most heard.")] = 10,
    layers: Annotated[
        str | None, typer.Option(help="Which layers to show, e.g. 1,2,8; left out: a selection.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw a picture here (.png, .pdf).")] = None,
    read: ReadOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """One node: the class that every layer gives it, and whom it listens to in every layer.

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
    shown = _layers(layers, depth)
    order = found.attention.mean(0)[1:].argsort(descending=True)[:top] + 1
    kept = [0, *order.tolist()]  # the node itself first
    if json:
        typer.echo(to_json(_record(found, names, kept)), nl=False)
    else:
        _print(found, names, kept, shown)
    if out is not None:
        from deepgat.figures import (  # here: it loads a plotting library
            inspection_figure,
            save_figure,
        )

        title = f"Node {names.node(found.node)} of {data.title}"
        figure = inspection_figure(
            title,
            [names.node(int(found.neighbors[place])) for place in kept],
            [names.label(c) for c in range(model.card.num_classes)],
            {layer: shares[kept].tolist() for layer, shares in found.layers.items()},
            found.attention[:, kept].tolist(),
            shown,
        )
        save_figure(figure, out)
        if not json:
            OUT.print(f"Picture: {out}", soft_wrap=True)


def _layers(text: str | None, depth: int) -> list[int]:
    if text is not None:
        chosen = parse_numbers(text, "--layers")
        if not chosen or not all(1 <= layer <= depth for layer in chosen):
            raise UserError(f"--layers {text}: the model has the layers 1 to {depth}")
        return chosen
    if depth <= MOST_LAYERS:
        return list(range(1, depth + 1))
    step = (depth - 1) / (MOST_LAYERS - 1)
    return [1 + round(index * step) for index in range(MOST_LAYERS)]


def _print(found: Explanation, names: Names, kept: list[int], shown: list[int]) -> None:
    last = max(found.layers)
    told = "" if found.label is None else f", its class is {names.label(found.label)}"
    rows = []
    for layer in [0, *shown]:
        if layer in found.layers:
            shares = found.layers[layer][0]
            best = int(shares.argmax())
            rows.append([str(layer), names.label(best), f"{100 * float(shares[best]):.1f}%"])
    title = f"Node {names.node(found.node)}{told}: what the layers predict"
    OUT.print(title, soft_wrap=True, style="italic")
    OUT.print(plain_table("", ["after layer", "class", "probability"], rows))
    rows = []
    for place in kept:
        name = names.node(int(found.neighbors[place]))
        best = int(found.layers[last][place].argmax())
        weights = [f"{100 * float(found.attention[layer - 1, place]):.1f}" for layer in shown]
        rows.append([name + (" (itself)" if place == 0 else ""), names.label(best), *weights])
    hidden = len(found.neighbors) - len(kept)
    more = f"; {hidden} more neighbours are not shown" if hidden else ""
    OUT.print(f"Attention (%) per layer{more}", soft_wrap=True, style="italic")
    OUT.print(plain_table("", ["neighbour", "class", *map(str, shown)], rows))


def _record(found: Explanation, names: Names, kept: list[int]) -> dict[str, object]:
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
