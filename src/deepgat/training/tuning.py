"""A search for good settings of a model on one dataset, by validation nodes alone.

Every trial draws settings, trains with each seed, and is judged by the mean validation micro-F1 of
the best epochs; test labels are never read. Optuna (``pip install 'deepgat[tune]'``) proposes the
settings and keeps the trials in a journal, a file of JSON lines that a later search goes on from.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from deepgat.data import NodeDataset
from deepgat.errors import UserError
from deepgat.files import to_json
from deepgat.training.config_file import PLAIN, read_texts
from deepgat.training.loop import Epoch
from deepgat.training.loop import fit as train
from deepgat.training.recipes import Recipe
from deepgat.training.run import ModelCard
from deepgat.training.values import to_toml

WARM_UP = 5
"""Trials before one may be given up half-way."""


@dataclass(frozen=True)
class Search:
    """What is searched: all important settings but the depth, unless a range of it is given."""

    plan: Recipe
    """Where the search starts; its settings are the first trial."""
    seeds: tuple[int, ...] = (0,)
    depth: tuple[int, int] | None = None
    """The least and the most layers, where the depth is to be chosen too."""

    def describe(self, dataset: NodeDataset) -> str:
        """Everything that must be the same to resume a search: one line of JSON."""
        told = {
            "dataset": dataset.name,
            "split": dataset.split,
            "system": self.plan.system,
            "settings": self.plan.settings.to_dict(),
            "training": {
                key: value
                for key, value in self.plan.training.to_dict().items()
                if key not in ("seed", "device")
            },
            "seeds": list(self.seeds),
            "depth": None if self.depth is None else list(self.depth),
        }
        return to_json(told).strip()


@dataclass(frozen=True)
class Trial:
    """One finished trial."""

    number: int
    val_f1: float | None
    """None where it was given up half-way, or failed."""
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """The best settings so far, and all trials."""

    recipe: Recipe
    val_f1: float
    number: int
    trials: Sequence[Trial]
    changed: Mapping[str, Any]
    """What the search chose, by name."""


def search(
    dataset: NodeDataset,
    what: Search,
    journal: Path,
    trials: int,
    on_epoch: Callable[[int, int, Epoch], None] | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> Found:
    """Go on until the journal has so many trials; Ctrl-C loses the one that runs.

    Args:
        dataset: its training and validation nodes are used, the others never looked at.
        what: the start, the seeds, the depths.
        journal: the file of trials; made where it is missing.
        trials: how many there shall be in all, those of earlier searches included.
        on_epoch: called with (trial, seed, epoch).
        on_trial: called after every trial.
    """
    if trials < 1:
        raise UserError(f"trials is {trials}: expected 1 or more")
    optuna = _optuna()
    study = _study(optuna, dataset, what, journal)
    names = _names(what)
    if not study.trials:
        study.enqueue_trial(_start(what.plan, names, what.depth))

    def objective(trial: Any) -> float:
        plan = _drawn(trial, what)
        scores = []
        for seed in what.seeds:
            card = ModelCard.of(dataset, plan._replace(training=replace(plan.training, seed=seed)))

            def watch(epoch: Epoch, seed: int = seed) -> None:
                if on_epoch is not None:
                    on_epoch(trial.number, seed, epoch)
                if seed == what.seeds[0]:  # pruning compares like with like: the first seed
                    trial.report(epoch.val_f1, epoch.number)
                    if epoch.number % 10 == 0 and trial.should_prune():
                        raise optuna.TrialPruned

            try:
                fitted = train(card.build(), dataset, card.training, watch)
            except UserError as error:  # settings with which training diverges
                trial.set_user_attr("failed", str(error))
                raise optuna.TrialPruned from error
            if fitted.stopped == "interrupted":
                raise KeyboardInterrupt
            scores.append(fitted.best.val_f1)  # of the weights that training would keep
        return fmean(scores)

    def tell(_: Any, frozen: Any) -> None:
        if on_trial is not None:
            on_trial(_trial(frozen))

    left = trials - sum(trial.state.is_finished() for trial in study.trials)
    if left > 0:
        study.optimize(objective, n_trials=left, callbacks=[tell])
    return _found(study, what)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            "searching settings needs Optuna, which is not installed: pip install 'deepgat[tune]'"
        ) from error
    optuna.logging.set_verbosity(logging.ERROR)
    return optuna


def _study(optuna: Any, dataset: NodeDataset, what: Search, journal: Path) -> Any:
    if journal.is_dir():
        raise UserError(f"{journal} is a folder: expected a file for the trials")
    if journal.exists() and not _is_journal(journal):
        raise UserError(f"{journal} is not a journal of trials: name another file, or remove it")
    journal.parent.mkdir(parents=True, exist_ok=True)
    told = what.describe(dataset)
    try:
        backend = optuna.storages.journal.JournalFileBackend(str(journal))
        storage = optuna.storages.JournalStorage(backend)
        study = optuna.create_study(
            storage=storage,
            study_name="deepgat",
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=0),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=WARM_UP, n_warmup_steps=30),
        )
        before = study.user_attrs.get("search")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{journal} is not a journal of trials: name another file, or remove it"
        ) from error
    if before is None:
        study.set_user_attr("search", told)
    elif before != told:
        raise UserError(
            f"{journal} holds a search with another dataset, split, model or seeds: name another "
            "file, or repeat the options it was begun with"
        )
    return study


def _is_journal(path: Path) -> bool:
    """Optuna adds to any file it is given: look first whether the lines are its own."""
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        return not first or "op_code" in json.loads(first)
    except (OSError, ValueError, TypeError):
        return False


SEARCHED = (
    "dropout", "hidden_channels", "heads", "norm", "delta", "label_hops", "sharpness",
    "attention_dropout", "alpha",
)  # fmt: skip
"""Settings that are searched in every system that has them."""


def _names(what: Search) -> list[str]:
    """Names of the searched settings, of the training and of the system."""
    names = ["lr", "weight_decay"]
    if what.plan.training.weight_decay_conv is not None:
        names.append("weight_decay_conv")
    kinds = what.plan.settings.kinds()
    return names + [name for name in SEARCHED if name in kinds]


def _drawn(trial: Any, what: Search) -> Recipe:
    """The recipe of one trial."""
    draw: Mapping[str, Callable[[], Any]] = {
        "lr": lambda: trial.suggest_float("lr", 1e-3, 0.1, log=True),
        "weight_decay": lambda: trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
        "weight_decay_conv": lambda: trial.suggest_float("weight_decay_conv", 1e-6, 1e-1, log=True),
        "dropout": lambda: trial.suggest_float("dropout", 0.0, 0.9),
        "hidden_channels": lambda: trial.suggest_categorical(
            "hidden_channels", [8, 16, 32, 64, 128]
        ),
        "heads": lambda: trial.suggest_categorical("heads", [1, 2, 4, 8]),
        "norm": lambda: trial.suggest_categorical("norm", ["none", "layer", "batch"]),
        "delta": lambda: trial.suggest_float("delta", 0.0, 1.0),
        "label_hops": lambda: trial.suggest_int("label_hops", 0, 3),
        "sharpness": lambda: trial.suggest_float("sharpness", 0.25, 5.0),
        "attention_dropout": lambda: trial.suggest_float("attention_dropout", 0.0, 0.8),
        "alpha": lambda: trial.suggest_float("alpha", 0.02, 0.5),
    }
    values = {name: draw[name]() for name in _names(what)}
    if what.depth is not None:
        values["num_layers"] = trial.suggest_int("num_layers", *what.depth)
    return _changed(what.plan, values)


def _changed(plan: Recipe, values: Mapping[str, Any]) -> Recipe:
    own = plan.settings.kinds()
    return Recipe(
        plan.system,
        plan.settings.with_changes({k: v for k, v in values.items() if k in own}),
        plan.training.with_changes({k: v for k, v in values.items() if k not in own}),
    )


def _start(plan: Recipe, names: Sequence[str], depth: tuple[int, int] | None) -> dict[str, Any]:
    """The plan's own settings as a trial, where they lie in the search."""
    at_hand = {**plan.settings.to_dict(), **plan.training.to_dict()}
    start = {name: at_hand[name] for name in names if at_hand[name] is not None}
    if not start["weight_decay"]:
        del start["weight_decay"]  # 0 lies outside a search over powers of ten
    if depth is not None:
        start["num_layers"] = min(max(at_hand["num_layers"], depth[0]), depth[1])
    return start


def _trial(frozen: Any) -> Trial:
    finished = frozen.state.name == "COMPLETE"
    return Trial(frozen.number, frozen.value if finished else None, dict(frozen.params))


def _found(study: Any, what: Search) -> Found:
    done = [trial for trial in study.trials if trial.state.is_finished()]
    complete = [trial for trial in done if trial.state.name == "COMPLETE"]
    if not complete:
        raise UserError("no trial finished: allow more trials")
    best = max(complete, key=lambda trial: (trial.value, -trial.number))
    plan = _changed(what.plan, best.params)
    return Found(plan, best.value, best.number, [_trial(t) for t in done], dict(best.params))


def as_config(found: Found, dataset: NodeDataset) -> str:
    """The best settings as a complete file for ``deepgat train --config``."""
    own = {
        key: value
        for key, value in found.recipe.training.to_dict().items()
        if value is not None and key not in ("seed", "device", "checkpoint")
    }
    read = {"read": read_texts(dataset.reading)} if dataset.reading else {}
    tables = {
        "data": {"dataset": dataset.name, "split": dataset.split, **read},
        "settings": found.recipe.settings.to_dict(),
        "training": own,
    }
    return (
        f"# Found by deepgat tune: validation micro-F1 {100 * found.val_f1:.2f}%, trial "
        f"{found.number} of {len(found.trials)}.\n"
        f'system = "{found.recipe.system}"\npreset = "{PLAIN}"\n\n{to_toml(tables)}'
    )
