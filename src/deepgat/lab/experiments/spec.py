"""A run as one value: its data, system, settings, training and measures.

A :class:`RunSpec` has everything that determines a run's numbers and nothing else; in particular,
not the device. Its signature is a hash of the whole spec, so two runs have the same signature
exactly when they are the same run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from deepgat.data import NodeDataset, ReadOptions, fingerprint, is_path, load_graph, parse_split
from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError, unknown_name
from deepgat.lab.experiments.measures import MEASURES
from deepgat.models.config import Config
from deepgat.models.network import Network
from deepgat.models.registry import find_system
from deepgat.training.config_file import ConfigFile, read_config, read_texts
from deepgat.training.recipes import PLAIN, Recipe
from deepgat.training.search import AUTO, Request, SearchSettings
from deepgat.training.settings import TrainSettings
from deepgat.training.values import from_table, to_toml

SCHEMA = 4
"""Version of records and signatures. Raise it when a code change changes the numbers of a spec:
every signature then changes, so no earlier run counts as done."""

SIGNATURE_DIGITS = 16
MOST_RUNS = 100_000
"""Of one file or one command."""
KEEP = ("none", "last", "all")
OF_OWN_GRAPHS = ("read", "content")
"""Fields of [data] that are only for a graph read from your own files."""
SECTIONS = ("data", "system", "settings", "training", "analysis")
"""The parts of a spec."""
SWEPT = ("data", "settings", "training", "analysis")
"""Sections whose fields a sweep may name."""


@dataclass(frozen=True)
class DataSpec:
    """The graph and its split, by name. Both names are completed when the spec is made."""

    dataset: str
    split: str = ""
    """As :func:`deepgat.data.parse_split` reads it; if empty, the dataset's default."""
    undirected: bool = True
    read: tuple[str, ...] = ()
    """Options for reading your own graph, such as "missing=mean", as for ``--read``. A TOML file
    may have them as a section, [data.read]."""
    content: str = ""
    """A fingerprint of your own graph's files, taken when the spec is made. The files, not their
    names, determine the numbers."""

    def __post_init__(self) -> None:
        if is_path(self.dataset):
            self._describe_own()
            return
        if self.read or self.content:
            raise UserError(
                f"data.read and data.content are for a graph of your own, and {self.dataset} is a "
                "dataset of the catalogue: leave them out"
            )
        entry = find_entry(self.dataset)
        object.__setattr__(self, "dataset", entry.key)
        object.__setattr__(self, "split", str(parse_split(self.split or entry.default_split)))

    def _describe_own(self) -> None:
        options = ReadOptions.of(_options(self.read))
        changes = {k: v for k, v in options.changes().items() if k != "undirected"}
        read = tuple(sorted(f"{name}={value}" for name, value in changes.items()))
        object.__setattr__(self, "undirected", self.undirected and options.undirected)
        object.__setattr__(self, "dataset", os.path.abspath(self.dataset))
        object.__setattr__(self, "split", str(parse_split(self.split)) if self.split else "")
        object.__setattr__(self, "read", read)
        if not self.content:
            object.__setattr__(self, "content", fingerprint(self.dataset, options))

    def load(self) -> NodeDataset:
        options: dict[str, Any] = {**_options(self.read)}
        if self.content and self.content != fingerprint(self.dataset, ReadOptions.of(options)):
            raise UserError(
                f"the files of {self.dataset} have changed since the run was described: describe "
                "it again, without data.content"
            )
        return load_graph(self.dataset, self.split or None, undirected=self.undirected, **options)


def _options(texts: Sequence[str]) -> dict[str, str]:
    """["missing=mean"] → {"missing": "mean"}."""
    for text in texts:
        if "=" not in text:
            raise UserError(f"data.read has {text!r}: expected NAME=VALUE, such as missing=mean")
    return {name.strip(): value.strip() for name, _, value in (t.partition("=") for t in texts)}


@dataclass(frozen=True)
class AnalysisSpec:
    """What to measure on the trained model, and which of its arrays to keep."""

    measures: tuple[str, ...] = ()
    """Names of :data:`deepgat.lab.experiments.measures.MEASURES`."""
    representations: str = "none"
    """The layers whose h^l is kept: "none", "last" or "all"."""
    attention: str = "none"
    """The layers whose attention is kept, averaged over heads."""

    def __post_init__(self) -> None:
        for name in self.measures:
            if name not in MEASURES:
                raise unknown_name("measure", name, MEASURES)
        for name in ("representations", "attention"):
            if getattr(self, name) not in KEEP:
                raise unknown_name(f"choice for {name}", getattr(self, name), KEEP)
        object.__setattr__(self, "measures", tuple(sorted(set(self.measures))))


@dataclass(frozen=True)
class RunSpec:
    """One run, or one search of ``auto``."""

    data: DataSpec
    system: str
    settings: Config
    training: TrainSettings
    analysis: AnalysisSpec = field(default_factory=AnalysisSpec)

    def __post_init__(self) -> None:
        if self.system == AUTO:
            self._check_search()
        elif not issubclass(find_system(self.system).network, Network):
            raise UserError(
                f"{self.system} is not trained, so it has no runs: use deepgat train --model "
                f"{self.system}"
            )
        if self.training.seed < 0:
            raise UserError(f"training.seed is {self.training.seed}: expected 0 or more")
        anywhere = replace(self.training, device=TrainSettings().device)
        object.__setattr__(self, "training", anywhere)

    def _check_search(self) -> None:
        if self.analysis != AnalysisSpec():
            raise UserError("analysis is of one network, and auto tries several: leave it out")
        self.request("auto")

    @staticmethod
    def of(data: DataSpec, recipe: Recipe, analysis: AnalysisSpec | None = None) -> RunSpec:
        return RunSpec(data, *recipe, AnalysisSpec() if analysis is None else analysis)

    @property
    def seed(self) -> int:
        return self.training.seed

    @property
    def layers(self) -> int:
        return int(self.settings.to_dict()["num_layers"])

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.system, self.settings, self.training)

    def request(self, device: str) -> Request:
        """What is asked of ``auto``, where that is the system."""
        asked = self.settings.to_dict()
        training = {**self._shared_training(), "device": device}
        layers = asked["num_layers"] or None
        return Request(asked["quality"], None, training, layers, asked["frugal"])

    def _shared_training(self) -> dict[str, Any]:
        """What all members of a search share: whatever is not the default."""
        usual = TrainSettings().to_dict()
        given = self.training.to_dict()
        return {k: v for k, v in given.items() if v != usual[k] and k != "seed"}

    @property
    def signature(self) -> str:
        return signature_of(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The whole spec as plain values, by section."""
        own = {"settings": self.settings.to_dict(), "training": self.training.to_dict()}
        if self.system == AUTO:
            own["training"] = {**self._shared_training(), "seed": self.seed, "device": "auto"}
        plain = asdict(self) | own
        del plain["training"]["device"]
        for name in OF_OWN_GRAPHS:
            if not plain["data"][name]:
                del plain["data"][name]
        return plain

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> RunSpec:
        """The spec of plain values; settings left out have their defaults."""
        searched = plain["system"] == AUTO
        config = SearchSettings if searched else find_system(plain["system"]).network.Config
        return RunSpec(
            _data(plain["data"]),
            plain["system"],
            from_table(config, plain["settings"], "settings"),
            from_table(TrainSettings, plain["training"], "training"),
            from_table(AnalysisSpec, plain["analysis"], "analysis"),
        )

    def to_toml(self) -> str:
        """The whole run as a file for ``deepgat run``, which leaves nothing to a recipe."""
        tables = self.to_dict()
        head = f'system = "{tables.pop("system")}"\n'
        if self.system == AUTO:
            del tables["analysis"]
        else:
            head += f'preset = "{PLAIN}"\n'
        return f"{head}\n{to_toml(tables)}"


def signature_of(plain: Mapping[str, Any]) -> str:
    """16 hexadecimal digits: a hash of the whole spec and of :data:`SCHEMA`."""
    whole = {"schema": SCHEMA, "spec": plain}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:SIGNATURE_DIGITS]


def read_specs(source: str | Path) -> list[RunSpec]:
    """The runs of a TOML file, or of a shipped setting by name; an error names the file."""
    config = read_config(source)
    try:
        return specs_of(config)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def specs_of(config: ConfigFile) -> list[RunSpec]:
    """The runs that a file describes: one for each combination of the values in its sweep."""
    if "device" in config.training:
        raise UserError(
            "training.device is no part of a run, which is the same everywhere: give it as "
            "--device instead"
        )
    axes = dict(_sweep_axes(config.sweep))
    check_count(math.prod(len(values) for values in axes.values()), "[sweep]")
    found: dict[RunSpec, None] = {}  # each run once, in order
    for combination in itertools.product(*axes.values()):
        tables = {name: dict(getattr(config, name)) for name in SWEPT}
        tables["data"]["read"] = list(config.read)
        for (section, name), value in zip(axes, combination, strict=True):
            if section == "data" and name.startswith("read."):
                tables["data"]["read"].append(f"{name.removeprefix('read.')}={value}")
            else:
                tables[section][name] = value
        data = _data(tables["data"])
        settings, training = tables["settings"], tables["training"]
        there = replace(config, dataset=data.dataset, settings=settings, training=training)
        analysis = from_table(AnalysisSpec, tables["analysis"], "analysis")
        found[RunSpec.of(data, there.recipe(), analysis)] = None
    return list(found)


def check_count(runs: int, what: str) -> None:
    """Refuse more runs than anyone will wait for, before they are listed one by one."""
    if runs > MOST_RUNS:
        raise UserError(
            f"{what} describes {runs:,} runs: expected at most {MOST_RUNS:,}; leave values out, or "
            "divide them among several files"
        )


def check_at_least_one(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise UserError(f"{name} is {value}: expected 1 or more")


def _sweep_axes(
    table: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    """Pairs (("training", "seed"), values), whether the dot was quoted or made a nested table."""
    for name, values in table.items():
        dotted = f"{above}{name}"
        if isinstance(values, dict):
            yield from _sweep_axes(values, f"{dotted}.")
            continue
        section, dot, setting = dotted.partition(".")
        if not dot or section not in SWEPT:
            choices = [f"{section}.NAME" for section in SWEPT]
            raise unknown_name("setting in [sweep]", dotted, choices)
        if not isinstance(values, list) or not values:
            raise UserError(
                f"{dotted} in [sweep] is {values!r}: expected a list of values, as in [1, 2]"
            )
        yield (section, setting), values


def _data(table: Mapping[str, Any]) -> DataSpec:
    """The section [data], in which ``read`` may be a table or a list."""
    return from_table(DataSpec, {**table, "read": read_texts(table.get("read", []))}, "data")
