"""``deepgat train`` without a model's name: what ``auto`` shows and saves."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from deepgat.cli.runs import print_runs, save_anywhere, title_metric
from deepgat.cli.show import ERR, OUT, echo_json, percent, print_table, progress_bar
from deepgat.data import NodeDataset
from deepgat.model_folder import keep_graph, saved_auto_record
from deepgat.tracking import Tracker, tracked_search
from deepgat.training.auto import train_auto
from deepgat.training.search import Request, Step


class AutoOutput(NamedTuple):
    """How the command was asked to keep and show things."""

    resume: bool
    save_every: int | None
    json: bool
    quiet: bool
    keep_graph: bool = False
    tracker: Tracker | None = None


def search(
    data: NodeDataset,
    request: Request,
    runs: Sequence[tuple[int, Path | None]],
    out: Path | None,
    how: AutoOutput,
) -> None:
    """Search with every seed; save, and show what was tried."""
    records: list[Mapping[str, Any]] = []
    try:
        for seed, target in runs:
            record = None
            if how.resume and target is not None:
                record = saved_auto_record(target, data, request, seed)
                if record is not None and how.keep_graph:
                    keep_graph(target, data)
            if record is None:
                record = _search_once(data, request, seed, target, how)
            records.append(record)
            if how.json:
                echo_json({key: value for key, value in record.items() if key != "curve"})
            else:
                _print_leaderboard(record)
            if record["stopped"] == "interrupted":
                break
    finally:  # show the finished runs even if a later one fails
        if records and not how.json:
            print_runs(_title(data, records), records)
            if out is not None:
                OUT.print(f"saved to {out}", soft_wrap=True)
    if records and records[-1]["stopped"] == "interrupted":
        ERR.print("interrupted: the best model so far is kept")
        sys.exit(130)


def _search_once(
    data: NodeDataset, request: Request, seed: int, target: Path | None, how: AutoOutput
) -> dict[str, Any]:
    states = None
    if target is not None and (how.save_every is not None or how.resume):
        states = target.with_name(f"{target.name}.auto")
    with ExitStack() as tracking:
        with progress_bar(how.quiet) as show:

            def on_step(step: Step) -> None:
                epoch = step.epoch
                name, value = "F1", epoch.val_f1
                if epoch.val_score is not None:
                    name = str(request.training.get("monitor", "score"))
                    value = abs(epoch.val_score)
                remark = (
                    f"{step.number}/{step.of} {step.member}  epoch {epoch.number}  "
                    f"val {name} {percent(value)}  best {percent(abs(step.best))}"
                )
                show(f"seed {seed}", step.share, remark)

            tracked = None
            if how.tracker is not None:
                watch = tracked_search(how.tracker, data, request, seed, on_step, how.resume)
                tracked = tracking.enter_context(watch)
            run = train_auto(data, request, seed, tracked or on_step, states, how.resume)
        saved = None
        if target is not None:
            saved = save_anywhere(target, run, data, how.keep_graph)
            if states is not None and run.fitted.stopped != "interrupted":
                with suppress(OSError):
                    states.rmdir()
        if tracked is not None:
            tracked.finish(run, saved)
    return run.record()


def _print_leaderboard(record: Mapping[str, Any]) -> None:
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


def _title(data: NodeDataset, records: Sequence[Mapping[str, Any]]) -> str:
    systems = sorted({record["system"] for record in records})
    metric = title_metric(records[0])
    return f"{metric} (%) of auto ({', '.join(systems)}) on {data.title}, split {data.split}"
