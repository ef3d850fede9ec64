"""``deepgat train``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from deepgat.analysis import micro_f1
from deepgat.cli.parsing import parse_seeds, parse_settings, parse_training
from deepgat.cli.reading import ReadOption, load_data
from deepgat.cli.show import ERR, OUT, epoch_progress, run_table, score_table
from deepgat.data import NodeDataset
from deepgat.distributed import PartDataset, Team, launch, whole_labels
from deepgat.distributed.partition_folder import is_partition, read_description, read_part
from deepgat.errors import UserError
from deepgat.model_folder import check_can_write, is_model_folder, save_run, saved_record, to_json
from deepgat.models import LabelPropagation
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.training.config_file import ConfigFile, read_config
from deepgat.training.loop import MONITORS, choose_device
from deepgat.training.recipes import Recipe, drop_unsuited_self_training, recipe
from deepgat.training.resume import Progress
from deepgat.training.run import ModelCard, train_once

_EVERY = 100
"""Epochs between two saves of a team's state, unless --save-every says otherwise."""


def train(
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
        typer.Option(help="A name of deepgat models: deep (the default), deepgat, gat, gcnii, …"),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Of deepgat, gat and oracle: paper, the DeepGAT paper's equations, or authors, "
            "the choices of their code."
        ),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="deepgat: dp or sd; gat: ad, dp or sd; oracle: sum, softmax.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="L, number of layers; left out: 16 in deep.")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Width of a hidden layer, or of each of its heads.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="H, heads of the hidden layers.")] = None,
    dropout: Annotated[
        float | None,
        typer.Option(
            help="Share of each layer's input that is dropped; deep: more beyond 16 layers."
        ),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of the model, e.g. --set norm=layer; repeatable. deepgat models NAME "
            "lists them.",
        ),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of Adam.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of Adam.")] = None,
    weight_decay_conv: Annotated[
        float | None,
        typer.Option(help="The same for the convolutions alone."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="The most epochs.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Epochs without improvement before stopping.")
    ] = None,
    batch_graphs: Annotated[
        int | None,
        typer.Option(
            help="Graphs per step, where there are several; with --processes each gets whole ones."
        ),
    ] = None,
    monitor: Annotated[
        str | None,
        typer.Option(help=f"What picks the best epoch: {', '.join(MONITORS)}."),
    ] = None,
    training_choice: Annotated[
        list[str] | None,
        typer.Option(
            "--train",
            metavar="NAME=VALUE",
            help="Any training setting, e.g. --train batches=clusters; repeatable.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="public, authors, random[:SEED[:TRAIN/VAL]], fractions:TRAIN/VAL[:SEED], stored:K."
        ),
    ] = None,
    read: ReadOption = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the weights, e.g. 0-9 or 0,3.")] = "0",
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, or bf16 on a GPU.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Save model, scores and predictions here (several seeds: seed-K in it)."),
    ] = None,
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
    processes: Annotated[
        int | None,
        typer.Option(help="Train by so many processes: same result, less memory in each."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train a model on a dataset and report micro-F1 per seed, and their mean.

    The best epoch is chosen on validation nodes; test nodes are scored once, at the end.
    Ctrl-C keeps the best weights so far.

    Example: deepgat train cora

    Example: deepgat train cs --model deepgat --preset authors --layers 15 --seeds 0-4

    Example: deepgat train --config gcnii-cora --seeds 0-9
    """
    if processes is not None and not Team.launched():
        sys.exit(launch.launch(processes, sys.argv[1:]))
    all_seeds = parse_seeds(seeds)
    file = None if config is None else read_config(config)
    if file is not None and dataset in (None, file.dataset):
        read = [*file.read, *(read or ())]
    dataset, split = _data_of(file, dataset, split)
    folder = Path(dataset) if is_partition(dataset) else None
    if folder is not None:
        dataset, split = _partitioned(folder, split, read)
    model, preset, choices = _system_of(file, model, preset)
    choices |= parse_settings(choice or [], model)
    given = {"num_layers": layers, "hidden_channels": hidden, "heads": heads, "dropout": dropout}
    choices |= _given({**given, "score": score})
    training = {
        "lr": lr,
        "weight_decay": weight_decay,
        "weight_decay_conv": weight_decay_conv,
        "epochs": epochs,
        "patience": patience,
        "monitor": monitor,
        "batch_graphs": batch_graphs,
        "device": device,
        "precision": precision,
    }
    changes = {
        **(file.training if file is not None else {}),
        **parse_training(training_choice or []),
        **_given(training),
    }
    if model == LABEL_PROPAGATION:
        if Team.launched():
            raise UserError("label-propagation trains nothing: run it without --processes")
        if odd := sorted(changes.keys() - {"device"}):
            raise UserError(f"label-propagation trains nothing: leave {odd[0]} out")
        hops = recipe(model, preset=preset, **choices).settings.to_dict()["num_layers"]
        _propagate_labels(load_data(dataset, split, read), hops, out, json)
        return
    plan = recipe(model, preset=preset, dataset=dataset.lower(), training=changes, **choices)
    folders = _folders(out, all_seeds)
    for option, given_to in (("--resume", resume), ("--save-every", save_every)):
        if out is None and given_to:
            raise UserError(f"{option} needs --out: it keeps and finds runs there")
    choose_device(plan.training.device)  # a wrong one is refused before loading
    team = Team.join(plan.training.device) if Team.launched() else None
    data: NodeDataset | PartDataset
    if folder is None:
        data = load_data(dataset, split, read, team is None or team.rank == 0)
    else:
        assert team is not None
        data = read_part(folder, team.rank, team.size)
    plan = drop_unsuited_self_training(plan, data, changes)
    keeping = _Keeping(resume or (out is not None and launch.restarted()), save_every)

    records = []
    try:
        for record in _run_all(data, plan, all_seeds, folders, keeping, quiet, team):
            if team is not None and team.rank:
                continue
            records.append(record)
            if json:
                record = {key: value for key, value in record.items() if key != "curve"}
                typer.echo(to_json(record), nl=False)
    finally:  # show the finished runs even if a later one fails
        if records and not json:
            OUT.print(run_table(_title(data, plan), records))
            if out is not None:
                OUT.print(f"saved to {out}", soft_wrap=True)
    if team is not None:
        team.barrier()
        team.leave()
    if records and records[-1]["stopped"] == "interrupted":
        ERR.print("interrupted: the last run kept its best weights so far")
        sys.exit(130)


def _system_of(
    file: ConfigFile | None, model: str | None, preset: str | None
) -> tuple[str | None, str | None, dict[str, Any]]:
    """The system, its preset and its settings: the command line's, else the file's."""
    if file is None:
        return model, preset, {}
    if model is not None and model != file.system:
        return model, preset, {}  # the file's settings are of another system
    return file.system, file.preset if preset is None else preset, dict(file.settings)


def _data_of(
    file: ConfigFile | None, dataset: str | None, split: str | None
) -> tuple[str, str | None]:
    """The dataset and the split: the command line's, else the file's."""
    if file is None:
        if dataset is None:
            raise UserError("say what to train on: deepgat train DATASET, or --config FILE")
        return dataset, split
    if dataset is not None and dataset.lower() != file.dataset.lower():
        return dataset, split  # the file's split is of another dataset
    return file.dataset, file.split if split is None else split


class _Keeping(NamedTuple):
    """What to resume from --out, and how often to save beside it."""

    resume: bool
    every: int | None

    def progress(self, folder: Path | None, in_team: bool) -> Progress | None:
        """The file of the run's state, beside its folder; a team always has one."""
        if folder is None or (self.every is None and not in_team):
            return None
        path = folder.with_name(f"{folder.name}.progress")
        if in_team and not self.resume and int(os.environ.get("RANK", 0)) == 0:
            path.unlink(missing_ok=True)  # or a restarted team would resume from it
        every = _EVERY if self.every is None else self.every
        return Progress(path, every, key="", resume=self.resume)


def _partitioned(folder: Path, split: str | None, read: list[str] | None) -> tuple[str, str]:
    """The dataset and the split of a partitioned graph; for as many processes as it has parts."""
    found = read_description(folder)
    if not Team.launched():
        raise UserError(
            f"{folder} is partitioned for {found['parts']} processes: "
            f"add --processes {found['parts']}"
        )
    if split is not None and split != found["split"]:
        raise UserError(
            f"{folder} was written with the split {found['split']}, not {split}: leave --split "
            "away, or partition the graph again"
        )
    if read:
        raise UserError(
            f"{folder} is read as it was written: leave --read away, or give it to "
            "deepgat partition"
        )
    return found["name"], found["split"]


def _run_all(
    data: NodeDataset | PartDataset,
    plan: Recipe,
    seeds: list[int],
    folders: list[Path | None],
    keeping: _Keeping,
    quiet: bool,
    team: Team | None,
) -> Iterator[dict[str, Any]]:
    first = team is None or team.rank == 0
    for number, (seed, folder) in enumerate(zip(seeds, folders, strict=True), start=1):
        if keeping.resume and folder is not None:
            training = replace(plan.training, seed=seed)
            card = ModelCard.of(data, plan._replace(training=training))
            record = saved_record(folder, card)
            if record is not None:
                yield record
                continue
        what = f"seed {seed} ({number} of {len(seeds)})"
        progress = keeping.progress(folder, team is not None)
        with epoch_progress(what, plan.training, quiet or not first) as on_epoch:
            run = train_once(data, plan, seed, on_epoch, team, progress)
        if folder is not None:
            whole: NodeDataset | None
            if isinstance(data, PartDataset):
                assert team is not None
                whole = whole_labels(data, team)
            else:
                whole = data if first else None
            if whole is not None:
                save_run(folder, run, whole)
                if progress is not None:
                    progress.path.unlink(missing_ok=True)
            if team is not None:
                team.barrier()  # until every process can see the folder
        yield run.record()
        if run.fitted.stopped == "interrupted":
            return


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
        typer.echo(to_json(record), nl=False)
        return
    title = f"micro-F1 (%) on {data.title}, split {data.split}"
    OUT.print(score_table(title, [(f"label propagation, {hops} hops", found)]))


def _folders(out: Path | None, seeds: list[int]) -> list[Path | None]:
    """The folder of each seed's run; a wrong one is refused before training."""
    if out is None:
        return [None] * len(seeds)
    if len(seeds) == 1:
        folders = [out]
    else:
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file: --out expects a folder")
        if is_model_folder(out):
            raise UserError(f"{out} holds the model of one seed: choose another --out for several")
        folders = [out / f"seed-{seed}" for seed in seeds]
    for folder in folders:
        check_can_write(folder)
    return list(folders)


def _title(data: NodeDataset | PartDataset, plan: Recipe) -> str:
    settings = plan.settings.to_dict()
    score = f" {settings['score']}" if "score" in settings else ""
    layers = settings["num_layers"]
    return (
        f"micro-F1 (%) of {plan.system}{score}, {layers} layer{'s' if layers > 1 else ''}, "
        f"on {data.title}, split {data.split}"
    )


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}
