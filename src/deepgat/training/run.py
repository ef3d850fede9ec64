"""One run: a recipe applied to a dataset with one seed, and its results."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from deepgat.data import FeaturePlan, NodeDataset, load_graph
from deepgat.distributed import PartDataset, Team
from deepgat.errors import UserError
from deepgat.files import to_json
from deepgat.models import Network, build_network
from deepgat.models.config import Config
from deepgat.models.registry import check_size
from deepgat.nn.checkpoint import segment_length
from deepgat.training import memory
from deepgat.training.device import own_random_numbers
from deepgat.training.evaluate import Evaluation, evaluate
from deepgat.training.loop import FitResult, train
from deepgat.training.recipes import Recipe
from deepgat.training.resume import Epoch, Progress
from deepgat.training.search import Search
from deepgat.training.settings import TrainSettings


@dataclass(frozen=True)
class ModelCard:
    """What a trained model is: enough to build it, load its data and train it again."""

    system: str
    settings: Config
    training: TrainSettings
    dataset: str
    split: str
    num_features: int
    num_classes: int
    multi_label: bool
    edge_features: int = 0
    class_names: list[str] = field(default_factory=list)
    """Names of the classes of a user's own graph."""
    feature_names: list[str] = field(default_factory=list)
    """Names of the features of a user's own graph."""
    reading: dict[str, Any] = field(default_factory=dict)
    """The options that the graph was read with."""
    edge_weights: bool = False
    """Whether the edges have weights."""
    feature_plan: list[dict[str, Any]] = field(default_factory=list)
    """How the features were made from columns."""

    @staticmethod
    def of(dataset: NodeDataset, recipe: Recipe) -> ModelCard:
        return ModelCard(
            recipe.system,
            recipe.settings,
            recipe.training,
            dataset.name,
            dataset.split,
            dataset.num_features,
            dataset.num_classes,
            dataset.multi_label,
            dataset.num_edge_features,
            list(dataset.class_names),
            list(dataset.feature_names),
            dict(dataset.reading),
            dataset.has_edge_weights,
            [dict(item) for item in dataset.feature_plan],
        )

    def load_data(self) -> NodeDataset:
        """The data that the model was trained for; refused where its classes have changed."""
        data = load_graph(self.dataset, self.split, **self.reading_by_plan())
        if list(data.class_names) != self.class_names:
            raise UserError(
                f"{data.title} has the classes {_some(data.class_names)}, but the model was "
                f"trained for {_some(self.class_names)}: train it again"
            )
        return data

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        own = {"settings": self.settings.to_dict(), "training": self.training.to_dict()}
        return asdict(self) | own

    def reading_by_plan(self) -> dict[str, Any]:
        """Options with which ``load_graph`` makes the features of a graph as in training."""
        if not self.feature_names:  # a graph of the catalogue
            return dict(self.reading)
        return {**self.reading, "plan": FeaturePlan.of(self.feature_plan)}

    def digest(self) -> str:
        """A fingerprint of the whole card."""
        return hashlib.sha256(to_json(self.to_dict()).encode()).hexdigest()

    def build(self) -> Network:
        """A new model of this kind, its weights drawn from the seed."""
        check_size(self.settings, self.num_features, self.num_classes, self._network)
        # On the CPU, whatever torch's default device: the same weights everywhere, and no GPU's
        # random numbers touched.
        with torch.device("cpu"), own_random_numbers(self.training.seed, torch.device("cpu")):
            return self._network(self.settings)

    def outline(self) -> Network:
        """A model of this kind without memory for its weights: it has their names and shapes."""
        with torch.device("meta"):
            return self._network(self.settings)

    def _network(self, settings: Config) -> Network:
        return build_network(
            self.system,
            settings,
            self.num_features,
            self.num_classes,
            multi_label=self.multi_label,
            edge_dim=self.edge_features,
        )


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model with its scores."""

    card: ModelCard
    model: Network
    fitted: FitResult
    evaluation: Evaluation
    search: Search | None = None
    """What ``auto`` tried, where it made the model."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What was chosen because memory is scarce, and why; empty where everything fitted."""

    def record(self, with_curve: bool = False) -> dict[str, Any]:
        """The run as plain values: what was run, what came out, and on what."""
        record = {
            "dataset": self.card.dataset,
            "split": self.card.split,
            "seed": self.card.training.seed,
            "micro_f1": self.evaluation.micro_f1,
            "loss": self.evaluation.loss,
            "metrics": self.evaluation.metrics,
            "temperature": self.evaluation.calibration.temperature,
            "calibrated": self.evaluation.calibrated,
            "best_epoch": self.fitted.best.number,
            "epochs": len(self.fitted.history),
            "stopped": self.fitted.stopped,
            "seconds": round(self.fitted.seconds, 3),
            "system": self.card.system,
            "settings": self.card.settings.to_dict(),
            "training": self.card.training.to_dict(),
            "versions": versions(),
            "hardware": hardware(self.card.training.device),
        }
        if self.search is not None:
            record["auto"] = self.search.to_dict()
        if self.memory:
            record["memory"] = self.memory
        if with_curve:
            record["curve"] = {
                name: [getattr(epoch, name) for epoch in self.fitted.history]
                for name in ("loss", "val_loss", "val_f1")
            }
        return record


def train_once(
    dataset: NodeDataset,
    recipe: Recipe,
    seed: int = 0,
    on_epoch: Callable[[Epoch], None] | None = None,
    team: Team | None = None,
    progress: Progress | None = None,
    as_asked: bool = False,
) -> Run:
    """Draw the weights from the seed, train, and score once; test labels are read here only.

    ``team`` and ``progress`` are as in :func:`deepgat.training.loop.train`; the key of
    ``progress`` is set here. Where memory is too small, layers are recomputed or the graph is cut
    into clusters (:mod:`deepgat.training.memory`); ``as_asked`` never cuts it, nor refuses: the
    run is then the same everywhere.
    """
    if not isinstance(dataset, PartDataset):  # its rows are checked with its part
        dataset.check()  # before a network is built for it
    training = replace(recipe.training, seed=seed)
    card = ModelCard.of(dataset, recipe._replace(training=training))
    model = card.build()
    choice = memory.Choice(training, training.checkpoint)
    if team is None and not as_asked and not isinstance(dataset, PartDataset):
        begun = None if progress is None else progress.begun_with()
        choice = memory.choose(model, dataset, training, begun)
    if progress is not None:
        progress = replace(progress, key=card.digest(), chosen=choice.changes)
    card = replace(card, training=choice.training)
    fitted = train(model, dataset, choice.settings, on_epoch, team=team, progress=progress)
    segment = segment_length(choice.checkpoint, model.num_layers)
    scores = evaluate(model, dataset, training.device, team, choice.training.chunk, segment)
    return Run(card, model, fitted, scores, memory=choice.record)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def versions() -> dict[str, str]:
    """What produced a result: this package, its commit where known, and what it runs on.

    The variable DEEPGAT_COMMIT names the commit of a copy without its history.
    """
    found = {"python": platform.python_version()}
    for name in ("deepgat", "torch", "torch_geometric", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source folder that is not installed
            found[name] = "not installed"
    commit = os.environ.get("DEEPGAT_COMMIT") or _commit()
    return {**found, "commit": commit} if commit else found


def hardware(device: str = "auto") -> str:
    """The device in words."""
    if torch.cuda.is_available() and device != "cpu":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


@cache
def _commit() -> str | None:
    """The commit of the checkout this package runs from; None for an installed copy."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
