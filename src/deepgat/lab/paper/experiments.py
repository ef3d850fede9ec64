"""The paper's experiments, each a list of runs.

The targets share one grid per dataset: systems × depths × repetitions. Every run of the grid has
the measures that any target needs, so no two targets train the same network twice. Only
over-smoothing has runs of its own, because its measures are too large for the whole grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deepgat.analysis.graph_shape import graph_statistics
from deepgat.data import list_datasets, load_graph
from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError, unknown_name
from deepgat.lab.experiments.spec import AnalysisSpec, DataSpec, RunSpec, check_at_least_one
from deepgat.training.recipes import recipe

System = tuple[str, str]
"""(model, score)."""

SYSTEMS: tuple[System, ...] = (("deepgat", "dp"), ("deepgat", "sd"), ("gat", "dp"), ("gat", "sd"))
ORACLE: System = ("oracle", "sum")
TRAINED: Mapping[str, tuple[System, ...]] = {
    "degradation": (("gat", "dp"), ("gat", "sd")),
    "depth": SYSTEMS,
    "table2": SYSTEMS,
    "attention-kl": SYSTEMS,
    "nearest-neighbor": (*SYSTEMS, ORACLE),
    "over-smoothing": SYSTEMS,
}
"""Target → the systems whose runs it needs."""
TARGETS = ("table1", *TRAINED, "lemmas")
ALL = "all"

TABLE1_DATASETS = ("cora", "citeseer", "cs", "physics", "flickr", "flickr-aane", "ppi",
                   "ppi-rebuilt")  # fmt: skip
DATASETS = TABLE1_DATASETS[2:]
QUICK_DATASETS = ("csbm", "digits", "cora")
DEPTHS, SHORT_DEPTHS, QUICK_DEPTHS = tuple(range(1, 16)), tuple(range(1, 10)), (2, 4, 8)
SHORT = ("flickr", "flickr-aane", "ppi", "ppi-rebuilt")
"""Datasets on which the paper has at most 9 layers."""
REFERENCE_DEPTH = 2
"""Depth of the network with which the deepest network's attention is compared."""

PROTOCOLS = ("authors", "honest")
RATES = (0.05, 0.01, 0.005)
"""Learning rates from which the honest protocol chooses, on each repetition's validation nodes."""
ATTENTION_REPEATS = 3
"""Repetitions that keep their attention, which is large."""
MEASURES = ("layer-scores", "nearest-neighbor")
SMOOTHING = AnalysisSpec(("layer-scores", "over-smoothing"), attention="last")
"""The measure needs attention to be kept; the last layer's is small."""
SMOOTHING_DEPTHS, QUICK_SMOOTHING_DEPTHS = (2, 4, 8, 15), (2, 8)
"""Depths at which every layer is measured, besides the largest."""
SMOOTHING_REPEATS = 3
QUICK_MODEL = {"heads": 4}
QUICK_TRAINING = {"epochs": 50, "patience": 20}


@dataclass(frozen=True)
class Plan:
    """The part of the grid to run, and the protocol.

    - ``authors``: their hyper-parameters and their one split; seeds change the initialisation.
    - ``honest``: the paper's equations, on random splits × seeds. Every repetition chooses the
      learning rate from :data:`RATES`. All choices are made on validation nodes.
    """

    protocol: str
    datasets: tuple[str, ...]
    table1_datasets: tuple[str, ...]
    layers: tuple[int, ...] | None
    """None: the paper's depths for each dataset."""
    seeds: tuple[int, ...]
    splits: int
    quick: bool
    epochs: int | None = None
    """The most epochs of a run; None: the recipe's."""

    def depths(self, dataset: str) -> tuple[int, ...]:
        if self.layers is not None:
            return self.layers
        if self.quick:
            return QUICK_DEPTHS
        return SHORT_DEPTHS if dataset in SHORT else DEPTHS

    def repeats(self, dataset: str) -> list[tuple[str, int]]:
        """(split, seed) of every repetition."""
        entry = find_entry(dataset)
        splits = [entry.default_split]
        if self.protocol == "honest" and not (entry.multi_label or dataset == "flickr"):
            splits = [f"random:{number}" for number in range(self.splits)]
        return [(split, seed) for seed in self.seeds for split in splits]

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Learning rates to choose from; None is the recipe's."""
        return RATES if self.protocol == "honest" and not self.quick else (None,)


def make_plan(
    protocol: str = "authors",
    *,
    quick: bool = False,
    datasets: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    splits: int | None = None,
    epochs: int | None = None,
) -> Plan:
    """A plan. Defaults are the paper's, or, if ``quick``, small enough for a laptop.

    By default, the plan has those of the paper's datasets that are available here.
    """
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    if layers is not None and (not layers or min(layers) < 1):
        raise UserError(f"layers is {list(layers)}: expected numbers from 1 on")
    check_at_least_one(splits=splits, epochs=epochs)
    if datasets is not None:
        named = tuple(dict.fromkeys(find_entry(name).key for name in datasets))
        trained = described = named
    else:
        here = {listing.key for listing in list_datasets() if listing.at_hand}
        trained = tuple(n for n in (QUICK_DATASETS if quick else DATASETS) if n in here)
        described = trained if quick else tuple(n for n in TABLE1_DATASETS if n in here)
    several = protocol == "honest"
    usual = (1 if several else 2) if quick else (2 if several else 5)
    return Plan(
        protocol,
        trained,
        described,
        None if layers is None else tuple(sorted(set(layers))),
        tuple(range(usual)) if seeds is None else tuple(dict.fromkeys(seeds)),
        (2 if quick else 5) if splits is None else splits,
        quick,
        epochs,
    )


def target_names(target: str) -> tuple[str, ...]:
    """The target of this name, or all targets for "all"."""
    if target not in (*TARGETS, ALL):
        raise unknown_name("target", target, (*TARGETS, ALL))
    return TARGETS if target == ALL else (target,)


def target_specs(target: str, plan: Plan) -> list[RunSpec]:
    """The runs that a target needs; none for a target that trains nothing."""
    found: dict[RunSpec, None] = {}
    for name in target_names(target):
        for system in TRAINED.get(name, ()):
            for dataset in plan.datasets:
                if name == "nearest-neighbor" and find_entry(dataset).multi_label:
                    continue  # multi-label data has no nearest-neighbour error
                found |= dict.fromkeys(_specs(name, plan, dataset, system))
    return list(found)


def _specs(target: str, plan: Plan, dataset: str, system: System) -> Iterator[RunSpec]:
    """A system's runs on a dataset: the whole grid, or the part of it that the target shows."""
    depths, repeats = plan.depths(dataset), plan.repeats(dataset)
    compared = (REFERENCE_DEPTH, max(depths))
    keeping = repeats[:ATTENTION_REPEATS]
    if target == "attention-kl":
        if REFERENCE_DEPTH not in depths:
            raise UserError(
                f"attention-kl compares with {REFERENCE_DEPTH} layers: layers must include "
                f"{REFERENCE_DEPTH}"
            )
        depths, repeats = tuple(dict.fromkeys(compared)), keeping
    if target == "over-smoothing":
        wanted = QUICK_SMOOTHING_DEPTHS if plan.quick else SMOOTHING_DEPTHS
        depths = tuple(sorted({*set(depths).intersection(wanted), max(depths)}))
        repeats = repeats[: 1 if plan.quick else SMOOTHING_REPEATS]
    preset = "authors" if plan.protocol == "authors" else "paper"
    model, score = system
    for layers in depths:
        for rate in plan.rates:
            training: dict[str, Any] = {} if rate is None else {"lr": rate}
            choices: dict[str, Any] = {"num_layers": layers, "score": score}
            if plan.quick:
                training |= QUICK_TRAINING
                choices |= QUICK_MODEL
            if plan.epochs is not None:
                training["epochs"] = plan.epochs
            usual = recipe(model, preset=preset, dataset=dataset, training=training, **choices)
            for split, seed in repeats:
                kept = layers in compared and (split, seed) in keeping and system != ORACLE
                measured = AnalysisSpec(MEASURES, attention="all" if kept else "none")
                if target == "over-smoothing":
                    measured = SMOOTHING
                seeded = usual._replace(training=replace(usual.training, seed=seed))
                yield RunSpec.of(DataSpec(dataset, split), seeded, measured)


def dataset_statistics(datasets: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of Table 1 for these datasets, computed from the graphs, as plain values."""
    rows = []
    for name in datasets:
        data = load_graph(name)
        found = graph_statistics([(graph.edge_index, graph.num_nodes) for graph in data.graphs])
        rows.append(
            {
                "dataset": data.name,
                "title": data.title,
                "graphs": len(data.graphs),
                "features": data.num_features,
                "classes": data.num_classes,
                **found._asdict(),
                "printed": found.printed._asdict(),
                "true": found.true._asdict(),
            }
        )
    return rows
