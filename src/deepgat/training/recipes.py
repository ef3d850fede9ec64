"""Complete recipes: a system, its settings and how it is trained.

The authors of DeepGAT tuned hyper-parameters per dataset, on mean *test* accuracy; their values are
here so that their table can be reproduced, and are used under ``preset="authors"`` only. The paper
prints no hyper-parameters; ``docs/results.md`` tells how the values of the preset ``paper`` were
found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from deepgat.data import NodeDataset
from deepgat.errors import UserError, unknown_name
from deepgat.models.config import Config
from deepgat.models.registry import ENSEMBLE, System, find_system
from deepgat.training.search import Request, check_model, is_auto
from deepgat.training.settings import TrainSettings

PLAIN = "none"
"""The preset that leaves nothing to a recipe: what is not named has its plain default."""


class Recipe(NamedTuple):
    """A system, its settings and its training."""

    system: str
    settings: Config
    training: TrainSettings


class _Tuned(NamedTuple):
    """One row of the authors' hyper-parameters."""

    lr: float
    weight_decay: float
    dropout: float
    hidden_channels: int
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
"""(system, score, dataset) → the authors' values; 8 hidden heads, 1 in the last layer."""

_AUTHORS_DEFAULT = {
    "deepgat": _Tuned(0.05, 0.0, 0.6, 8),
    "gat": _Tuned(0.005, 5e-4, 0.6, 8),
}
_STAND_INS = {"flickr-aane": "flickr", "ppi-rebuilt": "ppi"}
"""Datasets the authors never saw take the values of the dataset they stand in for."""


def recipe(
    model: str | None = None,
    *,
    preset: str | None = None,
    dataset: str | None = None,
    training: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Recipe:
    """The recipe of a system.

    Args:
        model: a name of :data:`~deepgat.models.SYSTEMS`; left out, "deep". (``auto``, the default
            of ``fit`` and ``deepgat train``, is no recipe: it tries several.)
        preset: for deepgat, gat and oracle: "paper", its equations, or "authors", the choices of
            their code; left out, the system's first. For any system "none": what is not named has
            the default of its class.
        dataset: a name of the catalogue; the authors tuned some values per dataset.
        training: fields of :class:`~deepgat.training.settings.TrainSettings` to replace.
        settings: fields of the system's configuration to replace, such as ``num_layers=15``.
    """
    if model == ENSEMBLE:
        raise UserError("an ensemble is made of models by auto: set quality=best instead")
    system = find_system(model)
    config, schedule = system.config, dict(system.training)
    if preset == PLAIN:
        config, schedule = type(config)(), {}
    elif preset := _preset(system, preset):
        config = config.with_changes(system.presets[preset])
    if preset == "authors":
        if "score" in settings:
            config = config.with_changes({"score": settings["score"]})
        tuned, usual = _authors_values(system.name, config, dataset)
        config, schedule = config.with_changes(usual), tuned
    elif preset == "paper":
        deep = settings.get("num_layers", config.to_dict()["num_layers"]) > 4
        schedule = {"lr": 0.01 if deep else 0.05, "weight_decay": 1e-4}
    return Recipe(
        system.name,
        config.with_changes(settings, f"setting of {system.name}"),
        TrainSettings(**schedule).with_changes(training or {}, "training setting"),
    )


def recipe_or_search(
    model: str | None,
    settings: Mapping[str, Any],
    training: Mapping[str, Any],
    *,
    preset: str | None = None,
    dataset: str | None = None,
    quality: str | None = None,
    time_limit: float | None = None,
    frugal: bool | None = None,
) -> Recipe | Request:
    """The recipe that a user names; where none is named, a search for one by ``auto``.

    Args:
        model, settings, training, preset, dataset: as in :func:`recipe`; None and "auto" ask for
            a search, unless settings of one system are named. With "auto" that may be
            ``num_layers``, the depth of its recipes of ``deep``.
        quality, time_limit, frugal: of the search, as in :class:`~.search.Request`.
    """
    check_model(model)
    if is_auto(model, preset, settings, training):
        layers = settings.get("num_layers")
        asked = "good" if quality is None else quality
        return Request(asked, time_limit, training, layers, frugal)
    if quality is not None or time_limit is not None:
        raise UserError(
            "quality and time_limit are of auto: leave them out, or the model and its settings"
        )
    return recipe(model, preset=preset, dataset=dataset, training=training, **settings)


def drop_unsuited_self_training(
    plan: Recipe, dataset: NodeDataset, asked: Collection[str] = ()
) -> Recipe:
    """The recipe without self-training if the data does not suit it, unless the user asked for it.

    Self-training needs one graph with one class per node, seen whole in every step. ``asked``: the
    training settings that a user has named; they stay as they are.
    """
    if "self_training" in asked:
        return plan
    one = len(dataset.graphs) == 1 and not dataset.multi_label
    if one and not plan.training.in_parts:
        return plan
    return plan._replace(training=plan.training.with_changes({"self_training": 0.0}))


def _preset(system: System, name: str | None) -> str | None:
    """The preset of this name; left out, the system's first, if it has any."""
    if name is None:
        return next(iter(system.presets), None)
    if not system.presets:
        raise UserError(f"{system.name} has no presets: leave preset {name!r} out")
    if name not in system.presets:
        raise unknown_name(f"preset of {system.name}", name, system.presets)
    return name


def _authors_values(
    system: str, config: Config, dataset: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(training, settings) of the authors for a dataset."""
    name = (dataset or "").strip().lower()
    name = _STAND_INS.get(name, name)
    kind = "deepgat" if system == "oracle" else system
    score = "dp" if system == "oracle" else config.to_dict()["score"]
    tuned = _AUTHORS.get((kind, score, name), _AUTHORS_DEFAULT[kind])
    settings: dict[str, Any] = {
        "hidden_channels": tuned.hidden_channels,
        "dropout": tuned.dropout,
        "norm": tuned.norm,
    }
    if kind == "deepgat":
        settings["delta"] = tuned.delta
    if name == "ppi":  # a linear skip in every layer, no dropout at all, other heads for GAT
        settings |= {"residual": "linear", "attention_dropout": 0.0}
        settings |= {"heads": 4, "output_heads": 6} if kind == "gat" else {}
    monitor = "train-loss" if name == "ppi" else "val-loss"
    return {"lr": tuned.lr, "weight_decay": tuned.weight_decay, "monitor": monitor}, settings
