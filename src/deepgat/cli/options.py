"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deepgat.analysis.metrics import METRICS

Dataset = Annotated[
    str, typer.Argument(help="A name of deepgat datasets (cora, cs, …), or your own graph.")
]
ModelFolder = Annotated[
    Path, typer.Argument(help="A folder written by deepgat train --out.", metavar="MODEL")
]
ModelName = Annotated[
    str | None,
    typer.Option(help="A name of deepgat models: deep (the default), deepgat, gat, gcnii, …"),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Of deepgat, gat and oracle: paper, the DeepGAT paper's equations, or authors, the "
        "choices of their code."
    ),
]
Layers = Annotated[int | None, typer.Option(help="L, number of layers; left out: 16 in deep.")]
Hidden = Annotated[
    int | None, typer.Option(help="Width of a hidden layer, or of each of its heads.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting of the model, e.g. --set norm=layer; repeatable. deepgat models NAME "
        "lists them.",
    ),
]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate of Adam.")]
WeightDecay = Annotated[float | None, typer.Option(help="Weight decay of Adam.")]
Epochs = Annotated[int | None, typer.Option(help="The most epochs of a training run.")]
Patience = Annotated[int | None, typer.Option(help="Epochs without improvement before stopping.")]
Metric = Annotated[
    str | None,
    typer.Option(help=f"The validation score that picks the best epoch: {', '.join(METRICS)}."),
]
ClassWeight = Annotated[
    str | None,
    typer.Option(
        help="Weights of classes in the loss: balanced, one for each (1,5), or some (spam=5)."
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="public, authors, random[:SEED[:TRAIN/VAL]], fractions:TRAIN/VAL[:SEED], stored:K."
    ),
]
Read = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        metavar="NAME=VALUE",
        help="How to read your own graph, e.g. --read missing=mean; repeatable.",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Processes = Annotated[
    int | None, typer.Option(help="Train by so many processes: same result, less memory in each.")
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="The most memory to take, e.g. 4G; left out: what the machine has. Where that is too "
        "small, layers are recomputed or the graph is trained in clusters, which is told.",
    ),
]
Track = Annotated[
    str | None,
    typer.Option(
        help="Log settings, every epoch and the scores: tensorboard, or mlflow, which also gets "
        "the model of --out."
    ),
]
TrackTo = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Folder of --track, or the address of an MLflow server; left out: runs/ for "
        "TensorBoard, MLFLOW_TRACKING_URI or mlflow.db here for MLflow.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar and no summary.")]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}
