"""The default, ``auto``, on many graphs with few and with many labels, beside single systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from deepgat.data import is_path, list_datasets
from deepgat.data.catalogue.entries import ENTRIES, find_entry
from deepgat.errors import UserError
from deepgat.lab.experiments.spec import DataSpec, RunSpec, check_at_least_one
from deepgat.lab.paper.depths import QUICK_DATASETS, QUICK_EPOCHS, label_of
from deepgat.models.network import Network
from deepgat.models.registry import SYSTEMS
from deepgat.training.recipes import Recipe, recipe
from deepgat.training.search import AUTO, QUALITIES, SearchSettings
from deepgat.training.settings import TrainSettings

BEST = "auto, best"
SEARCHES: Mapping[str, str] = {
    AUTO if quality == "good" else f"auto, {quality}": quality for quality in QUALITIES
}
"""Row → quality."""
SINGLE = tuple(
    name
    for name, system in SYSTEMS.items()
    if issubclass(system.network, Network) and not system.sees_every_label
)
"""The systems that are trained and see no label of a test node."""

PUBLIC, STORED, FEW = "public", "stored:{}", "random:{}:20/30"
MANY, HALF = "fractions:0.6/0.2:{}", "fractions:0.5/0.25:{}"


class Graph(NamedTuple):
    """A graph with one kind of split."""

    dataset: str
    """A name of the catalogue, or the path of your own graph."""
    split: str
    """With braces for its number, where there are several."""
    repeats: int
    """Splits, or seeds where there is one split."""


CHOSEN_ON = (
    Graph("cora", PUBLIC, 10),
    Graph("citeseer", PUBLIC, 10),
    Graph("pubmed", PUBLIC, 10),
    *(Graph(name, split, 5) for name in ("cs", "physics", "photo") for split in (FEW, MANY)),
    Graph("minesweeper", STORED, 5),
    Graph("chameleon-filtered", HALF, 10),
    *(Graph(name, STORED, 10) for name in ("texas", "wisconsin", "cornell")),
)
"""The graphs by whose validation scores ``auto`` was made."""
OTHERS = (
    *(Graph(name, STORED, 5) for name in ("actor", "chameleon", "squirrel")),
    Graph("flickr-aane", FEW, 5),
)


def search_specs(
    *,
    quick: bool = False,
    datasets: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    splits: int | None = None,
    systems: Sequence[str] | None = None,
    epochs: int | None = None,
    frugal: bool = False,
) -> dict[str, list[RunSpec]]:
    """Row → its runs: a search of ``auto``, or a single system with its defaults.

    Args:
        quick: a small graph, few epochs and no repetitions.
        datasets: names of the catalogue, or paths of your own graphs; if None, those of
            :data:`CHOSEN_ON` and :data:`OTHERS` that are at hand.
        layers: of the recipes of ``deep`` in the searches; if None, as they are.
        seeds: of the weights, all on every split; if None, every split has its own.
        splits: how many.
        systems: rows; if None, ``auto`` everywhere, and single systems on all but
            :data:`CHOSEN_ON`.
        epochs: the most epochs of a member or system.
        frugal: let searches save time, as they do on a CPU.
    """
    check_at_least_one(splits=splits, epochs=epochs)
    rows = (*SEARCHES, *SINGLE)
    everywhere = (AUTO,) if systems is None else [label_of(name, rows) for name in systems]
    elsewhere = (AUTO, *SINGLE) if systems is None and not quick else everywhere
    epochs = epochs or (QUICK_EPOCHS if quick else None)
    shared = {} if epochs is None else {"epochs": epochs}
    labelled: dict[str, list[RunSpec]] = {}
    for graph in _graphs(QUICK_DATASETS if quick and datasets is None else datasets):
        count = 1 if quick else splits or graph.repeats
        for label in everywhere if graph in CHOSEN_ON else elsewhere:
            for split, seed in _repeats(graph, seeds, count):
                for plan in _plans(label, graph.dataset, layers, shared, frugal):
                    seeded = plan._replace(training=replace(plan.training, seed=seed))
                    spec = RunSpec.of(DataSpec(graph.dataset, split), seeded)
                    labelled.setdefault(label, []).append(spec)
    return labelled


def _graphs(names: Sequence[str] | None) -> list[Graph]:
    """The graphs of these names, each with the splits that it is known for."""
    known = (*CHOSEN_ON, *OTHERS)
    if names is None:
        here = {listing.key for listing in list_datasets() if listing.at_hand}
        if found := [graph for graph in known if graph.dataset in here]:
            return found
        raise UserError("none of the graphs is at hand: see deepgat datasets, or name --datasets")
    found = []
    for name in names:
        if is_path(name):
            found += [Graph(name, FEW, 5), Graph(name, MANY, 5)]
            continue
        entry = find_entry(name)
        own = [graph for graph in known if graph.dataset == entry.key]
        if not own and entry.default_split == PUBLIC:
            own = [Graph(entry.key, PUBLIC, 5)]
        elif not own and entry.default_split.startswith("stored"):
            own = [Graph(entry.key, STORED, 5)]
        found += own or [Graph(entry.key, FEW, 5), Graph(entry.key, MANY, 5)]
    return list(dict.fromkeys(found))


def _repeats(graph: Graph, seeds: Sequence[int] | None, count: int) -> list[tuple[str, int]]:
    """(split, seed) of every repetition."""
    if graph.split == PUBLIC:
        return [(PUBLIC, seed) for seed in seeds or range(count)]
    drawn = [graph.split.format(number) for number in range(count)]
    if seeds is None:
        return [(split, number) for number, split in enumerate(drawn)]
    return [(split, seed) for seed in seeds for split in drawn]


def _plans(
    label: str,
    dataset: str,
    layers: Sequence[int] | None,
    shared: Mapping[str, Any],
    frugal: bool,
) -> list[Recipe]:
    """What a row trains on a dataset; a search for every depth."""
    if label in SEARCHES:
        training = TrainSettings().with_changes(shared)
        settings = [SearchSettings(SEARCHES[label], depth, frugal) for depth in layers or [0]]
        return [Recipe(AUTO, asked, training) for asked in settings]
    entry = ENTRIES.get(dataset)
    own = dict(shared)
    if entry is not None and entry.metric != "accuracy":
        own["monitor"] = entry.metric
    name = None if entry is None else entry.key
    return [recipe(label, dataset=name, training=own)]
