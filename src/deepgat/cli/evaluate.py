"""``deepgat evaluate``."""

from __future__ import annotations

from pathlib import Path

from deepgat.cli import options as opt
from deepgat.cli.show import echo_json, print_scores
from deepgat.errors import UserError
from deepgat.model_folder import is_model_folder, load_run
from deepgat.training.evaluate import evaluate as score


def evaluate(folder: opt.ModelFolder, device: opt.Device = "auto", json: opt.Json = False) -> None:
    """Score a saved model, or all seeds of one, on the data it was trained for."""
    rows = []
    for model_folder in _model_folders(folder):
        model, card = load_run(model_folder)
        dataset = card.load_data()
        evaluation = score(model, dataset, device, chunk=card.training.chunk)
        rows.append((str(model_folder), evaluation.micro_f1))
        if json:
            record = {
                "folder": str(model_folder),
                "dataset": card.dataset,
                "split": card.split,
                "seed": card.training.seed,
                "micro_f1": evaluation.micro_f1,
                "loss": evaluation.loss,
            }
            echo_json(record)
    if not json:
        print_scores(f"micro-F1 (%) on {dataset.title}, split {dataset.split}", rows)


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
