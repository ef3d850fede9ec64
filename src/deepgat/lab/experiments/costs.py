"""Estimates how long runs take, to order them and to predict the remaining time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deepgat.data import is_path
from deepgat.data.catalogue.entries import find_entry
from deepgat.lab.experiments.spec import RunSpec

EDGES_PER_NODE = 10
"""A guess for graphs whose number of edges the catalogue does not have."""

OWN_SIZE = 20_000
"""A guess for nodes + edges of graphs read from files; finished runs correct it."""


def work_of(spec: RunSpec) -> float:
    """A number roughly proportional to the time of one epoch."""
    settings = spec.settings.to_dict()
    width = settings["hidden_channels"] * settings.get("heads", 1)
    return _size(spec) * spec.layers * (16 + width)


def in_order(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Each run once, in an order that first fills every cell of a table, then adds repetitions.

    Small datasets come before large ones. Within a dataset, every run of one repetition (seed and
    split) comes before the next repetition. Within a repetition, quick runs come first.
    """
    unique = list(dict.fromkeys(specs))
    repeats = {key: i for i, key in enumerate(sorted({_repeat(spec) for spec in unique}))}
    return sorted(
        unique,
        key=lambda spec: (_size(spec), spec.data.dataset, repeats[_repeat(spec)], work_of(spec)),
    )


def _size(spec: RunSpec) -> int:
    if is_path(spec.data.dataset):
        return OWN_SIZE
    entry = find_entry(spec.data.dataset)
    return entry.nodes + (entry.edges or EDGES_PER_NODE * entry.nodes)


def _repeat(spec: RunSpec) -> tuple[int, str]:
    return (spec.seed, spec.data.split)


class Forecast:
    """Seconds per unit of work: of the dataset once one of its runs has finished, else overall."""

    def __init__(self) -> None:
        self._work: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def learn(self, spec: RunSpec, seconds: float) -> None:
        name = spec.data.dataset
        self._work[name] = self._work.get(name, 0.0) + work_of(spec)
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def seconds(self, specs: Sequence[RunSpec], workers: int = 1) -> float | None:
        """The predicted time of these runs; None before any run has finished."""
        if not self._work:
            return None
        overall = sum(self._seconds.values()) / sum(self._work.values())
        total = 0.0
        for spec in specs:
            name = spec.data.dataset
            rate = self._seconds[name] / self._work[name] if name in self._work else overall
            total += rate * work_of(spec)
        return total / min(workers, max(len(specs), 1))
