"""Complete recipes: a model and how to train it, for a preset, a system and a dataset.

The authors tuned hyper-parameters per dataset, on mean *test* accuracy; their values are here so
that their table can be reproduced, and are used under ``preset="authors"`` only. The paper prints
no hyper-parameters; ``docs/results.md`` tells how the values of its preset were found, test scores
that were seen on the way included.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from deepgat.data import NodeDataset
from deepgat.distributed import PartDataset
from deepgat.nn import ModelSettings, model_settings
from deepgat.nn.presets import PRESETS, resolve
from deepgat.nn.settings import PREDICTING
from deepgat.training.loop import TrainSettings
from deepgat.training.settings import CALIBRATED

PRESET_NAMES = tuple(PRESETS)


class Recipe(NamedTuple):
    """A model and its training."""

    model: ModelSettings
    training: TrainSettings

    def plainest(self, nodes: int | None) -> Recipe:
        """The same on a graph of so many nodes (``None``: nobody knows), written most plainly.

        Without a decay of class heads where there are none or theirs is as the rest's, and without
        a least decay that is not reached; their λ is named where it makes a difference.
        """
        given, step = self.training, self.model.gradient_share
        heads = given.weight_decay_heads
        if heads is None and not given.decay_nodes_heads:
            return self
        named = replace(given, weight_decay_heads=given.weight_decay if heads is None else heads)
        by_step = replace(named, decay_nodes_heads=0)
        none = replace(by_step, weight_decay_heads=None)
        if self.model.model not in PREDICTING or self.model.class_head != "layer":
            return self._replace(training=none)
        if nodes is None and given.decay_nodes_heads and step < 1:
            return self._replace(training=named)
        decay = given.head_decay(step, nodes or 1)
        for plain in (none, by_step):
            if plain.head_decay(step, nodes or 1) == decay:
                return self._replace(training=plain)
        return self._replace(training=named)


class _Tuned(NamedTuple):
    """One row of the authors' hyper-parameters."""

    lr: float
    weight_decay: float
    dropout: float
    hidden: int
    norm: str = "layer"
    delta: float = 0.4


_AUTHORS: Mapping[tuple[str, str, str], _Tuned] = {
    ("deepgat", "dp", "cs"): _Tuned(0.05, 0.0, 0.6, 8, delta=0.4),
    ("deepgat", "sd", "cs"): _Tuned(0.05, 1e-3, 0.6, 8, delta=0.4),
    ("deepgat", "dp", "physics"): _Tuned(0.05, 1e-3, 0.0, 16, delta=0.6),
    ("deepgat", "sd", "physics"): _Tuned(0.05, 0.0, 0.6, 8, delta=0.2),
    ("deepgat", "dp", "flickr"): _Tuned(0.001, 0.0, 0.0, 32, delta=0.4),
    ("deepgat", "sd", "flickr"): _Tuned(0.01, 1e-4, 0.2, 16, "batch", delta=0.6),
    ("deepgat", "dp", "ppi"): _Tuned(0.001, 0.0, 0.0, 32, delta=0.6),
    ("deepgat", "sd", "ppi"): _Tuned(0.005, 0.0, 0.0, 32, "batch", delta=0.3),
    ("gat", "dp", "cs"): _Tuned(0.005, 1e-3, 0.8, 8),
    ("gat", "sd", "cs"): _Tuned(0.005, 5e-4, 0.8, 8),
    ("gat", "dp", "physics"): _Tuned(0.005, 1e-3, 0.8, 8),
    ("gat", "sd", "physics"): _Tuned(0.05, 1e-3, 0.6, 8),
    ("gat", "dp", "flickr"): _Tuned(0.01, 1e-3, 0.0, 8, "batch"),
    ("gat", "sd", "flickr"): _Tuned(0.005, 1e-3, 0.0, 8, "batch"),
    ("gat", "dp", "ppi"): _Tuned(0.001, 0.0, 0.0, 128),
    ("gat", "sd", "ppi"): _Tuned(0.001, 0.0, 0.0, 128, "batch"),
}
"""(model, score, dataset) → the authors' values; 8 hidden heads, 1 in the last layer."""

_AUTHORS_DEFAULT = {
    "deepgat": _Tuned(0.05, 0.0, 0.6, 8),
    "gat": _Tuned(0.005, 5e-4, 0.6, 8),
}
_STAND_INS = {"flickr-aane": "flickr", "ppi-rebuilt": "ppi"}
"""Datasets the authors never saw take the values of the dataset they stand in for."""

_USUAL: Mapping[str, Any] = {"lr": 0.01, "weight_decay": 5e-4, "epochs": 1000}
_GCNII: Mapping[str, Any] = {**_USUAL, "weight_decay_conv": 0.01, "epochs": 1500}
_TRAINING: Mapping[str, Mapping[str, Any]] = {
    "gcnii": _GCNII,
    "deep": {
        **_GCNII,
        "decay_nodes": 1500,
        "decay_nodes_heads": 3500,
        "epochs": 3000,
        "patience": 50,
        "monitor": "loss-and-errors",
        "average_weights": 0.99,
        "self_training": 1.0,
        "self_training_from": 0,
        "confidence": 0.0,
        "target_temperature": 1.0,
        "calibrated_targets": True,
        "own_best": True,
    },
    "g2": {"lr": 0.003, "weight_decay": 0.01, "epochs": 200, "patience": 200, "monitor": "val-f1"},
    "appnp": {**_USUAL, "weight_decay": 1e-3},
    "dagnn": {**_USUAL, "weight_decay": 5e-3},
}
"""How the systems other than DeepGAT are trained, from their published code where there is one.

APPNP's weight decay, of 5e-4, 1e-3 and 5e-3, is the best on the validation nodes of Cora and of
CiteSeer (5 seeds, results/search.jsonl.gz)."""

_SHARPENED = 0.5
"""Temperature of targets that are not calibrated: as they are, they teach too little."""


def recipe(
    preset: str | None = None,
    model: str | None = None,
    *,
    score: str | None = None,
    dataset: str | None = None,
    training: Mapping[str, Any] | None = None,
    **choices: Any,
) -> Recipe:
    """The recipe of a preset for a system on a dataset.

    Args:
        preset: a name of :data:`~deepgat.nn.PRESETS`; left out, "paper" for a model that is
            named, "deep" where none is.
        model, score: the system; see :func:`~deepgat.nn.model_settings`.
        dataset: a name of the catalogue; the authors tuned some values per dataset.
        training: fields of :class:`~deepgat.training.loop.TrainSettings` to replace; a
            ``weight_decay_conv`` or ``weight_decay_heads`` that is named is the same on graphs of
            any size, and with a ``monitor`` that looks for no temperature targets are not
            calibrated, but sharpened.
        choices: model settings to replace, such as ``layers=15``.
    """
    model, preset = resolve(model, preset)  # refuses unknown names
    settings = model_settings(model, preset, score)
    if preset == "authors":
        tuned = _authors_values(settings, dataset)
        settings = settings.with_changes(
            {
                "hidden": tuned.hidden,
                "dropout": tuned.dropout,
                "norm": tuned.norm,
                "delta": tuned.delta,
                **_authors_ppi(settings, dataset),
            }
        )
        monitor = "train-loss" if _known_as(dataset) == "ppi" else "val-loss"
        schedule = TrainSettings(lr=tuned.lr, weight_decay=tuned.weight_decay, monitor=monitor)
    elif preset == "paper":
        settings = settings.with_changes({"dropout": 0.6, "unit_features": True})
        deep = choices.get("layers", settings.layers) > 4
        schedule = TrainSettings(lr=0.01 if deep else 0.05, weight_decay=1e-4)
    else:
        schedule = TrainSettings(**_TRAINING.get(preset, _USUAL))
    changes = dict(training or {})
    if "weight_decay_conv" in changes:
        changes.setdefault("decay_nodes", 0)
    if "weight_decay_heads" in changes:
        changes.setdefault("decay_nodes_heads", 0)
    if schedule.calibrated_targets:
        possible = changes.get("monitor", schedule.monitor) in CALIBRATED
        if not changes.setdefault("calibrated_targets", possible):
            changes.setdefault("target_temperature", _SHARPENED)
    return Recipe(settings.with_changes(choices), schedule.with_changes(changes))


def suited(plan: Recipe, dataset: NodeDataset | PartDataset, asked: Collection[str] = ()) -> Recipe:
    """The recipe without self-training where the data does not suit it, unless it was asked for.

    It takes one graph with one class per node, seen whole in every step. ``asked``: the training
    settings that a user has named, which stay as they are.
    """
    if "self_training" in asked:
        return plan
    count = len(dataset.graphs if isinstance(dataset, NodeDataset) else dataset.parts)
    if count == 1 and not dataset.multi_label and plan.training.batches == "none":
        return plan
    return plan._replace(training=plan.training.with_changes({"self_training": 0.0}))


def _known_as(dataset: str | None) -> str:
    name = (dataset or "").strip().lower()
    return _STAND_INS.get(name, name)


def _authors_values(settings: ModelSettings, dataset: str | None) -> _Tuned:
    model = "deepgat" if settings.model == "oracle" else settings.model
    score = settings.score if settings.model in ("deepgat", "gat") else "dp"
    fallback = _AUTHORS_DEFAULT.get(model, _AUTHORS_DEFAULT["gat"])
    return _AUTHORS.get((model, score, _known_as(dataset)), fallback)


def _authors_ppi(settings: ModelSettings, dataset: str | None) -> dict[str, Any]:
    """PPI: a linear skip in every layer, no dropout at all, other head counts for GAT."""
    if _known_as(dataset) != "ppi":
        return {}
    heads = {"heads": 4, "output_heads": 6} if settings.model == "gat" else {}
    return {"update": "linear-skip", "attention_dropout": 0.0, **heads}
