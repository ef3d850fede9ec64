"""A run's settings in a TOML file, and the files that are shipped.

A file names a ``system`` of ``deepgat models`` or ``auto``, and a ``preset`` of the system where it
has several. The sections replace what their recipe says: ``[data]`` (``dataset``, ``split``, and
for your own graph ``[data.read]``, as ``--read``), ``[settings]`` (fields of the system's
configuration; of auto ``quality``, ``num_layers`` of its recipes of ``deep``, and ``frugal``: to
save time as on a CPU) and
``[training]`` (fields of :class:`~deepgat.training.settings.TrainSettings`)::

    system = "gcnii"

    [data]
    dataset = "cora"
    split = "public"

    [settings]
    num_layers = 64

    [training]
    lr = 0.01

Two more sections are for ``deepgat run``: ``[analysis]``, and ``[sweep]``, lists of values of
dotted names, ``training.seed = [0, 1, 2]``, for one run per combination. ``[published]`` has the
``score`` (%) that others printed for the setting, its ``spread`` and its ``source``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from deepgat.data.tables.opening import parse_toml, read_whole
from deepgat.errors import UserError, unknown_name
from deepgat.models.registry import DEFAULT, SYSTEMS, find_system
from deepgat.training.recipes import Recipe, recipe
from deepgat.training.search import AUTO, SearchSettings, is_auto
from deepgat.training.settings import TrainSettings
from deepgat.training.values import checked_values, from_table

NAMES = ("system", "preset")
SECTIONS = ("data", "settings", "training", "analysis", "sweep", "published")
DATA = ("dataset", "split", "undirected", "read", "content")


@dataclass(frozen=True)
class Published:
    """A number that others printed, in %."""

    score: float
    source: str
    spread: float | None = None


@dataclass(frozen=True)
class ConfigFile:
    """What a file says; its recipe supplies what it leaves out."""

    dataset: str
    split: str | None = None
    system: str = DEFAULT
    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    """The comment at its head."""
    published: Published | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """The section [data], dataset and split included."""
    read: Sequence[str] = ()
    """How your own graph is read, as in ``--read``."""
    analysis: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Any] = field(default_factory=dict)

    def recipe(self) -> Recipe:
        """The system, its settings and its training."""
        if self.system == AUTO:
            return self._search()
        config = find_system(self.system).network.Config
        settings = checked_values(config, self.settings, "settings")
        training = checked_values(TrainSettings, self.training, "training")
        return recipe(
            self.system, preset=self.preset, dataset=self.dataset, training=training, **settings
        )

    def _search(self) -> Recipe:
        """``auto`` in the form of a recipe; its training says only what all members share."""
        if self.preset is not None:
            raise UserError("preset is of one system, and auto tries several: leave it out")
        training = checked_values(TrainSettings, self.training, "training")
        is_auto(AUTO, None, {}, training)
        usual = TrainSettings().to_dict()
        for name in training.keys() - {"seed", "device"}:
            if training[name] == usual[name]:
                raise UserError(
                    f"training.{name} is {usual[name]!r}, which stands for what each recipe of "
                    "auto has: leave it out, or name a system"
                )
        return Recipe(AUTO, self.search_settings(), TrainSettings(**training))

    def search_settings(self) -> SearchSettings:
        """The section [settings], where the system is ``auto``."""
        return from_table(SearchSettings, self.settings, "settings")

    def changed(
        self, settings: Mapping[str, Any] | None = None, training: Mapping[str, Any] | None = None
    ) -> ConfigFile:
        """With some settings replaced."""
        return replace(
            self,
            settings={**self.settings, **(settings or {})},
            training={**self.training, **(training or {})},
        )


def shipped() -> dict[str, Path]:
    """Name → file of every shipped setting."""
    folder = Path(str(resources.files("deepgat.training.shipped")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_config(source: str | Path) -> ConfigFile:
    """The settings in a file, or in a shipped one by its name; an error names the file."""
    path = Path(source)
    if not path.exists():
        files = shipped()
        if path.suffix or path.parent != Path():
            raise UserError(f"{source} does not exist: expected a TOML file with settings of a run")
        if str(source) not in files:
            raise unknown_name("shipped setting", str(source), files)
        path = files[str(source)]
    try:
        text = read_whole(path).decode()
    except (UserError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read: expected a TOML file with settings of a run"
        ) from error
    try:
        return parse_config(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def parse_config(text: str) -> ConfigFile:
    """The settings in a TOML text."""
    tables = parse_toml(text)
    for name, value in tables.items():
        if name not in (*NAMES, *SECTIONS):
            raise unknown_name("section", name, (*NAMES, *SECTIONS))
        if name in NAMES and not isinstance(value, str):
            raise UserError(f'{name} is {value!r}: expected a text, such as "deepgat"')
        if name in SECTIONS and not isinstance(value, dict):
            raise UserError(f"{name} is {value!r}: expected a section, [{name}]")
    system = tables.get("system", DEFAULT)
    if system not in (*SYSTEMS, AUTO):
        raise unknown_name("system", system, (*SYSTEMS, AUTO))
    data = tables.get("data", {})
    for name in data:
        if name not in DATA:
            raise unknown_name("setting of [data]", name, DATA)
    for key in ("dataset", "split"):
        if key in data and not isinstance(data[key], str):
            raise UserError(f"{key} in [data] is {data[key]!r}: expected a text")
    if "dataset" not in data:
        raise UserError('[data] names no dataset: expected, for example, dataset = "cora"')
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    return ConfigFile(
        data["dataset"],
        data.get("split"),
        system,
        tables.get("preset"),
        tables.get("settings", {}),
        tables.get("training", {}),
        " ".join(comments),
        from_table(Published, tables["published"], "published") if "published" in tables else None,
        data,
        read_texts(data.get("read", {})),
        tables.get("analysis", {}),
        tables.get("sweep", {}),
    )


def read_texts(read: Any) -> list[str]:
    """[data.read] as options of ``--read``: ["missing=mean"]; a list of them does too."""
    if isinstance(read, Mapping) and all(isinstance(v, str | bool) for v in read.values()):
        words = {True: "yes", False: "no"}
        return [f"{k}={v if isinstance(v, str) else words[v]}" for k, v in read.items()]
    if isinstance(read, list | tuple) and all(isinstance(item, str) for item in read):
        return list(read)
    raise UserError(f"data.read is {read!r}: expected a table of options and texts, [data.read]")
