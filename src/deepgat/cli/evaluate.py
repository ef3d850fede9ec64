"""``deepgat evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from deepgat.analysis import METRICS
from deepgat.cli import options as opt
from deepgat.cli import probabilities as shown
from deepgat.cli.parsing import check_picture
from deepgat.cli.show import ERR, echo_json, print_scores
from deepgat.data.names import Names
from deepgat.errors import UserError
from deepgat.model import Model
from deepgat.model_folder import is_model_folder
from deepgat.training.evaluate import Evaluation


def evaluate(
    folder: opt.ModelFolder,
    coverage: shown.Coverage = None,
    class_conditional: shown.ClassConditional = False,
    abstain: Annotated[
        float | None,
        typer.Option(metavar="CONFIDENCE", help="Score without nodes of a lower confidence too."),
    ] = None,
    reliability: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", help="Draw confidence against accuracy, raw and calibrated."
        ),
    ] = None,
    confusion: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the confusion matrix.")
    ] = None,
    device: opt.Device = "auto",
    json: opt.Json = False,
) -> None:
    """Score a saved model, or all seeds of one, on the data it was trained for.

    A model that was trained with --keep-graph is scored on the graph in its folder. Any other reads
    the graph again from where it was.

    Brier score and calibration error are errors: smaller is better. They are of the network's own
    probabilities; the lines "calibrated" are with the model's temperature, which predict uses.
    Reliability and the confusion matrix are of the test nodes, of all seeds together.

    Example: deepgat evaluate model/ --coverage 0.9 --abstain 0.9 --confusion confusion.png
    """
    shown.check_sets(coverage, class_conditional)
    if abstain is not None and not 0 <= abstain <= 1:
        raise UserError(f"--abstain {abstain}: expected a confidence from 0 to 1, such as 0.9")
    for picture in (reliability, confusion):
        check_picture(picture)
    rows, scored, tested, notes = [], [], [], []
    for model_folder in _model_folders(folder):
        model = Model.load(model_folder)
        card, calibration, dataset = model.card, model.calibration, model.training_data
        evaluation = model.evaluate(device=device)
        nodes = shown.TestNodes.of(
            dataset, evaluation.logits, calibration, coverage, class_conditional
        )
        classes = [Names.of(dataset).label(place) for place in range(card.num_classes)]
        rows.append((str(model_folder), evaluation.micro_f1))
        scored.append(evaluation)
        tested.append(nodes)
        notes += evaluation.notes
        if coverage is not None:
            names = Names.of(dataset)
            notes.append(shown.always_included(calibration, coverage, class_conditional, names))
        if json:
            record: dict[str, Any] = {
                "folder": str(model_folder),
                "dataset": card.dataset,
                "split": card.split,
                "seed": card.training.seed,
                "micro_f1": evaluation.micro_f1,
                "loss": evaluation.loss,
                "metrics": evaluation.metrics,
                "temperature": calibration.temperature,
                "calibrated": evaluation.calibrated,
                "notes": evaluation.notes,
            }
            if len(nodes):
                record["classes"] = classes
                record["confusion"] = nodes.confusion().tolist()
                record["reliability"] = shown.reliability_record(nodes.curves())
                if coverage is not None:
                    record["coverage"] = shown.coverage_record(
                        nodes, coverage, class_conditional, classes
                    )
                if abstain is not None:
                    record["abstention"] = nodes.answered(abstain)
            echo_json(record)
    together = shown.TestNodes.together(tested)
    if not len(together) and (reliability or confusion or coverage or abstain):
        raise UserError(f"{dataset.title} has no test nodes to measure probabilities on")
    if not json:
        where = f"on {dataset.title}, split {dataset.split}"
        print_scores(f"micro-F1 (%) {where}", rows)
        mean = f", mean of {len(scored)}" if len(scored) > 1 else ""
        table = [(name, _means(scored, name)) for name in METRICS]
        table += [
            (f"{name}, calibrated", _means(scored, name, True)) for name in scored[0].calibrated
        ]
        print_scores(f"all metrics (%) {where}{mean}", table, "metric")
        if len(together):
            _print_tables(together, classes, coverage, class_conditional, abstain)
        for note in dict.fromkeys(filter(None, notes)):
            ERR.print(note, soft_wrap=True, markup=False)
    title = f"Test nodes of {dataset.title}"
    if reliability is not None:
        from deepgat.figures import reliability_figure, save_figure  # here: loads matplotlib

        save_figure(reliability_figure(together.curves(), title), reliability)
    if confusion is not None:
        from deepgat.figures import confusion_figure, save_figure

        save_figure(confusion_figure(together.confusion(), classes, title), confusion)


def _print_tables(
    nodes: shown.TestNodes,
    classes: Sequence[str],
    coverage: float | None,
    class_conditional: bool,
    abstain: float | None,
) -> None:
    """What the test nodes say of the probabilities."""
    where = f"on {len(nodes):,} test nodes"
    what = "labels" if nodes.y.dim() == 2 else "nodes"
    shown.print_reliability(nodes.curves(), where, what)
    shown.print_confusion(nodes.confusion(), classes, where)
    if coverage is not None:
        record = shown.coverage_record(nodes, coverage, class_conditional, classes)
        shown.print_coverage(record, where)
    if abstain is not None:
        shown.print_answered(nodes.answered(abstain), where)


def _means(
    scored: Sequence[Evaluation], name: str, calibrated: bool = False
) -> dict[str, float | None]:
    """The metric in every part, averaged over models; None where one does not define it."""
    tables = [(each.calibrated if calibrated else each.metrics)[name] for each in scored]
    found: dict[str, float | None] = {}
    for part in tables[0]:
        values = [table[part] for table in tables]
        known = [value for value in values if value is not None]
        found[part] = fmean(known) if len(known) == len(values) else None
    return found


def _model_folders(folder: Path) -> list[Path]:
    """The folder itself, or its seed-* folders."""
    if is_model_folder(folder) or not folder.is_dir():
        return [folder]
    seeds = [inner for inner in folder.glob("seed-*") if is_model_folder(inner)]
    if not seeds:
        raise UserError(
            f"{folder} holds no model: expected model.json in it, or folders seed-0, seed-1, …; "
            "make one with deepgat train DATASET --out DIR"
        )
    return sorted(seeds, key=lambda inner: (len(inner.name), inner.name))
