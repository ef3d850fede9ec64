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
from deepgat.files import to_json, writing
from deepgat.training.config_file import read_texts
from deepgat.training.loop import train
from deepgat.training.recipes import PLAIN, Recipe
from deepgat.training.resume import Epoch
from deepgat.training.run import ModelCard
from deepgat.training.values import to_toml

WARM_UP = 5
"""Trials before one may be stopped early."""

SPACE: Mapping[str, tuple[Any, ...]] = {
    "lr": ("log", 1e-3, 0.1),
    "weight_decay": ("log", 1e-6, 1e-2),
    "weight_decay_conv": ("log", 1e-6, 1e-1),
    "dropout": ("float", 0.0, 0.9),
    "hidden_channels": ("choice", 8, 16, 32, 64, 128),
    "heads": ("choice", 1, 2, 4, 8),
    "norm": ("choice", "none", "layer", "batch"),
    "delta": ("float", 0.0, 1.0),
    "label_hops": ("int", 0, 3),
    "sharpness": ("float", 0.25, 5.0),
    "attention_dropout": ("float", 0.0, 0.8),
    "alpha": ("float", 0.02, 0.5),
}
"""How the settings are drawn that are searched, in every system that has them."""


@dataclass(frozen=True)
class SearchSpace:
    """All important settings of a system; the depth too where a range of it is given."""

    plan: Recipe
    """Where the search starts; its settings are the first trial."""
    seeds: tuple[int, ...] = (0,)
    depth: tuple[int, int] | None = None
    """The least and the most layers, where the depth is to be chosen too."""

    def space(self) -> list[tuple[str, tuple[Any, ...]]]:
        """(name, how it is drawn) of every searched setting."""
        own, training = self.plan.settings.kinds(), self.plan.training.to_dict()
        space = [item for item in SPACE.items()
                 if item[0] in own or training.get(item[0]) is not None]  # fmt: skip
        return space if self.depth is None else [*space, ("num_layers", ("int", *self.depth))]

    def start(self) -> dict[str, Any]:
        """The plan's own settings as a trial, where they lie in the search."""
        at_hand = {**self.plan.settings.to_dict(), **self.plan.training.to_dict()}
        start = {name: at_hand[name] for name, _ in self.space() if at_hand[name] is not None}
        if not start["weight_decay"]:
            del start["weight_decay"]  # 0 lies outside a search over powers of ten
        if self.depth is not None:
            start["num_layers"] = min(max(at_hand["num_layers"], self.depth[0]), self.depth[1])
        return start

    def changed(self, values: Mapping[str, Any]) -> Recipe:
        """The plan with the settings of a trial."""
        own = self.plan.settings.kinds()
        return Recipe(
            self.plan.system,
            self.plan.settings.with_changes({k: v for k, v in values.items() if k in own}),
            self.plan.training.with_changes({k: v for k, v in values.items() if k not in own}),
        )

    def describe(self, dataset: NodeDataset) -> str:
        """Everything that must be the same to resume a search: one line of JSON."""
        training = self.plan.training.to_dict()
        told = {
            "dataset": dataset.name,
            "split": dataset.split,
            "system": self.plan.system,
            "settings": self.plan.settings.to_dict(),
            "training": {k: v for k, v in training.items() if k not in ("seed", "device")},
            "seeds": self.seeds,
            "depth": self.depth,
        }
        return to_json(told).strip()


@dataclass(frozen=True)
class Trial:
    """One finished trial."""

    number: int
    val_f1: float | None
    """Or the plan's metric, higher is better; None where it was stopped early, or failed."""
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """The best settings so far, and all trials."""

    recipe: Recipe
    val_f1: float
    """Or the plan's metric, higher is better."""
    number: int
    trials: Sequence[Trial]
    changed: Mapping[str, Any]
    """What the search chose, by name."""


def tune_settings(
    dataset: NodeDataset,
    what: SearchSpace,
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
    with writing(journal):
        journal.parent.mkdir(parents=True, exist_ok=True)
        study = _study(optuna, dataset, what, journal)
    if not study.trials:
        study.enqueue_trial(what.start())

    def objective(trial: Any) -> float:
        plan = what.changed({name: _suggest(trial, name, *how) for name, how in what.space()})
        scores = []
        for seed in what.seeds:
            card = ModelCard.of(dataset, plan._replace(training=replace(plan.training, seed=seed)))

            def watch(epoch: Epoch, seed: int = seed) -> None:
                if on_epoch is not None:
                    on_epoch(trial.number, seed, epoch)
                if seed == what.seeds[0]:  # pruning compares like with like: the first seed
                    trial.report(_score(epoch, plan), epoch.number)
                    if epoch.number % 10 == 0 and trial.should_prune():
                        raise optuna.TrialPruned

            try:
                fitted = train(card.build(), dataset, card.training, watch)
            except UserError as error:  # settings with which training diverges
                raise optuna.TrialPruned from error
            if fitted.stopped == "interrupted":
                raise KeyboardInterrupt
            scores.append(_score(fitted.best, plan))  # of the weights that training would keep
        return fmean(scores)

    def tell(_: Any, frozen: Any) -> None:
        if on_trial is not None:
            on_trial(_trial(frozen))

    left = trials - sum(trial.state.is_finished() for trial in study.trials)
    if left > 0:
        with writing(journal):
            study.optimize(objective, n_trials=left, callbacks=[tell])
    done = [_trial(trial) for trial in study.trials if trial.state.is_finished()]
    scored = [(trial.val_f1, -trial.number, trial) for trial in done if trial.val_f1 is not None]
    if not scored:
        raise UserError("no trial finished: allow more trials")
    val_f1, _, best = max(scored, key=lambda item: item[:2])
    return Found(what.changed(best.settings), val_f1, best.number, done, best.settings)


def _score(epoch: Epoch, plan: Recipe) -> float:
    """What is made as large as can be: validation micro-F1, or the metric of the plan."""
    if plan.training.metric is None or epoch.val_score is None:
        return epoch.val_f1
    return epoch.val_score


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            "searching settings needs Optuna, which is not installed: pip install 'deepgat[tune]'"
        ) from error
    optuna.logging.set_verbosity(logging.ERROR)
    return optuna


def _study(optuna: Any, dataset: NodeDataset, what: SearchSpace, journal: Path) -> Any:
    told = what.describe(dataset)
    try:
        _check_journal(journal)
        backend = optuna.storages.journal.JournalFileBackend(str(journal))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="deepgat",
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=0),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=WARM_UP, n_warmup_steps=30),
        )
        before = study.user_attrs.get("search")
    except (ValueError, KeyError, TypeError) as error:
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


def _check_journal(path: Path) -> None:
    """Optuna adds to any file it is given: raise an error unless the lines are its own."""
    if path.exists():
        if not path.is_file():  # a pipe would be waited for
            raise ValueError(path)
        with path.open(encoding="utf-8") as file:
            if first := file.readline():
                json.loads(first)["op_code"]


def _suggest(trial: Any, name: str, kind: str, *values: Any) -> Any:
    match kind:
        case "choice":
            return trial.suggest_categorical(name, list(values))
        case "int":
            return trial.suggest_int(name, *values)
    return trial.suggest_float(name, *values, log=kind == "log")


def _trial(frozen: Any) -> Trial:
    finished = frozen.state.name == "COMPLETE"
    return Trial(frozen.number, frozen.value if finished else None, dict(frozen.params))


def as_config(found: Found, dataset: NodeDataset) -> str:
    """The best settings as a complete file for ``deepgat train --config``."""
    training = found.recipe.training.to_dict()
    for name in ("seed", "device", "checkpoint"):  # results do not depend on the last two
        del training[name]
    read = {"read": read_texts(dataset.reading)} if dataset.reading else {}
    tables = {
        "data": {"dataset": dataset.name, "split": dataset.split, **read},
        "settings": found.recipe.settings.to_dict(),
        "training": training,
    }
    return (
        f"# Found by deepgat tune: validation {found.recipe.training.metric or 'micro-F1'} "
        f"{100 * abs(found.val_f1):.2f}%, trial "
        f"{found.number} of {len(found.trials)}.\n"
        f'system = "{found.recipe.system}"\npreset = "{PLAIN}"\n\n{to_toml(tables)}'
    )
