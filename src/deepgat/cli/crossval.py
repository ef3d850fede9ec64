"""``deepgat crossval``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from statistics import stdev
from typing import Annotated, Any

import typer

from deepgat.analysis import confidence_interval
from deepgat.cli.parsing import parse_pairs
from deepgat.cli.show import ERR, OUT, BatchProgress, percent, plain_table
from deepgat.data.catalogue.graph_sets import load_graphs
from deepgat.distributed import Team, launch
from deepgat.model_folder import to_json
from deepgat.training.cross_validation import Fold, cross_validate
from deepgat.training.loop import Epoch
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
    hidden: Annotated[int | None, typer.Option(help="Width of the layers; 32.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Share of each layer's input.")] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any model setting; repeatable."),
    ] = None,
    pool: Annotated[str, typer.Option(help="Over the nodes of a graph: mean, sum or max.")] = "sum",
    attributes: Annotated[
        bool, typer.Option("--attributes", help="Use numeric node attributes too.")
    ] = False,
    folds: Annotated[int, typer.Option(help="Parts of the data, each tested once.")] = 10,
    batch: Annotated[int, typer.Option(help="Graphs per training step.")] = 32,
    lr: Annotated[float | None, typer.Option(help="Learning rate of Adam.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of Adam.")] = None,
    epochs: Annotated[int | None, typer.Option(help="The most epochs.")] = None,
    patience: Annotated[int | None, typer.Option(help="As in train.")] = None,
    seed: Annotated[int, typer.Option(help="Of the folds, the weights and the batches.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    processes: Annotated[
        int | None, typer.Option(help="Share the graphs of every step: same result, less time.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Classify whole graphs: accuracy by cross validation.

    In every fold a part of its own chooses the epoch, and the test part is scored once.

    Example: deepgat crossval mutag --model deepgat
    """
    if processes is not None and not Team.launched():
        sys.exit(launch.launch(processes, sys.argv[1:]))
    given: dict[str, Any] = {
        "lr": lr,
        "weight_decay": weight_decay,
        "epochs": epochs,
        "patience": patience,
    }
    named = {k: v for k, v in given.items() if v is not None}
    training = TrainSettings(**{**TRAINING, **named, "device": device})
    own = {"hidden_channels": hidden, "dropout": dropout}
    settings: dict[str, Any] = {"num_layers": layers, **parse_pairs(choice or [], "--set")}
    settings |= {k: v for k, v in own.items() if v is not None}
    data = load_graphs(dataset, attributes)
    team = Team.join(device) if Team.launched() else None
    first = team is None or team.rank == 0
    done: list[Fold] = []
    with BatchProgress(folds, quiet or not first) as bar:

        def on_epoch(number: int, epoch: Epoch) -> None:
            bar.follow(f"fold {number}", number, training.epochs)(epoch)

        try:
            runs = cross_validate(
                data, model, training, settings=settings, pool=pool, count=folds, batch=batch,
                seed=seed, on_epoch=on_epoch, team=team,
            )  # fmt: skip
            for fold in runs:
                done.append(fold)
        except KeyboardInterrupt:
            bar.bar.stop()
            if first:
                ERR.print(f"interrupted after {len(done)} of {folds} folds")
    if done and first:
        if json:
            typer.echo(to_json(_record(data.name, model, layers, pool, done)), nl=False)
        else:
            _print(f"{model}, {layers} layers, {pool} pooling, on {data.name}", done)
    if team is not None:
        team.barrier()
        team.leave()
    if len(done) < folds:
        sys.exit(130)


def _record(name: str, model: str, layers: int, pool: str, done: list[Fold]) -> dict[str, Any]:
    mean, half_width = confidence_interval([fold.test for fold in done])
    return {
        "dataset": name,
        "model": model,
        "layers": layers,
        "pool": pool,
        "accuracy": mean,
        "deviation": stdev([fold.test for fold in done]) if len(done) > 1 else None,
        "half_width": half_width,
        "folds": [asdict(fold) for fold in done],
    }


def _print(title: str, done: list[Fold]) -> None:
    rows = [
        [str(f.number), percent(f.test), percent(f.val), str(f.best_epoch), f"{f.seconds:.0f} s"]
        for f in done
    ]
    OUT.print(plain_table(title, ["fold", "test", "val", "best epoch", "time"], rows))
    test, half = confidence_interval([fold.test for fold in done])
    val, _ = confidence_interval([fold.val for fold in done])
    spread = f" ± {percent(stdev([fold.test for fold in done]))}" if len(done) > 1 else ""
    OUT.print(
        f"accuracy {percent(test)}{spread} % (mean and deviation over {len(done)} folds; 95% "
        f"interval of the mean ±{100 * half:.1f}); validation {percent(val)} %",
        soft_wrap=True,
    )
