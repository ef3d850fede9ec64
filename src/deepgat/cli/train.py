"""``deepgat train``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgat.analysis import micro_f1
from deepgat.analysis.metrics import check_metric
from deepgat.cli import options as opt
from deepgat.cli.parsing import load_data, parse_numbers, parse_settings, parse_training
from deepgat.cli.runs import Output, run_seeds
from deepgat.cli.show import echo_json, print_scores
from deepgat.data import NodeDataset
from deepgat.distributed import Team, launch
from deepgat.distributed.partition_folder import is_partition, read_description, read_part
from deepgat.errors import UserError
from deepgat.machine import memory_bound
from deepgat.model_folder import check_can_keep
from deepgat.models import LabelPropagation
from deepgat.models.registry import DEFAULT, LABEL_PROPAGATION
from deepgat.tracking import Tracker, open_tracker
from deepgat.training.config_file import read_config
from deepgat.training.device import choose_device
from deepgat.training.memory import read_memory
from deepgat.training.recipes import (
    Recipe,
    drop_unsuited_self_training,
    recipe,
    recipe_or_search,
)
from deepgat.training.search import AUTO, Request, check_model, is_auto
from deepgat.training.settings import MONITORS


def train(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Argument(
            help="A name of deepgat datasets (cora, cs, …), your own graph, or a folder that "
            "deepgat partition wrote."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A TOML file of settings, or a shipped one by name; other options win over it.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="auto (the default): the best of several recipes on validation nodes; or a name "
            "of deepgat models: deep, deepgat, gat, gcnii, …"
        ),
    ] = None,
    preset: opt.Preset = None,
    score: Annotated[
        str | None, typer.Option(help="deepgat: dp or sd; gat: ad, dp or sd; oracle: sum, softmax.")
    ] = None,
    layers: opt.Layers = None,
    hidden: opt.Hidden = None,
    choice: opt.Settings = None,
    lr: opt.LearningRate = None,
    weight_decay: opt.WeightDecay = None,
    epochs: opt.Epochs = None,
    patience: opt.Patience = None,
    batches: Annotated[
        str | None,
        typer.Option(
            help="What a step sees: none (one whole graph), graphs (several; with --processes each "
            "gets whole ones), clusters or neighbours (parts of one)."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Graphs, clusters or training nodes of a batch.")
    ] = None,
    monitor: Annotated[
        str | None,
        typer.Option(help=f"What picks the best epoch: {', '.join(MONITORS)}."),
    ] = None,
    metric: opt.Metric = None,
    class_weight: opt.ClassWeight = None,
    quality: Annotated[
        str | None,
        typer.Option(
            help="Without --model: fast (one recipe by the graph's looks), good (the best of "
            "several or a mean, the default) or best (a mean of seeds and recipes)."
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Without --model: keep what is best by then."),
    ] = None,
    training_choice: Annotated[
        list[str] | None,
        typer.Option(
            "--train",
            metavar="NAME=VALUE",
            help="Any training setting, e.g. --train clusters=64; repeatable.",
        ),
    ] = None,
    split: opt.Split = None,
    read: opt.Read = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the weights, e.g. 0-9 or 0,3.")] = "0",
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Save model, scores and predictions here (several seeds: seed-K in it)."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep-graph",
            help="Keep the graph in --out too, so that predict, evaluate, inspect, view and serve "
            "need nothing else.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Keep the finished runs of the same settings in --out, and go on with one that "
            "--save-every kept.",
        ),
    ] = False,
    save_every: Annotated[
        int | None,
        typer.Option(
            metavar="EPOCHS",
            help="Save the state of the run beside --out every so many epochs.",
        ),
    ] = None,
    processes: opt.Processes = None,
    max_memory: opt.MaxMemory = None,
    track: opt.Track = None,
    track_to: opt.TrackTo = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train a model on a dataset and report micro-F1 per seed, and their mean.

    Without --model several recipes are tried, and the best one on validation nodes is kept; what
    was tried is shown. Settings of one system without its name (--layers, --set …) are deep's.

    The best epoch is chosen on validation nodes; test nodes are scored once, at the end. --metric
    says by which score, and it is reported then. Ctrl-C keeps the best weights so far.

    Example: deepgat train cora

    Example: deepgat train cs --model deepgat --preset authors --layers 15 --seeds 0-4

    Example: deepgat train --config gcnii-cora --seeds 0-9
    """
    if processes is not None and not Team.launched():
        sys.exit(launch.launch(processes, sys.argv[1:]))
    all_seeds = parse_numbers(seeds, "--seeds")
    if track_to is not None and track is None:
        raise UserError("--track-to is where a tracker writes: name it too, with --track")
    context.with_resource(memory_bound(read_memory(max_memory)))
    choices: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    frugal: bool | None = None
    if config is not None:
        file = read_config(config)
        if dataset is None or dataset.lower() == file.dataset.lower():
            dataset, split = file.dataset, file.split if split is None else split
            read = [*file.read, *(read or ())]
        if model is None or model == file.system:  # settings are of one system
            model, preset = file.system, file.preset if preset is None else preset
            if model == AUTO:
                asked = file.search_settings()
                choices |= {"num_layers": asked.num_layers} if asked.num_layers else {}
                quality = asked.quality if quality is None else quality
                frugal = asked.frugal if "frugal" in file.settings else None
            else:
                choices |= file.settings
        changes |= file.training
    if dataset is None:
        raise UserError("say what to train on: deepgat train DATASET, or --config FILE")
    folder = Path(dataset) if is_partition(dataset) else None
    if folder is not None:
        dataset, split = _partitioned(folder, split, read)
    check_model(model)
    choices |= parse_settings(choice, None if model == AUTO else model)
    choices |= opt.given(num_layers=layers, hidden_channels=hidden, score=score)
    changes |= parse_training(training_choice)
    if metric is not None:
        if monitor is not None:
            raise UserError("--metric and --monitor both pick the best epoch: give one of them")
        check_metric(metric)
        monitor = metric
    changes |= opt.given(
        lr=lr,
        weight_decay=weight_decay,
        epochs=epochs,
        patience=patience,
        monitor=monitor,
        class_weight=class_weight,
        batches=batches,
        batch_size=batch_size,
        device=device,
    )
    if model == LABEL_PROPAGATION:
        if Team.launched():
            raise UserError("label-propagation trains nothing: run it without --processes")
        if track is not None:
            raise UserError("label-propagation trains nothing: leave --track out")
        if odd := sorted(changes.keys() - {"device"}):
            raise UserError(f"label-propagation trains nothing: leave {odd[0]} out")
        hops = recipe(model, preset=preset, **choices).settings.to_dict()["num_layers"]
        _propagate_labels(load_data(dataset, split, read), hops, out, json)
        return
    if save_every is not None and save_every < 1:
        raise UserError(f"--save-every {save_every}: expected 1 or more epochs")
    resume = resume or (out is not None and launch.restarted())
    kept = (("--resume", resume), ("--save-every", save_every), ("--keep-graph", keep))
    for option, wanted in kept:
        if out is None and wanted:
            raise UserError(f"{option} needs --out: it keeps and finds runs there")
    leads = not Team.launched() or int(os.environ.get("RANK", 0)) == 0
    tracker = open_tracker(track, track_to) if leads else Tracker()
    output = Output(out, all_seeds, resume, save_every, keep, json, quiet, tracker)
    output.check()
    if Team.launched() and is_auto(model, preset, choices, changes):
        if model == AUTO or quality is not None or time_limit is not None:
            raise UserError("auto trains in one process: name a model, or leave --processes out")
        model = DEFAULT
    searched = quality is not None or time_limit is not None
    if searched and not is_auto(model, preset, choices, changes):
        raise UserError(
            "--quality and --time-limit are of auto: leave them out, or --model and its settings"
        )
    what = recipe_or_search(
        model,
        choices,
        changes,
        preset=preset,
        dataset=dataset.lower(),
        quality=quality,
        time_limit=time_limit,
        frugal=frugal,
    )
    chosen = changes if isinstance(what, Request) else what.training.to_dict()
    device = str(chosen.get("device", "auto"))
    choose_device(device)  # a wrong one is refused before loading
    team = Team.join(device) if Team.launched() else None
    data: NodeDataset
    if folder is None or team is None:
        data = load_data(dataset, split, read, leads)
    else:
        data = read_part(folder, team.rank, team.size)
    if keep:
        check_can_keep(data)
    if isinstance(what, Recipe):
        what = drop_unsuited_self_training(what, data, changes)
    run_seeds(data, what, output, team)


def _partitioned(folder: Path, split: str | None, read: list[str] | None) -> tuple[str, str]:
    """The dataset and the split of a partitioned graph; for as many processes as it has parts."""
    found = read_description(folder)
    if not Team.launched():
        raise UserError(
            f"{folder} is partitioned for {found['parts']} processes: "
            f"add --processes {found['parts']}"
        )
    if read or split not in (None, found["split"]):
        raise UserError(
            f"{folder} is read as it was written, with the split {found['split']}: "
            "leave --read away and --split too, or give them to deepgat partition"
        )
    return found["name"], found["split"]


def _propagate_labels(data: NodeDataset, hops: int, out: Path | None, json: bool) -> None:
    """Label propagation by itself: nothing is trained, --layers is the number of hops."""
    if out is not None:
        raise UserError("label-propagation has no weights to save: leave --out away")
    if data.multi_label:
        raise UserError(f"label-propagation needs one class per node; {data.title} has labels")
    graph = data.graph
    propagate = LabelPropagation(hops, data.num_classes)
    scores = propagate(graph.edge_index, graph.y, graph.train_mask)
    found = {
        part: float(micro_f1(scores[mask], graph.y[mask]))
        for part in ("train", "val", "test")
        if (mask := graph[f"{part}_mask"]).any()
    }
    if json:
        record = {"dataset": data.name, "split": data.split, "system": LABEL_PROPAGATION,
                  "settings": {"num_layers": hops}, "micro_f1": found}  # fmt: skip
        echo_json(record)
        return
    title = f"micro-F1 (%) on {data.title}, split {data.split}"
    print_scores(title, [(f"label propagation, {hops} hops", found)])
