"""``deepgat demo``."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from deepgat import demo as demonstration
from deepgat.cli.show import ERR, OUT, BatchProgress, demo_table
from deepgat.errors import UserError
from deepgat.training.loop import Epoch


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("demo-output"),
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Watch GAT collapse with depth while DeepGAT does not.

    Trains both at 2, 4, 8 and 15 layers, three seeds each, on a random graph with hidden classes
    (csbm). About two minutes on two CPU cores; no download.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: --out expects a folder")
    from deepgat.figures import depth_figure, save_figure  # here: it loads a plotting library

    ERR.print("GAT and DeepGAT with 2 to 15 layers, three seeds each: a few minutes.")
    total = len(demonstration.MODELS) * len(demonstration.DEPTHS) * len(demonstration.SEEDS)
    with BatchProgress(total, quiet) as progress:

        def watch(model: str, layers: int, number: int) -> Callable[[Epoch], None] | None:
            epochs = demonstration.demo_recipe("gat", layers).training.epochs
            return progress.follow(f"{model}, {layers} layers", number, epochs)

        data, points = demonstration.run_demo(watch=watch)
    OUT.print(demo_table(points))
    curves = {
        name: {point.layers: point.test_f1 for point in points if point.model == name}
        for name in demonstration.MODELS
    }
    figure = depth_figure(
        curves,
        "A graph of 2,000 nodes in 5 classes, 20 labels per class (mean of 3 seeds)",
        chance=1 / data.num_classes,
    )
    path = save_figure(figure, out / "depth.png")
    OUT.print(textwrap.fill(demonstration.explain(points), 80))
    OUT.print(f"\nFigure: {path}", soft_wrap=True)
    OUT.print(
        "Next: deepgat train digits (the default recipe, made for depth; some minutes), deepgat "
        "check my-graph/ (a graph of your own), deepgat models.",
        soft_wrap=True,
        highlight=False,
    )
