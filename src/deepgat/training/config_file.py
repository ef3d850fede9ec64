"""A run's settings in a TOML file, and the files that are shipped.

A file names a ``preset``, whose recipe supplies what is left out, and has the sections ``[data]``
(``dataset``, ``split``, and for a graph of one's own ``[data.read]``, as ``--read``), ``[model]``
(fields of :class:`~deepgat.nn.ModelSettings`) and ``[training]`` (fields of
:class:`~deepgat.training.loop.TrainSettings`)::

    preset = "gcnii"

    [data]
    dataset = "cora"
    split = "public"

    [model]
    layers = 64

    [training]
    lr = 0.01

Two more sections are for ``deepgat run`` (:mod:`deepgat.lab.experiments.spec`): ``[analysis]``, and
``[sweep]``, the repetitions that a mean is over. ``[published]`` has the ``score`` (%) that others
printed for the setting, its ``spread`` and its ``source``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from deepgat.errors import UserError, unknown_name
from deepgat.nn.presets import OF_THE_PAPER, resolve
from deepgat.nn.systems import LABEL_PROPAGATION
from deepgat.training.recipes import Recipe, recipe

FIELDS: Mapping[str, tuple[str, ...] | None] = {
    "data": ("dataset", "split", "read"),
    "model": None,
    "training": None,
    "analysis": None,
    "sweep": None,
    "published": ("score", "spread", "source"),
}
"""The sections, and what may stand in them; None where the settings themselves will say."""


@dataclass(frozen=True)
class Published:
    """A number that others printed, in %."""

    score: float
    source: str
    spread: float | None = None


@dataclass(frozen=True)
class Config:
    """What a file says; whatever it leaves out is the preset's."""

    dataset: str
    split: str | None
    preset: str | None
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    about: str = ""
    """The comment at its head."""
    published: Published | None = None
    read: Sequence[str] = ()
    """How a graph of one's own is read, as in ``--read``."""

    def recipe(self) -> Recipe:
        """The model and its training."""
        return recipe(self.preset, dataset=self.dataset, training=self.training, **dict(self.model))

    @property
    def system(self) -> str:
        """The name under which ``deepgat models`` lists what it is a setting of."""
        named = self.model.get("model")
        if named == LABEL_PROPAGATION:
            return LABEL_PROPAGATION
        model, preset = resolve(named, self.preset)
        return model if preset in (*OF_THE_PAPER, "standard") else preset


def shipped() -> dict[str, Path]:
    """Name → file of every shipped setting."""
    folder = Path(str(resources.files("deepgat.training.shipped")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_settings(source: str | Path) -> tuple[Path, str]:
    """A file of settings, or a shipped one by its name: where it is, and its text."""
    path = Path(source)
    if not path.exists():
        files = shipped()
        if path.suffix or path.parent != Path():
            raise UserError(f"{source} does not exist: expected a TOML file with settings of a run")
        if str(source) not in files:
            raise unknown_name("shipped setting", str(source), files)
        path = files[str(source)]
    try:
        return path, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read: expected a TOML file with settings of a run"
        ) from error


def read_config(source: str | Path) -> Config:
    """The settings in a file, or in a shipped one by its name."""
    path, text = read_settings(source)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not a TOML file: {error}") from error
    try:
        return _config(tables, text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _config(tables: Mapping[str, Any], text: str) -> Config:
    preset = tables.get("preset")
    if preset is not None and not isinstance(preset, str):
        raise UserError(f'preset is {preset!r}: expected a text, such as "paper"')
    for name, table in tables.items():
        if name == "preset":
            continue
        if name not in FIELDS:
            raise unknown_name("section", name, ("preset", *FIELDS))
        if not isinstance(table, dict):
            raise UserError(f"{name} is {table!r}: expected a section, [{name}]")
        for key in table:
            allowed = FIELDS[name]
            if allowed is not None and key not in allowed:
                raise unknown_name(f"{name} setting", key, allowed)
    data = tables.get("data", {})
    for key in ("dataset", "split"):
        if key in data and not isinstance(data[key], str):
            raise UserError(f"{key} in [data] is {data[key]!r}: expected a text")
    if "dataset" not in data:
        raise UserError('[data] names no dataset: expected, for example, dataset = "cora"')
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    return Config(
        data["dataset"],
        data.get("split"),
        preset,
        tables.get("model", {}),
        tables.get("training", {}),
        " ".join(comments),
        _published(tables.get("published")),
        read_texts(data.get("read", {})),
    )


def read_texts(read: Any) -> list[str]:
    """[data.read] as options of ``--read``: ["missing=mean"]; a list of them does too."""
    if isinstance(read, Mapping) and all(isinstance(v, str | bool) for v in read.values()):
        words = {True: "yes", False: "no"}
        return [f"{k}={v if isinstance(v, str) else words[v]}" for k, v in read.items()]
    if isinstance(read, list | tuple) and all(isinstance(item, str) for item in read):
        return list(read)
    raise UserError(f"data.read is {read!r}: expected a table of options and texts, [data.read]")


def _published(table: Mapping[str, Any] | None) -> Published | None:
    if table is None:
        return None
    numbers = {name: table[name] for name in ("score", "spread") if name in table}
    source = table.get("source")
    if "score" not in table or not isinstance(source, str):
        raise UserError("[published] lacks score or source: expected a number in % and a text")
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{name} in [published] is {value!r}: expected a number in %")
    return Published(source=source, **{name: float(value) for name, value in numbers.items()})
