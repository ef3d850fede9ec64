"""``deepgat evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from deepgat.analysis import METRICS
from deepgat.cli import options as opt
from deepgat.cli.show import ERR, echo_json, print_scores
from deepgat.errors import UserError
from deepgat.model_folder import is_model_folder, load_run
from deepgat.training.evaluate import Evaluation
from deepgat.training.evaluate import evaluate as score


def evaluate(folder: opt.ModelFolder, device: opt.Device = "auto", json: opt.Json = False) -> None:
    """Score a saved model, or all seeds of one, on the data it was trained for.

    Brier score and calibration error are errors: smaller is better.
    """
    rows, scored = [], []
    for model_folder in _model_folders(folder):
        model, card = load_run(model_folder)
        dataset = card.load_data()
        evaluation = score(model, dataset, device, chunk=card.training.chunk)
        rows.append((str(model_folder), evaluation.micro_f1))
        scored.append(evaluation)
        if json:
            record = {
                "folder": str(model_folder),
                "dataset": card.dataset,
                "split": card.split,
                "seed": card.training.seed,
                "micro_f1": evaluation.micro_f1,
                "loss": evaluation.loss,
                "metrics": evaluation.metrics,
                "notes": evaluation.notes,
            }
            echo_json(record)
    if not json:
        where = f"on {dataset.title}, split {dataset.split}"
        print_scores(f"micro-F1 (%) {where}", rows)
        mean = f", mean of {len(scored)}" if len(scored) > 1 else ""
        table = [(name, _means(scored, name)) for name in METRICS]
        print_scores(f"all metrics (%) {where}{mean}", table, "metric")
        for note in dict.fromkeys(note for each in scored for note in each.notes):
            ERR.print(note, soft_wrap=True, markup=False)


def _means(scored: Sequence[Evaluation], name: str) -> dict[str, float | None]:
    """The metric in every part, averaged over models; None where one does not define it."""
    found: dict[str, float | None] = {}
    for part in scored[0].metrics[name]:
        values = [each.metrics[name][part] for each in scored]
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
