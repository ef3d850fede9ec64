"""Train a model on a graph in one call: ``deepgat.fit``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.errors import UserError
from deepgat.machine import memory_bound
from deepgat.model import Model
from deepgat.model_inputs import as_dataset
from deepgat.tracking import open_tracker, tracked_run, tracked_search
from deepgat.training.auto import train_auto
from deepgat.training.memory import read_memory
from deepgat.training.recipes import drop_unsuited_self_training, recipe
from deepgat.training.resume import Epoch
from deepgat.training.run import train_once
from deepgat.training.search import Request, is_auto


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
    if track is None and track_to is not None:
        raise UserError("track_to is where a tracker writes: name it too, as track")
    bound = read_memory(max_memory)
    tracker = None if track is None else open_tracker(track, track_to)
    data = as_dataset(graph)
    if is_auto(model, preset, settings, training or {}):
        request = Request("good" if quality is None else quality, time_limit, training or {})
        watch = None if on_epoch is None else lambda step: on_epoch(step.epoch)
        with memory_bound(bound):
            if tracker is None:
                return Model.of(train_auto(data, request, seed, watch), data)
            with tracked_search(tracker, data, request, seed, watch) as following:
                run = train_auto(data, request, seed, following)
                following.finish(run)
        return Model.of(run, data)
    if quality is not None or time_limit is not None:
        raise UserError("quality and time_limit are of auto: leave them out, or the model's name")
    plan = recipe(model, preset=preset, dataset=data.name, training=training, **settings)
    plan = drop_unsuited_self_training(plan, data, training or ())
    with memory_bound(bound):
        if tracker is None:
            return Model.of(train_once(data, plan, seed, on_epoch), data)
        with tracked_run(tracker, data, plan, seed, on_epoch) as tracked:
            run = train_once(data, plan, seed, tracked)
            tracked.finish(run)
    return Model.of(run, data)
