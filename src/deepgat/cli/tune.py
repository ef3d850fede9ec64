"""``deepgat tune``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from deepgat.analysis.metrics import check_metric
from deepgat.cli import options as opt
from deepgat.cli.parsing import load_data, parse_numbers, parse_settings
from deepgat.cli.show import ERR, OUT, echo_json, percent, print_table, progress_bar
from deepgat.errors import UserError
from deepgat.files import check_can_write, write_whole
from deepgat.training.device import choose_device
from deepgat.training.recipes import drop_unsuited_self_training, recipe
from deepgat.training.resume import Epoch
from deepgat.training.tuning import Found, SearchSpace, Trial, as_config, tune_settings


def tune(
    dataset: opt.Dataset,
    model: opt.ModelName = None,
    preset: opt.Preset = None,
    layers: opt.Layers = None,
    depths: Annotated[
        str | None, typer.Option(metavar="A-B", help="Choose the number of layers too, as in 2-16.")
    ] = None,
    choice: opt.Settings = None,
    trials: Annotated[
        int, typer.Option(help="Trials in all, those already in --storage included.")
    ] = 50,
    seeds: Annotated[str, typer.Option(help="Each trial is the mean of these, e.g. 0-2.")] = "0",
    epochs: opt.Epochs = None,
    patience: opt.Patience = None,
    metric: opt.Metric = None,
    class_weight: opt.ClassWeight = None,
    split: opt.Split = None,
    read: opt.Read = None,
    storage: Annotated[
        Path, typer.Option(help="The file that keeps the trials; a later search goes on from it.")
    ] = Path("deepgat-tune.journal"),
    out: Annotated[
        Path | None, typer.Option(help="Write the best settings here, for deepgat train --config.")
    ] = None,
    device: opt.Device = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Search good settings with Optuna, judged by validation nodes alone.

    Learning rate, weight decay, dropout, widths, heads, norm and what the model has of its own are
    chosen; the number of layers is not, unless --depths says so. Ctrl-C stops; the same command
    goes on where it stopped.

    Example: deepgat tune cora --layers 8 --trials 50 --out best.toml
    """
    if metric is not None:
        check_metric(metric)
    chosen = {"epochs": epochs, "patience": patience, "class_weight": class_weight}
    plan = recipe(
        model,
        preset=preset,
        dataset=dataset.lower(),
        training={"device": device, **opt.given(**chosen, monitor=metric)},
        **parse_settings(choice, model),
        **opt.given(num_layers=layers),
    )
    all_seeds, range_of_depths = tuple(parse_numbers(seeds, "--seeds")), _depths(depths, layers)
    choose_device(device)
    for file in (storage, out):
        if file is not None:
            check_can_write(file)
    data = load_data(dataset, split, read)
    what = SearchSpace(drop_unsuited_self_training(plan, data), all_seeds, range_of_depths)

    def on_trial(trial: Trial) -> None:
        if not quiet and not ERR.is_terminal:
            told = "given up" if trial.val_f1 is None else f"val {percent(abs(trial.val_f1))}"
            ERR.print(f"trial {trial.number + 1} of {trials}: {told}", markup=False)

    try:
        with progress_bar(quiet) as show:

            def on_epoch(trial: int, seed: int, epoch: Epoch) -> None:
                share = (trial + epoch.number / plan.training.epochs) / trials
                name = f"trial {trial + 1} of {trials}, seed {seed}"
                value = epoch.val_f1 if metric is None else abs(epoch.val_score or 0.0)
                show(name, share, f"val {metric or 'F1'} {percent(value)}")

            found = tune_settings(data, what, storage, trials, on_epoch, on_trial)
    except KeyboardInterrupt:
        ERR.print(
            f"interrupted: the finished trials are in {storage}, and the same command goes on "
            "from there",
            soft_wrap=True,
            markup=False,
        )
        sys.exit(130)
    if out is not None:
        write_whole(out, as_config(found, data))
    if json:
        echo_json(_record(found))
    else:
        _print(found, out)


def _depths(text: str | None, layers: int | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d{1,4})-(\d{1,4})\s*", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--depths {text!r}: expected the least and the most layers, as in 2-16")
    if layers is not None:
        raise UserError("--layers and --depths say the same thing twice: give one of them")
    return int(match[1]), int(match[2])


def _record(found: Found) -> dict[str, object]:
    score = f"val_{found.recipe.training.metric or 'f1'}"

    def told(value: float | None) -> float | None:
        return None if value is None else abs(value)  # errors are negated

    return {
        score: told(found.val_f1),
        "trial": found.number,
        "settings": dict(found.changed),
        "trials": [
            {"trial": trial.number, score: told(trial.val_f1), "settings": dict(trial.settings)}
            for trial in found.trials
        ],
    }


def _print(found: Found, out: Path | None) -> None:
    given_up = sum(trial.val_f1 is None for trial in found.trials)
    first = next((trial.val_f1 for trial in found.trials if trial.number == 0), None)
    start = "" if first is None else f"; {percent(abs(first))} where the search began"
    title = (
        f"Validation {found.recipe.training.metric or 'micro-F1'} "
        f"{percent(abs(found.val_f1))}% in trial {found.number + 1} of "
        f"{len(found.trials)} ({given_up} given up){start}"
    )
    rows = [
        [name, f"{value:.4g}" if isinstance(value, float) else str(value)]
        for name, value in sorted(found.changed.items())
    ]
    print_table(title, ["setting", "best"], rows)
    if out is not None:
        OUT.print(f"written to {out}: deepgat train --config {out}", soft_wrap=True)
