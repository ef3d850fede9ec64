"""Texts of the command line: seeds, settings, and how to read a graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepgat.cli.show import OWN_OPTIONS, note
from deepgat.data import NodeDataset, ReadOptions, load_graph
from deepgat.errors import UserError, unknown_name
from deepgat.files import check_can_write
from deepgat.models import find_system
from deepgat.models.config import Config
from deepgat.training.settings import TrainSettings

PICTURES = (".png", ".pdf", ".svg")


def parse_numbers(text: str, option: str) -> list[int]:
    """ "0-4,7" → [0, 1, 2, 3, 4, 7]."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None:
            raise UserError(f"{option} {text!r}: expected numbers and ranges such as 0-4 or 0,3,7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= 10_000:
            raise UserError(f"{option} {text!r}: {part.strip()!r} is not a range of {option[2:]}")
        numbers.extend(range(first, last + 1))
    return list(dict.fromkeys(numbers))


def parse_settings(texts: Sequence[str] | None, system: str | None) -> dict[str, Any]:
    """["norm=layer", "bias=yes"] → typed settings of a system; unknown names are refused."""
    found = find_system(system)
    return parse_pairs(texts, "--set", found.network.Config, f"setting of {found.name}")


def parse_training(texts: Sequence[str] | None) -> dict[str, Any]:
    """["batches=clusters", "clusters=64"] → typed training settings; unknown names are refused."""
    return parse_pairs(texts, "--train", TrainSettings, "training setting")


def parse_pairs(
    texts: Sequence[str] | None, option: str, config: type[Config], what: str
) -> dict[str, Any]:
    """["name=value"] → typed values, by the fields of a configuration."""
    kinds = config.kinds()
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name, value = name.strip().replace("-", "_"), value.strip()
        if not equals:
            raise UserError(f"{option} {text!r}: expected NAME=VALUE, for example norm=layer")
        if name in OWN_OPTIONS:
            raise UserError(f"{option} {text!r}: say it as --{OWN_OPTIONS[name]} {value}")
        if name not in kinds:
            raise unknown_name(what, name, kinds)
        found[name] = _typed(name, value, kinds[name], option)
    return found


def parse_reading(texts: Sequence[str] | None) -> dict[str, Any]:
    """["missing=mean", "undirected=no"] → options for reading a graph; unknown ones are refused."""
    given = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--read {text!r}: expected NAME=VALUE, for example missing=mean")
        given[name.strip().replace("-", "_")] = value.strip()
    chosen = ReadOptions.of(given)
    return {name: getattr(chosen, name) for name in given}


def load_data(
    name: str, split: str | None, read: Sequence[str] | None, tell: bool = True
) -> NodeDataset:
    """A dataset by name or path; prints notes on what reading changed."""
    data = load_graph(name, split, **parse_reading(read))
    if tell:
        tell_notes(data)
    return data


def tell_notes(data: NodeDataset) -> None:
    """Print notes on what reading changed in a graph."""
    for text in data.notes:
        note(text)


def check_picture(path: Path | None) -> None:
    """Refuse the name of a picture that could not be drawn; to be asked early."""
    if path is None:
        return
    if path.suffix.lower() not in PICTURES or path.is_dir():
        raise UserError(f"{path}: expected the name of a picture, ending in {', '.join(PICTURES)}")
    check_can_write(path)


def _typed(name: str, value: str, kind: type, option: str) -> Any:
    if kind is bool:
        if value.lower() not in ("yes", "no", "true", "false", "1", "0"):
            raise UserError(f"{option} {name}={value}: expected yes or no")
        return value.lower() in ("yes", "true", "1")
    try:
        return kind(value)
    except ValueError:
        wanted = {"int": "a whole number", "float": "a number"}[kind.__name__]
        raise UserError(f"{option} {name}={value}: expected {wanted}") from None
