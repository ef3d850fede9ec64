"""``deepgat crossval``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from deepgat.analysis import confidence_interval
from deepgat.cli import options as opt
from deepgat.cli.parsing import parse_pairs
from deepgat.cli.show import ERR, OUT, echo_json, percent, print_table, progress_bar
from deepgat.data.catalogue.graph_sets import load_graphs
from deepgat.distributed import Team, launch
from deepgat.training.cross_validation import Fold, config_of, cross_validate
from deepgat.training.resume import Epoch
from deepgat.training.settings import TrainSettings

TRAINING = {"lr": 0.01, "weight_decay": 0.0, "epochs": 200, "patience": 60}


def crossval(
    dataset: Annotated[
        str, typer.Argument(help="mutag, proteins, or a folder in the TU collection's format.")
    ],
    model: Annotated[
        str, typer.Option(help="gin, or a name of deepgat models: deepgat, gat, gcn, …")
    ] = "deepgat",
    layers: Annotated[int, typer.Option(help="L, number of layers.")] = 4,
    hidden: opt.Hidden = None,
    choice: opt.Settings = None,
    pool: Annotated[str, typer.Option(help="Over the nodes of a graph: mean, sum or max.")] = "sum",
    attributes: Annotated[
        bool, typer.Option("--attributes", help="Use numeric node attributes too.")
    ] = False,
    folds: Annotated[int, typer.Option(help="Parts of the data, each tested once.")] = 10,
    batch: Annotated[int, typer.Option(help="Graphs per training step.")] = 32,
    lr: opt.LearningRate = None,
    weight_decay: opt.WeightDecay = None,
    epochs: opt.Epochs = None,
    patience: opt.Patience = None,
    seed: Annotated[int, typer.Option(help="Of the folds, the weights and the batches.")] = 0,
    device: opt.Device = "auto",
    processes: opt.Processes = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Classify whole graphs: accuracy by cross validation.

    In every fold a part of its own chooses the epoch, and the test part is scored once.

    Example: deepgat crossval mutag --model deepgat
    """
    if processes is not None and not Team.launched():
        sys.exit(launch.launch(processes, sys.argv[1:]))
    named = opt.given(lr=lr, weight_decay=weight_decay, epochs=epochs, patience=patience)
    training = TrainSettings(**{**TRAINING, **named, "device": device})
    settings = {
        "num_layers": layers,
        **parse_pairs(choice, "--set", config_of(model), f"setting of {model}"),
    }
    settings |= opt.given(hidden_channels=hidden)
    data = load_graphs(dataset, attributes)
    team = Team.join(device) if Team.launched() else None
    first = team is None or team.rank == 0
    done: list[Fold] = []
    try:
        with progress_bar(quiet or not first) as show:

            def on_epoch(number: int, epoch: Epoch) -> None:
                share = (number - 1 + epoch.number / training.epochs) / folds
                show(f"fold {number} of {folds}", share, f"val F1 {percent(epoch.val_f1)}")

            runs = cross_validate(
                data, model, training, settings=settings, pool=pool, count=folds, batch=batch,
                seed=seed, on_epoch=on_epoch, team=team,
            )  # fmt: skip
            for fold in runs:
                done.append(fold)
    except KeyboardInterrupt:
        if first:
            ERR.print(f"interrupted after {len(done)} of {folds} folds")
    if done and first:
        title = f"{model}, {layers} layers, {pool} pooling, on {data.name}"
        mean, half_width = confidence_interval([fold.test for fold in done])
        record = {
            "dataset": data.name,
            "model": model,
            "layers": layers,
            "pool": pool,
            "accuracy": mean,
            "deviation": stdev([fold.test for fold in done]) if len(done) > 1 else None,
            "half_width": half_width,
            "folds": [asdict(fold) for fold in done],
        }
        if json:
            echo_json(record)
        else:
            _print(title, record, done)
    if team is not None:
        team.barrier()
        team.leave()
    if len(done) < folds:
        sys.exit(130)


def _print(title: str, record: dict[str, Any], done: list[Fold]) -> None:
    rows = [
        [str(f.number), percent(f.test), percent(f.val), str(f.best_epoch), f"{f.seconds:.0f} s"]
        for f in done
    ]
    print_table(title, ["fold", "test", "val", "best epoch", "time"], rows)
    spread = "" if record["deviation"] is None else f" ± {percent(record['deviation'])}"
    OUT.print(
        f"accuracy {percent(record['accuracy'])}{spread} % (mean and deviation over {len(done)} "
        f"folds; 95% interval of the mean ±{100 * record['half_width']:.1f}); validation "
        f"{percent(fmean(fold.val for fold in done))} %",
        soft_wrap=True,
    )
