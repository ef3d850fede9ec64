"""The runs of ``deepgat train``: trained seed by seed, saved, and shown as a table."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import typer

from deepgat.analysis import METRICS
from deepgat.cli.show import ERR, OUT, PARTS, echo_json, percent, print_table, progress_bar
from deepgat.data import NodeDataset
from deepgat.distributed import PartDataset, Team, whole_labels
from deepgat.errors import UserError
from deepgat.files import check_can_write
from deepgat.model_folder import (
    MODEL_FOLDER,
    is_model_folder,
    keep_graph,
    save_run,
    saved_auto_record,
    saved_record,
)
from deepgat.tracking import Tracker, tracked_run, tracked_search
from deepgat.training.auto import forget, train_auto
from deepgat.training.recipes import Recipe
from deepgat.training.resume import Epoch, Progress
from deepgat.training.run import ModelCard, Run, train_once
from deepgat.training.search import Request, Step

ENDINGS = {
    "patience": "patience",
    "epochs": "the limit",
    "time": "the time limit",
    "interrupted": "Ctrl-C",
}
TEAM_SAVES = 100
"""Epochs between two saves of a team's state, unless --save-every says otherwise."""


@dataclass(frozen=True)
class Output:
    """Where runs are kept and how they are shown, as the options of ``deepgat train`` say."""

    out: Path | None
    seeds: Sequence[int]
    resume: bool = False
    save_every: int | None = None
    keep_graph: bool = False
    json: bool = False
    quiet: bool = False
    tracker: Tracker = field(default_factory=Tracker)

    def folder(self, seed: int) -> Path | None:
        """The folder of a seed's run."""
        if self.out is None or len(self.seeds) == 1:
            return self.out
        return self.out / f"seed-{seed}"

    def check(self) -> None:
        """Refuse a wrong folder before training."""
        if self.out is not None and len(self.seeds) > 1:
            if self.out.is_file():
                raise UserError(f"{self.out} is a file: --out expects a folder")
            if is_model_folder(self.out):
                raise UserError(
                    f"{self.out} holds the model of one seed: choose another --out for several"
                )
        for folder in map(self.folder, self.seeds):
            if folder is not None:
                check_can_write(folder, MODEL_FOLDER)


def run_seeds(
    data: NodeDataset,
    what: Recipe | Request,
    output: Output,
    team: Team | None = None,
) -> None:
    """Train a recipe, or search for one, with every seed; save and show the results."""
    records: list[Mapping[str, Any]] = []
    try:
        for seed in output.seeds:
            record = _run(data, what, seed, output, team)
            if _leads(team):
                records.append(record)
                if output.json:
                    echo_json({key: value for key, value in record.items() if key != "curve"})
                elif isinstance(what, Request):
                    _print_leaderboard(record)
            if record["stopped"] == "interrupted":
                break
    finally:  # show the finished runs even if a later one fails
        if records and not output.json:
            print_runs(_title(data, what, records), records)
            if output.out is not None:
                OUT.print(f"saved to {output.out}", soft_wrap=True)
    if team is not None:
        team.barrier()
        team.leave()
    if records and records[-1]["stopped"] == "interrupted":
        ERR.print("interrupted: the last run kept its best weights so far")
        sys.exit(130)


def _run(
    data: NodeDataset,
    what: Recipe | Request,
    seed: int,
    output: Output,
    team: Team | None,
) -> Mapping[str, Any]:
    """The record of a seed's run: of the finished one in its folder, or of a new one."""
    found, folder = None, output.folder(seed)
    if isinstance(what, Request):
        if output.resume and folder is not None:
            found = saved_auto_record(folder, data, what, seed)
        if found is None:
            return _search(data, what, seed, folder, output)
    else:
        plan = what._replace(training=replace(what.training, seed=seed))
        progress = _progress(folder, output, team is not None)
        if output.resume and folder is not None:
            card = ModelCard.of(data, plan)
            found = saved_record(folder, card)
            if found is not None and progress is not None and _leads(team):
                progress.remove(card.digest())  # it ended between saving and removing it
        if found is None:
            return _train(data, plan, folder, progress, output, team)
    if output.keep_graph and folder is not None and _leads(team):
        keep_graph(folder, data)
    return found


def _train(
    data: NodeDataset,
    plan: Recipe,
    folder: Path | None,
    progress: Progress | None,
    output: Output,
    team: Team | None,
) -> Mapping[str, Any]:
    """Train a recipe with its seed, and save the model."""
    training = plan.training
    with ExitStack() as tracking:
        with progress_bar(output.quiet or not _leads(team)) as show:

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

            resumed = progress is not None and progress.resume
            watch = tracking.enter_context(
                tracked_run(output.tracker, data, plan, training.seed, on_epoch, resumed)
            )
            run = train_once(data, plan, training.seed, watch, team, progress)
        saved = None
        if folder is not None:
            whole: NodeDataset | None = data
            if isinstance(data, PartDataset):
                assert team is not None
                whole = whole_labels(data, team)
            if whole is not None and _leads(team):
                saved = save_anywhere(folder, run, whole, output.keep_graph)
                if progress is not None and run.fitted.stopped != "interrupted":
                    progress.path.unlink(missing_ok=True)
            if team is not None:
                team.barrier()  # until every process can see the folder
        watch.finish(run, saved)
    return run.record()


def _search(
    data: NodeDataset, request: Request, seed: int, folder: Path | None, output: Output
) -> Mapping[str, Any]:
    """Search for a recipe with a seed, and save the model."""
    states = None
    if folder is not None and (output.save_every is not None or output.resume):
        states = folder.with_name(f"{folder.name}.auto")
    with ExitStack() as tracking:
        with progress_bar(output.quiet) as show:

            def on_step(step: Step) -> None:
                epoch = step.epoch
                name, value = "F1", epoch.val_f1
                if epoch.val_score is not None:
                    name = str(request.training_for(data).get("monitor", "score"))
                    value = abs(epoch.val_score)
                remark = (
                    f"{step.number}/{step.of} {step.member}  epoch {epoch.number}  "
                    f"val {name} {percent(value)}  best {percent(abs(step.best))}"
                )
                show(f"seed {seed}", step.share, remark)

            watch = tracking.enter_context(
                tracked_search(output.tracker, data, request, seed, on_step, output.resume)
            )
            every = output.save_every
            run = train_auto(data, request, seed, watch, states, output.resume, every)
        saved = None
        if folder is not None:
            saved = save_anywhere(folder, run, data, output.keep_graph)
        if states is not None and run.fitted.stopped != "interrupted":
            forget(states)
        watch.finish(run, saved)
    return run.record()


def _leads(team: Team | None) -> bool:
    """Whether this process saves and shows what a team has done."""
    return team is None or team.rank == 0


def _progress(folder: Path | None, output: Output, in_team: bool) -> Progress | None:
    """The file of the run's state, beside its folder; a team always has one."""
    if folder is None or (output.save_every is None and not in_team):
        return None
    path = folder.with_name(f"{folder.name}.progress")
    if in_team and not output.resume and int(os.environ.get("RANK", 0)) == 0:
        path.unlink(missing_ok=True)  # or a restarted team would resume from it
    every = TEAM_SAVES if output.save_every is None else output.save_every
    return Progress(path, every, resume=output.resume)


def save_anywhere(folder: Path, run: Run, data: NodeDataset, keep_graph: bool = False) -> Path:
    """Save a trained model; where that fails, elsewhere, rather than to lose it. Says where."""
    place = folder
    while True:
        try:
            save_run(place, run, data, keep_graph)
            if place != folder:
                ERR.print(f"saved to {place}", soft_wrap=True, markup=False)
            return place
        except (UserError, OSError) as error:
            problem = error
        if not (sys.stdin.isatty() and ERR.is_terminal):
            break
        ERR.print(str(problem), soft_wrap=True, markup=False)
        try:
            place = Path(typer.prompt("Save the trained model to another folder", err=True))
        except typer.Abort:
            break
    try:
        spare = Path(tempfile.mkdtemp(prefix="deepgat-")) / "model"
        copy = save_run(spare, run, data, keep_graph)
    except OSError as error:
        told = f"a copy in {tempfile.gettempdir()} failed too ({error.strerror or error})"
        raise UserError(f"{problem}; {told}") from problem
    raise UserError(f"{problem}; the trained model is in {copy}") from problem


def print_runs(title: str, records: Sequence[Mapping[str, Any]]) -> None:
    """A row per seed, and the mean with the standard deviation."""
    columns = ["seed", *PARTS, "best", "epochs", "time"]
    rows = [
        [
            str(record["seed"]),
            *(percent(_scores(record).get(part)) for part in PARTS),
            str(record["best_epoch"]),
            str(record["epochs"]),
            f"{record['seconds']:.0f} s",
        ]
        for record in records
    ]
    if any(record["stopped"] != "patience" for record in records):
        columns.append("ended by")
        for row, record in zip(rows, records, strict=True):
            row.append(ENDINGS[record["stopped"]])
    footer = ["mean ± sd", *(_mean(records, part) for part in PARTS), *[""] * (len(columns) - 4)]
    print_table(title, columns, rows, footer if len(records) > 1 else ())


def _scores(record: Mapping[str, Any]) -> Mapping[str, float | None]:
    """The metric that picked the epoch in every part; without one, micro-F1."""
    monitor = record["training"]["monitor"]
    scores = record["metrics"][monitor] if monitor in METRICS else record["micro_f1"]
    return dict(scores)


def _mean(records: Sequence[Mapping[str, Any]], part: str) -> str:
    found = [_scores(record).get(part) for record in records]
    values = [value for value in found if value is not None]
    if not values:
        return "–"
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return percent(fmean(values)) + spread


def _print_leaderboard(record: Mapping[str, Any]) -> None:
    """What auto tried."""
    found = record["auto"]
    rows = [
        [
            row["name"],
            row["system"] if row["system"] != "baseline" else "–",
            str(row["num_layers"] or "–"),
            percent(row["val"]),
            str(row["epochs"] or "–"),
            f"{row['seconds']:.0f} s" if row["epochs"] else "–",
            row["outcome"],
        ]
        for row in found["leaderboard"]
    ]
    print_table(
        f"what was tried, seed {record['seed']} (val: {found['metric']} in %)",
        ["recipe", "system", "L", "val", "epochs", "time", "outcome"],
        rows,
    )
    OUT.print(f"Why: {found['reason']}.", soft_wrap=True)
    if found["warning"]:
        ERR.print(f"Warning: {found['warning']}.", soft_wrap=True, markup=False)


def _title(data: NodeDataset, what: Recipe | Request, records: Sequence[Mapping[str, Any]]) -> str:
    if isinstance(what, Request):
        systems = sorted({record["system"] for record in records})
        model = f"auto ({', '.join(systems)})"
    else:
        settings = what.settings.to_dict()
        layers = settings["num_layers"]
        score = f" {settings['score']}" if "score" in settings else ""
        model = f"{what.system}{score}, {layers} layer{'s' if layers > 1 else ''},"
    monitor = records[0]["training"]["monitor"]
    metric = monitor if monitor in METRICS else "micro-F1"
    return f"{metric} (%) of {model} on {data.title}, split {data.split}"
