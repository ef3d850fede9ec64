"""``deepgat view``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepgat.cli import options as opt
from deepgat.cli.parsing import parse_reading, tell_notes
from deepgat.cli.show import OUT, note, progress_bar
from deepgat.files import check_can_write, write_whole
from deepgat.model import Model
from deepgat.view import check_can_show, page


def view(
    folder: opt.ModelFolder,
    graph: Annotated[
        str | None, typer.Argument(help="The graph to show; left out: the training graph.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "model.html"
    ),
    layout: Annotated[
        str,
        typer.Option(help="The map: tsne, pca, or auto, which is t-SNE for up to 5,000 nodes."),
    ] = "auto",
    split: Annotated[
        str | None, typer.Option(help="Which of the graph's labels are known; as in train.")
    ] = None,
    read: opt.Read = None,
    quiet: opt.Quiet = False,
) -> None:
    """Write a page that shows a model: its nodes, layers and attention, in one HTML file.

    Open it in a browser: find a node, see whom it listens to and what every layer predicts for it.
    It also has a map of the graph, the confusion matrix, over-smoothing by layer, and what auto
    tried. The file needs no network.

    A model that was trained with --keep-graph has the graph in its folder. Any other reads the
    training graph again from where it was.

    Example: deepgat train digits --out model/ && deepgat view model/ -o model.html
    """
    check_can_write(out)
    model = Model.load(folder)
    check_can_show(model, layout)
    data = model.data_for(graph, split, **parse_reading(read))
    if graph is not None or split is not None or read:
        tell_notes(data)
    with progress_bar(quiet) as show:
        text = page(model, data, layout=layout, on_step=show)
    write_whole(out, text)
    if not quiet:
        size = len(text.encode()) / 1e6
        OUT.print(f"page of {data.title}: {out} ({size:.1f} MB), open it in a browser")
        if size > 30:
            note("a phone may be slow to open a page of this size")
