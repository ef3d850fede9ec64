"""A run as one value: which data, which model, how trained, what is measured.

A :class:`RunSpec` says all that decides a run's numbers, and nothing else: the device it happens to
run on is no part of it. Its signature is a hash of the whole of it, so two runs have the same
signature exactly when they are the same run. (Settings of the class heads' decay that make no
difference to it are left out for that, ``Recipe.plainest``: a spec that is
edited to another depth has to name them again.)
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from deepgat.data import NodeDataset, ReadOptions, fingerprint, is_path, load_graph, parse_split
from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError, unknown_name
from deepgat.lab.experiments.measures import MEASURES
from deepgat.nn import ModelSettings
from deepgat.training.config_file import read_settings, read_texts
from deepgat.training.loop import TrainSettings
from deepgat.training.recipes import Recipe, recipe
from deepgat.training.values import checked_values, field_types, from_table, to_toml, typed

RESULTS_VERSION = 1
"""Raise it when a change of the code changes the numbers of a spec, or when a new setting's default
is not how things were before it: every run is then another run, and none is taken for done."""

SIGNATURE_DIGITS = 16
KEEP = ("none", "last", "all")
OF_OWN_GRAPHS = ("read", "content")
"""Fields of [data] that are written, and signed, for graphs of one's own alone."""
NOT_PART = {"training": ("device",)}
"""Fields of the sections that do not belong to the run itself."""
PRESET, SWEEP, PUBLISHED = "preset", "sweep", "published"
NO_PRESET = "none"
"""In a file: settings that are not named have their plain defaults, not those of a recipe."""


@dataclass(frozen=True)
class DataSpec:
    """The graph and its split, by their names; both are written in full once made."""

    dataset: str
    split: str = ""
    """As :func:`deepgat.data.parse_split` reads it; left empty, the dataset's default."""
    undirected: bool = True
    read: tuple[str, ...] = ()
    """Of a graph of one's own: the options for reading it, "missing=mean", as in ``--read``. A file
    may have them as a section, [data.read]."""
    content: str = ""
    """Of a graph of one's own: a fingerprint of its files, taken when the run is described, since
    they and not their name decide the numbers."""

    def __post_init__(self) -> None:
        if is_path(self.dataset):
            self._describe_own()
            return
        for name in OF_OWN_GRAPHS:
            if getattr(self, name):
                raise UserError(
                    f"data.{name} is for a graph of your own, and {self.dataset} is a dataset of "
                    "the catalogue: leave it out"
                )
        entry = find_entry(self.dataset)
        split = str(parse_split(self.split or entry.default_split))
        object.__setattr__(self, "dataset", entry.key)
        object.__setattr__(self, "split", split)

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
                f"the files of {self.dataset} are not those that the run was described with: "
                "describe it anew, without data.content"
            )
        return load_graph(self.dataset, self.split or None, undirected=self.undirected, **options)


def _options(texts: Sequence[str]) -> dict[str, str]:
    """ "missing=mean" → its name and its value."""
    for text in texts:
        if "=" not in text:
            raise UserError(f"data.read has {text!r}: expected NAME=VALUE, such as missing=mean")
    return {name.strip(): value.strip() for name, _, value in (t.partition("=") for t in texts)}


@dataclass(frozen=True)
class AnalysisSpec:
    """What is measured on the trained model, and which of its arrays are kept."""

    measures: tuple[str, ...] = ()
    """Names of :data:`deepgat.lab.experiments.measures.MEASURES`."""
    representations: str = "none"
    """Which layers' h^l are kept: "none", the "last", or "all"."""
    attention: str = "none"
    """Which layers' attention, heads averaged, is kept."""

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
    """One run. Made from other values than it should be, it says so in one sentence."""

    data: DataSpec
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainSettings = field(default_factory=TrainSettings)
    analysis: AnalysisSpec = field(default_factory=AnalysisSpec)

    def __post_init__(self) -> None:
        for section, kind in SECTIONS.items():
            given, hints = getattr(self, section), field_types(kind)
            values = {
                item.name: typed(
                    f"{section}.{item.name}", getattr(given, item.name), hints[item.name]
                )
                for item in fields(given)
            }
            values |= {name: _default(kind, name) for name in NOT_PART.get(section, ())}
            object.__setattr__(self, section, kind(**values))
        if self.training.seed < 0:
            raise UserError(f"training.seed is {self.training.seed}: expected 0 or more")
        own = is_path(self.data.dataset)  # of as many nodes as its files have
        plain = self.recipe.plainest(None if own else find_entry(self.data.dataset).nodes)
        object.__setattr__(self, "training", plain.training)

    @property
    def seed(self) -> int:
        return self.training.seed

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.model, self.training)

    @property
    def signature(self) -> str:
        return signature_of(self.to_dict())

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The whole spec as plain values, section by section."""
        plain = asdict(self) | {"model": self.model.to_dict(), "training": self.training.to_dict()}
        for section, names in NOT_PART.items():
            for name in names:
                del plain[section][name]
        for name in OF_OWN_GRAPHS:
            if not plain["data"][name]:  # as before there were graphs of one's own
                del plain["data"][name]
        if self.data.read:
            plain["data"]["read"] = list(self.data.read)
        plain["analysis"]["measures"] = list(self.analysis.measures)
        return plain

    @staticmethod
    def from_dict(tables: Mapping[str, Any]) -> RunSpec:
        """The spec of plain values; settings that are not named have their defaults."""
        _refuse_strangers(tables)
        parts: dict[str, Any] = {
            section: from_table(SECTIONS[section], table, section)
            for section, table in tables.items()
            if section != "data"
        }
        return RunSpec(_data(tables["data"]), **parts)

    def to_toml(self) -> str:
        """All of the run, as a file for ``deepgat run``; nothing is left to a recipe."""
        return f'{PRESET} = "{NO_PRESET}"\n\n' + to_toml(self.to_dict())

    @staticmethod
    def from_toml(text: str) -> RunSpec:
        """The one spec in a TOML text."""
        specs = specs_from_toml(text)
        if len(specs) != 1:
            raise UserError(f"the text describes {len(specs)} runs: expected one")
        return specs[0]


SECTIONS: Mapping[str, type] = {
    "data": DataSpec,
    "model": ModelSettings,
    "training": TrainSettings,
    "analysis": AnalysisSpec,
}


def signature_of(plain: Mapping[str, Any], results_version: int = RESULTS_VERSION) -> str:
    """16 hexadecimal digits: a hash of a whole spec and of what its numbers depend on besides."""
    whole = {"results_version": results_version, "spec": plain}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:SIGNATURE_DIGITS]


def read_specs(source: str | Path) -> list[RunSpec]:
    """The runs of a TOML file, or of a shipped one by its name; an error names the file."""
    path, text = read_settings(source)
    try:
        return specs_from_toml(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def specs_from_toml(text: str) -> list[RunSpec]:
    """The runs that a TOML text describes.

    Its sections are those of :class:`RunSpec`; settings that it does not name are those of the
    recipe for its model and dataset. Two things more may stand in it: ``preset``, whose recipe
    that is ("none": plain defaults instead), and a section ``[sweep]`` of dotted names with lists
    of values, as in ``training.seed = [0, 1, 2]``; there is one run for every combination.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"not a TOML text ({error}): expected sections such as [data]") from error
    sweep = tables.pop(SWEEP, {})
    preset = tables.pop(PRESET, None)
    tables.pop(PUBLISHED, None)  # others' numbers decide nothing
    for name in tables:
        if name not in SECTIONS:
            raise unknown_name("section", name, (*SECTIONS, PRESET, SWEEP, PUBLISHED))
        if not isinstance(tables[name], dict):
            raise UserError(f"{name} is {tables[name]!r}: expected a table of settings, [{name}]")
    if preset is not None and not isinstance(preset, str):
        raise UserError(f"{PRESET} is {preset!r}: expected a text, such as 'paper'")
    found: dict[RunSpec, None] = {}
    for point in _sweep_points(sweep):
        whole = {name: dict(table) for name, table in tables.items()}
        for (section, name), value in point.items():
            if section == "data" and name.startswith("read."):
                data = whole.setdefault("data", {})
                data["read"] = [*read_texts(data.get("read", {})), f"{name[5:]}={value}"]
            else:
                whole.setdefault(section, {})[name] = value
        spec = RunSpec.from_dict(whole) if preset == NO_PRESET else _from_recipe(whole, preset)
        found[spec] = None  # once each, in order
    return list(found)


def _sweep_points(sweep: Any) -> Iterator[dict[tuple[str, str], Any]]:
    """One dictionary (section, name) → value for every combination."""
    axes: dict[tuple[str, str], list[Any]] = {}
    if not isinstance(sweep, dict):
        raise UserError(f"{SWEEP} is {sweep!r}: expected a section, [{SWEEP}]")
    for dotted, values in _flat(sweep):
        section, _, name = dotted.partition(".")
        if section not in SECTIONS or not name:
            known = [f"{part}.{x.name}" for part, kind in SECTIONS.items() for x in fields(kind)]
            raise unknown_name("setting in [sweep]", dotted, known)
        if not isinstance(values, list) or not values:
            raise UserError(
                f"{dotted} in [sweep] is {values!r}: expected a list of values, as in [1, 2]"
            )
        axes[section, name] = values
    for combination in itertools.product(*axes.values()):
        yield dict(zip(axes, combination, strict=True))


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """ "training.seed" → values, whether the dot was quoted or made a table within a table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _from_recipe(tables: Mapping[str, Any], preset: str | None) -> RunSpec:
    """The run of a file: what its tables leave out is the recipe's."""
    _refuse_strangers(tables)
    data = _data(tables["data"])
    usual = recipe(
        **({} if preset is None else {"preset": preset}),
        dataset=data.dataset,
        training=checked_values(TrainSettings, tables.get("training", {}), "training"),
        **checked_values(ModelSettings, tables.get("model", {}), "model"),
    )
    analysis = from_table(AnalysisSpec, tables.get("analysis", {}), "analysis")
    return RunSpec(data, usual.model, usual.training, analysis)


def _data(table: Any) -> DataSpec:
    """[data], whose options for reading may be a table of their own."""
    if isinstance(table, Mapping) and "read" in table:
        table = {**table, "read": read_texts(table["read"])}
    return from_table(DataSpec, table, "data")


def _refuse_strangers(tables: Mapping[str, Any]) -> None:
    """Refuse unknown sections, a missing dataset, and what is no part of a run."""
    for section in tables:
        if section not in SECTIONS:
            raise unknown_name("section", section, SECTIONS)
    if "data" not in tables:
        raise UserError("the section [data] is missing: it names the dataset of the run")
    for section, names in NOT_PART.items():
        for name in names:
            if name in (tables.get(section) or {}):
                raise UserError(
                    f"{section}.{name} is no part of a run, which is the same everywhere: "
                    f"give it as --{name} instead"
                )


def _default(kind: type, name: str) -> Any:
    return next(item.default for item in fields(kind) if item.name == name)
