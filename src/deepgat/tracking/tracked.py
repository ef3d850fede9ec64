"""What is tracked of a training run, in any tracker."""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from deepgat.data import NodeDataset
from deepgat.errors import UserError
from deepgat.files import to_json
from deepgat.training.recipes import Recipe
from deepgat.training.resume import Epoch
from deepgat.training.run import ModelCard, Run, versions
from deepgat.training.search import Request, Step

Told = TypeVar("Told", Epoch, Step)
"""What training reports after every epoch: ``auto`` says which recipe the epoch belongs to."""


@dataclass(frozen=True)
class Described:
    """A run before it begins."""

    name: str
    key: str
    """Fingerprint of data and settings: a resumed run is the tracker's last one with this key."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    metric: str | None = None
    """The metric that picks the best epoch, if one does."""
    weighted: bool = False
    """Whether ``Epoch.val_score`` is the weighted share of right predictions."""
    resumed: bool = False


class Tracked:
    """One run in a tracker, or one that is not tracked: this class itself writes nothing.

    Epochs come in order; those that the tracker already has are left out.
    """

    def __init__(self, described: Described) -> None:
        self.described = described
        self.last = 0
        """The last epoch that the tracker has."""

    def epoch(self, epoch: Epoch) -> None:
        if epoch.number > self.last:
            self.write_epoch(epoch.number, epoch_values(epoch, self.described))
            self.last = epoch.number

    def write_epoch(self, number: int, values: Mapping[str, float]) -> None:
        """Numbers of one epoch, by name."""

    def child(self, described: Described) -> Tracked:
        """A run inside this one: a recipe that ``auto`` tries."""
        return Tracked(described)

    def write_result(
        self, settings: Mapping[str, Any], values: Mapping[str, float], facts: Mapping[str, Any]
    ) -> None:
        """Settings that are known only at the end, final numbers, and facts as text."""

    def write_model(self, folder: Path) -> None:
        """The model folder, where the tracker keeps files."""

    def close(self, status: str) -> None:
        """ "finished", "failed" or "interrupted"; later calls do nothing."""


class Tracker:
    """TensorBoard or MLflow; this class itself tracks nothing."""

    def begin(self, described: Described) -> Tracked:
        return Tracked(described)


def epoch_values(epoch: Epoch, described: Described) -> dict[str, float]:
    """Losses and validation scores of an epoch, by name."""
    found = {
        "train/loss": epoch.loss,
        "val/loss": epoch.val_loss,
        "val/micro_f1": epoch.val_f1,
    }
    if epoch.val_score is not None and described.metric is not None:
        found[f"val/{described.metric}"] = abs(epoch.val_score)  # errors are negated
    elif epoch.val_score is not None and described.weighted:
        found["val/weighted_accuracy"] = epoch.val_score
    return found


class Watch(ABC, Generic[Told]):
    """The callback of training: tracks every epoch, then shows it."""

    def __init__(self, tracked: Tracked, show: Callable[[Told], None] | None = None) -> None:
        self.tracked = tracked
        self.show: Callable[[Told], None] | None = show

    @abstractmethod
    def track(self, told: Told) -> None: ...

    def __call__(self, told: Told) -> None:
        self.track(told)
        if self.show is not None:
            self.show(told)

    def restored(self, history: Sequence[Told]) -> None:
        """Track the epochs of an earlier process, whose run continues here."""
        for told in history:
            self.track(told)

    def finish(self, run: Run, folder: Path | None = None) -> None:
        """Track the final scores, and the model if it was saved to a folder."""
        record = run.record()
        self.tracked.write_result(settings_of(run.card), final_values(record), final_facts(record))
        if folder is not None:
            self.tracked.write_model(folder)
        self.tracked.close("interrupted" if record["stopped"] == "interrupted" else "finished")

    def close(self, status: str) -> None:
        self.tracked.close(status)


class EpochWatch(Watch[Epoch]):
    """The callback of one training run."""

    def track(self, told: Epoch) -> None:
        self.tracked.epoch(told)


class SearchWatch(Watch[Step]):
    """The callback of ``auto``: a run for the search, and one inside it for every recipe."""

    def __init__(
        self, tracked: Tracked, seed: int, show: Callable[[Step], None] | None = None
    ) -> None:
        super().__init__(tracked, show)
        self.seed = seed
        self.children: dict[str, Tracked] = {}

    def track(self, told: Step) -> None:
        self.child(told).epoch(told.epoch)

    def child(self, step: Step) -> Tracked:
        """The run of the step's recipe, named as in the leaderboard."""
        name = step.member if step.seed == self.seed else f"{step.member}, seed {step.seed}"
        if name not in self.children:
            parent = self.tracked.described
            described = replace(
                parent,
                name=name,
                key=_digest([parent.key, name]),
                settings={"recipe": name, "seed": step.seed},
            )
            self.children[name] = self.tracked.child(described)
        return self.children[name]

    def finish(self, run: Run, folder: Path | None = None) -> None:
        assert run.search is not None
        metric = run.search.metric
        for row in run.search.leaderboard:
            child = self.children.get(row["name"])
            if child is not None:
                settings = {name: row[name] for name in ("system", "num_layers")}
                values = {"epochs": row["epochs"], "seconds": row["seconds"]}
                if row["val"] is not None:
                    values[f"scores/val/{metric}"] = row["val"]
                child.write_result(settings, values, {"outcome": row["outcome"]})
                child.close("finished")
        super().finish(run, folder)

    def close(self, status: str) -> None:
        for each in (*self.children.values(), self.tracked):
            each.close(status)


def tracked_run(
    tracker: Tracker,
    data: NodeDataset,
    plan: Recipe,
    seed: int,
    show: Callable[[Epoch], None] | None = None,
    resumed: bool = False,
) -> AbstractContextManager[EpochWatch]:
    """Track a training run: pass what it gives as ``on_epoch``, then call its ``finish``."""
    card = ModelCard.of(data, plan._replace(training=replace(plan.training, seed=seed)))
    described = Described(
        f"{_short(data)}-{card.system}-seed-{seed}",
        card.digest(),
        settings_of(card),
        card.training.metric,
        card.training.class_weight is not None,
        resumed,
    )
    return _closed_at_end(EpochWatch(Guarded(tracker.begin(described), described), show))


def tracked_search(
    tracker: Tracker,
    data: NodeDataset,
    request: Request,
    seed: int,
    show: Callable[[Step], None] | None = None,
    resumed: bool = False,
) -> AbstractContextManager[SearchWatch]:
    """As :func:`tracked_run`, of a search by ``auto``; the callback is its ``on_step``."""
    asked = {f"auto.{name}": value for name, value in request.to_dict().items()}
    training = request.training_for(data)
    monitor = str(training.get("monitor", ""))
    described = Described(
        f"{_short(data)}-auto-seed-{seed}",
        _digest([data.name, data.split, request.to_dict(), seed]),
        {"dataset": data.name, "split": data.split, **asked, "seed": seed},
        monitor if monitor == request.metric(data) else None,
        "class_weight" in training,
        resumed,
    )
    return _closed_at_end(SearchWatch(Guarded(tracker.begin(described), described), seed, show))


AnyWatch = TypeVar("AnyWatch", EpochWatch, SearchWatch)


@contextmanager
def _closed_at_end(watch: AnyWatch) -> Iterator[AnyWatch]:
    try:
        yield watch
    except KeyboardInterrupt:
        watch.close("interrupted")
        raise
    except BaseException:
        watch.close("failed")
        raise
    watch.close("finished")


class Guarded(Tracked):
    """A tracked run whose tracker may fail: training goes on without it, after one warning."""

    def __init__(self, inner: Tracked | None, described: Described) -> None:
        super().__init__(described)
        self.inner = inner
        """None once the tracker has failed, or the run is closed."""
        self.last = 0 if inner is None else inner.last

    def _try(self, call: Callable[[Tracked], Tracked | None]) -> Tracked | None:
        if self.inner is None:
            return None
        try:
            return call(self.inner)
        except Exception as error:  # of a server, a disk, a database
            self.inner = None
            told = " ".join(str(error).split())
            warnings.warn(
                f"tracking of {self.described.name} failed ({told[:300]}); training goes on "
                "without it",
                stacklevel=2,
            )
            return None

    def write_epoch(self, number: int, values: Mapping[str, float]) -> None:
        self._try(lambda run: run.write_epoch(number, values))

    def child(self, described: Described) -> Tracked:
        return Guarded(self._try(lambda run: run.child(described)), described)

    def write_result(
        self, settings: Mapping[str, Any], values: Mapping[str, float], facts: Mapping[str, Any]
    ) -> None:
        self._try(lambda run: run.write_result(settings, values, facts))

    def write_model(self, folder: Path) -> None:
        self._try(lambda run: run.write_model(folder))

    def close(self, status: str) -> None:
        self._try(lambda run: run.close(status))
        self.inner = None


def settings_of(card: ModelCard) -> dict[str, Any]:
    """Data, system and all settings of a model, under flat names."""
    found: dict[str, Any] = {"dataset": card.dataset, "split": card.split, "system": card.system}
    found |= {f"model.{name}": value for name, value in card.settings.to_dict().items()}
    found |= {f"training.{name}": value for name, value in card.training.to_dict().items()}
    return found


def final_values(record: Mapping[str, Any]) -> dict[str, float]:
    """The final numbers of a run's record: all metrics that are defined, on every part."""
    found = {
        f"scores/{part}/{metric}": float(value)
        for metric, parts in record["metrics"].items()
        for part, value in parts.items()
        if value is not None
    }
    for name in ("best_epoch", "epochs", "seconds", "temperature"):
        found[name] = float(record[name])
    return found


def final_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's record says in words."""
    found = {"stopped": record["stopped"], "hardware": record["hardware"]}
    found |= {f"version.{name}": value for name, value in versions().items()}
    if "auto" in record:
        found["reason"] = record["auto"]["reason"]
    if "memory" in record:
        found |= {f"memory.{name}": value for name, value in record["memory"].items()}
    return found


def _short(data: NodeDataset) -> str:
    return os.path.basename(data.title.rstrip("/\\")) or data.title


def _digest(value: Any) -> str:
    return hashlib.sha256(to_json(value).encode()).hexdigest()


def missing(what: str, package: str, extra: str) -> UserError:
    """The error for a package that is not installed."""
    return UserError(
        f"{what} needs {package}, which is not installed: pip install 'deepgat[{extra}]'"
    )


def tracking_folder(path: str | os.PathLike[str], expected: str) -> Path:
    """The folder at ``path``, which is made if it does not exist."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"track_to is {str(path)!r}, which cannot be written ({why}): name {expected}"
        ) from error
    return folder
