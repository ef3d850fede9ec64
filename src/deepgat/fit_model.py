"""Train a model on a graph in one call: ``deepgat.fit``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.machine import memory_bound
from deepgat.model import Model
from deepgat.model_inputs import as_dataset
from deepgat.tracking import open_tracker, tracked_run, tracked_search
from deepgat.training.auto import train_auto
from deepgat.training.memory import read_memory
from deepgat.training.recipes import drop_unsuited_self_training, recipe_or_search
from deepgat.training.resume import Epoch
from deepgat.training.run import train_once
from deepgat.training.search import Request


def fit(
    graph: NodeDataset | Data | str,
    model: str | None = None,
    *,
    preset: str | None = None,
    seed: int = 0,
    training: Mapping[str, Any] | None = None,
    quality: str | None = None,
    time_limit: float | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    max_memory: str | float | None = None,
    track: str | None = None,
    track_to: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Model:
    """Train a model on a graph; the same numbers as ``deepgat train`` with the same settings.

    Args:
        graph: what ``load_graph`` returns or takes, or a PyG graph with ``x``, ``edge_index``,
            ``y`` and the three masks.
        model: a system; left out, or "auto": the best of several recipes on validation nodes.
            Settings without a system's name are those of ``deep``.
        preset, training, settings: as in :func:`deepgat.recipe`. With auto ``training`` may hold
            what applies to every recipe, such as the device or the monitor.
        seed: of the weights and dropout.
        quality, time_limit: of auto, as in :class:`~deepgat.training.search.Request`; left out,
            "good" and none.
        on_epoch: called after every epoch.
        max_memory: the most that the process may take, as "4G" or in bytes; left out: what the
            machine has. Where it is too small for the whole graph, layers are recomputed or the
            graph is trained in clusters, and a warning says so.
        track: "tensorboard" or "mlflow": settings, epochs and scores are logged there.
        track_to: its folder or address; left out: the tracker's usual one
            (:mod:`deepgat.tracking`).
    """
    bound = read_memory(max_memory)
    tracker = open_tracker(track, track_to)
    data, changes = as_dataset(graph), training or {}
    what = recipe_or_search(
        model,
        settings,
        changes,
        preset=preset,
        dataset=data.name,
        quality=quality,
        time_limit=time_limit,
    )
    with memory_bound(bound):
        if isinstance(what, Request):
            show = None if on_epoch is None else lambda step: on_epoch(step.epoch)
            with tracked_search(tracker, data, what, seed, show) as search:
                run = train_auto(data, what, seed, search)
                search.finish(run)
        else:
            plan = drop_unsuited_self_training(what, data, changes)
            with tracked_run(tracker, data, plan, seed, on_epoch) as tracked:
                run = train_once(data, plan, seed, tracked)
                tracked.finish(run)
    return Model.of(run, data)
