"""``deepgat export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepgat.cli import options as opt
from deepgat.cli.show import ERR, note
from deepgat.export import FORMATS, check_target
from deepgat.model import Model

_MEANINGS = "; ".join(f"{name}: {each.meaning}" for name, each in FORMATS.items())


def export(
    folder: opt.ModelFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.", metavar="FILE")],
    format: Annotated[
        str | None,
        typer.Option(help=f"{_MEANINGS}. Left out: by the ending of the file, .pt2 or .onnx."),
    ] = None,
    sparse: Annotated[
        bool,
        typer.Option("--sparse", help="Take features as a CSR matrix: x_crow, x_col, x_value."),
    ] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write a model as a program that runs without deepgat: PyTorch, ONNX, AOTInductor.

    The program takes a graph of any size as it is: node features x and edge_index, where repeated
    edges and self-loops are allowed. It returns logits, probabilities and the logits of every layer
    that predicts. The file is run on small random graphs and compared with the model before it is
    written. The format aoti needs a C++ compiler and takes a minute or more.

    Example: deepgat export model/ -o model.onnx
    """
    check_target(out, format)
    found = Model.load(folder).export(out, format, sparse=sparse)
    if quiet:
        return
    for text in found.notes:
        note(text)
    tested = "onnxruntime is not installed, so the file was not run"
    if found.difference is not None:
        tested = f"logits differ from the model's by at most {found.difference:.1g}"
    ERR.print(
        f"{found.format} with the inputs {', '.join(found.inputs)}; {tested}; written to "
        f"{found.path}",
        soft_wrap=True,
        markup=False,
    )
