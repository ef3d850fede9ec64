"""``deepgat train``."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgat.analysis import micro_f1
from deepgat.analysis.metrics import check_metric
from deepgat.cli import options as opt
from deepgat.cli.auto import AutoOutput, search
from deepgat.cli.parsing import parse_numbers, parse_settings, parse_training
from deepgat.cli.reading import ReadOption, load_data
from deepgat.cli.runs import print_runs, save_anywhere
from deepgat.cli.show import (
    ERR,
    OUT,
    echo_json,
    percent,
    print_scores,
    progress_bar,
)
from deepgat.data import NodeDataset
from deepgat.distributed import PartDataset, Team, launch, whole_labels
from deepgat.distributed.partition_folder import is_partition, read_description, read_part
from deepgat.errors import UserError
from deepgat.files import check_can_write
from deepgat.machine import memory_bound
from deepgat.model_folder import (
    MODEL_FOLDER,
    check_can_keep,
    is_model_folder,
    keep_graph,
    saved_record,
)
from deepgat.models import LabelPropagation
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.tracking import Tracker, open_tracker, tracked_run
from deepgat.training.config_file import read_config
from deepgat.training.device import choose_device
from deepgat.training.memory import read_memory
from deepgat.training.recipes import Recipe, drop_unsuited_self_training, recipe
from deepgat.training.resume import Epoch, Progress
from deepgat.training.run import ModelCard, train_once
from deepgat.training.search import AUTO, Request, is_auto
from deepgat.training.settings import MONITORS

TEAM_SAVES = 100
"""Epochs between two saves of a team's state, unless --save-every says otherwise."""


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
            "several, the default) or best (also a weighted mean of models)."
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
    read: ReadOption = None,
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
    if config is not None:
        file = read_config(config)
        if dataset is None or dataset.lower() == file.dataset.lower():
            dataset, split = file.dataset, file.split if split is None else split
            read = [*file.read, *(read or ())]
        if model is None or model == file.system:  # settings are of one system
            model, preset = file.system, file.preset if preset is None else preset
            choices |= file.settings
        changes |= file.training
    if dataset is None:
        raise UserError("say what to train on: deepgat train DATASET, or --config FILE")
    folder = Path(dataset) if is_partition(dataset) else None
    if folder is not None:
        dataset, split = _partitioned(folder, split, read)
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
    folders = _folders(out, all_seeds)
    if save_every is not None and save_every < 1:
        raise UserError(f"--save-every {save_every}: expected 1 or more epochs")
    kept = (("--resume", resume), ("--save-every", save_every), ("--keep-graph", keep))
    for option, wanted in kept:
        if out is None and wanted:
            raise UserError(f"{option} needs --out: it keeps and finds runs there")
    leads = not Team.launched() or int(os.environ.get("RANK", 0)) == 0
    tracker = open_tracker(track, track_to) if track is not None and leads else None
    data: NodeDataset | PartDataset
    auto = is_auto(model, preset, choices, changes)
    if Team.launched():  # every process has a part of one model
        if auto and (model == AUTO or quality is not None or time_limit is not None):
            raise UserError("auto trains in one process: name a model, or leave --processes out")
    elif auto:
        request = Request("good" if quality is None else quality, time_limit, changes)
        choose_device(str(changes.get("device", "auto")))
        data = load_data(dataset, split, read)
        if keep:
            check_can_keep(data)
        search(
            data,
            request,
            list(zip(all_seeds, folders, strict=True)),
            out,
            AutoOutput(resume, save_every, json, quiet, keep, tracker),
        )
        return
    if quality is not None or time_limit is not None:
        raise UserError(
            "--quality and --time-limit are of auto: leave them out, or --model and its settings"
        )
    plan = recipe(model, preset=preset, dataset=dataset.lower(), training=changes, **choices)
    choose_device(plan.training.device)  # a wrong one is refused before loading
    team = Team.join(plan.training.device) if Team.launched() else None
    first = team is None or team.rank == 0
    if folder is None:
        data = load_data(dataset, split, read, first)
    else:
        assert team is not None
        data = read_part(folder, team.rank, team.size)
    if keep:
        check_can_keep(data)
    plan = drop_unsuited_self_training(plan, data, changes)
    resume = resume or (out is not None and launch.restarted())

    records = []
    try:
        for seed, target in zip(all_seeds, folders, strict=True):
            run_plan = plan._replace(training=replace(plan.training, seed=seed))
            record = None
            progress = _progress(target, save_every, resume, team is not None)
            if resume and target is not None:
                card = ModelCard.of(data, run_plan)
                record = saved_record(target, card)
                if record is not None and keep and first:
                    keep_graph(target, data)
                if record is not None and progress is not None and first:
                    progress.remove(card.digest())  # it ended between saving and removing it
            if record is None:
                silent = quiet or not first
                record = _run(data, run_plan, target, progress, silent, team, keep, tracker)
            if first:
                records.append(record)
            if first and json:
                echo_json({key: value for key, value in record.items() if key != "curve"})
            if record["stopped"] == "interrupted":
                break
    finally:  # show the finished runs even if a later one fails
        if records and not json:
            print_runs(_title(data, plan), records)
            if out is not None:
                OUT.print(f"saved to {out}", soft_wrap=True)
    if team is not None:
        team.barrier()
        team.leave()
    if records and records[-1]["stopped"] == "interrupted":
        ERR.print("interrupted: the last run kept its best weights so far")
        sys.exit(130)


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


def _progress(
    folder: Path | None, every: int | None, resume: bool, in_team: bool
) -> Progress | None:
    """The file of the run's state, beside its folder; a team always has one."""
    if folder is None or (every is None and not in_team):
        return None
    path = folder.with_name(f"{folder.name}.progress")
    if in_team and not resume and int(os.environ.get("RANK", 0)) == 0:
        path.unlink(missing_ok=True)  # or a restarted team would resume from it
    return Progress(path, TEAM_SAVES if every is None else every, key="", resume=resume)


def _run(
    data: NodeDataset | PartDataset,
    plan: Recipe,
    folder: Path | None,
    progress: Progress | None,
    quiet: bool,
    team: Team | None,
    keep: bool = False,
    tracker: Tracker | None = None,
) -> dict[str, Any]:
    """Train with one seed, save, and return the record."""
    training = plan.training
    with ExitStack() as tracking:
        with progress_bar(quiet) as show:

            def on_epoch(epoch: Epoch) -> None:
                """The bar ends where training would at the earliest, by the best epoch so far."""
                end = min(training.epochs, epoch.best_number + training.patience)
                end = max(end, epoch.number)  # a second stage, or another monitor, goes on beyond
                name, value = "F1", epoch.val_f1
                if training.metric is not None and epoch.val_score is not None:
                    name, value = training.metric, abs(epoch.val_score)
                remark = (
                    f"epoch {epoch.number}/{end}  loss {epoch.loss:.3f}  "
                    f"val {name} {percent(value)}  best epoch {epoch.best_number}"
                )
                show(f"seed {training.seed}", epoch.number / end, remark)

            tracked = None
            if tracker is not None:
                resumed = progress is not None and progress.resume
                watch = tracked_run(tracker, data, plan, training.seed, on_epoch, resumed)
                tracked = tracking.enter_context(watch)
            run = train_once(data, plan, training.seed, tracked or on_epoch, team, progress)
        saved = None
        if folder is not None:
            whole: NodeDataset | None
            if isinstance(data, PartDataset):
                assert team is not None
                whole = whole_labels(data, team)
            else:
                whole = data if team is None or team.rank == 0 else None
            if whole is not None:
                saved = save_anywhere(folder, run, whole, keep)
                if progress is not None:
                    progress.path.unlink(missing_ok=True)
            if team is not None:
                team.barrier()  # until every process can see the folder
        if tracked is not None:
            tracked.finish(run, saved)
    return run.record()


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


def _folders(out: Path | None, seeds: list[int]) -> list[Path | None]:
    """The folder of each seed's run; a wrong one is refused before training."""
    if out is None:
        return [None] * len(seeds)
    if len(seeds) == 1:
        folders = [out]
    else:
        if out.is_file():
            raise UserError(f"{out} is a file: --out expects a folder")
        if is_model_folder(out):
            raise UserError(f"{out} holds the model of one seed: choose another --out for several")
        folders = [out / f"seed-{seed}" for seed in seeds]
    for folder in folders:
        check_can_write(folder, MODEL_FOLDER)
    return list(folders)


def _title(data: NodeDataset | PartDataset, plan: Recipe) -> str:
    settings = plan.settings.to_dict()
    score = f" {settings['score']}" if "score" in settings else ""
    layers = settings["num_layers"]
    return (
        f"{plan.training.metric or 'micro-F1'} (%) of {plan.system}{score}, "
        f"{layers} layer{'s' if layers > 1 else ''}, on {data.title}, split {data.split}"
    )
