"""Small texts of the command line: seeds and settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from deepgat.errors import UserError, unknown_name
from deepgat.nn import ModelSettings
from deepgat.training.loop import TrainSettings

PICTURES = (".png", ".pdf", ".svg")
OWN_OPTIONS = ("model", "score", "layers")
"""Settings that the command line always sets by their own options."""


def parse_seeds(text: str) -> list[int]:
    """The numbers of --seeds."""
    return parse_numbers(text, "--seeds")


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


def parse_choices(texts: Sequence[str]) -> dict[str, Any]:
    """["norm=layer", "bias=yes"] → typed model settings; unknown names are refused."""
    types = ModelSettings.kinds()
    choices: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UserError(f"--set {text!r}: expected NAME=VALUE, for example --set norm=layer")
        if name in OWN_OPTIONS:
            raise UserError(f"--set {text!r}: say it as --{name} {value.strip()}")
        if name not in types:
            raise unknown_name("model setting", name, types)
        choices[name] = _typed(name, value.strip(), types[name])
    return choices


def parse_training(texts: Sequence[str]) -> dict[str, Any]:
    """["batches=clusters", "clusters=64"] → typed training settings; unknown names are refused."""
    types = {
        setting.name: float if setting.default is None else type(setting.default)
        for setting in fields(TrainSettings)
    }
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UserError(
                f"--train {text!r}: expected NAME=VALUE, for example --train batches=clusters"
            )
        if name == "seed":
            raise UserError(f"--train {text!r}: say it as --seeds {value.strip()}")
        if name not in types:
            raise unknown_name("training setting", name, types)
        found[name] = _typed(name, value.strip(), types[name], "--train")
    return found


def check_picture(path: Path | None) -> None:
    """Refuse the name of a picture that could not be drawn; to be asked early."""
    if path is not None and (path.suffix.lower() not in PICTURES or path.is_dir()):
        raise UserError(f"{path}: expected the name of a picture, ending in {', '.join(PICTURES)}")


def head_width(width: int, heads: int) -> int:
    """D = width / H, for those who think in whole layers."""
    if heads < 1 or width < 1 or width % heads:
        raise UserError(
            f"--width {width} does not divide into {heads} heads: choose a multiple of {heads}, "
            "or give the width of one head with --hidden"
        )
    return width // heads


def _typed(name: str, value: str, kind: type, option: str = "--set") -> Any:
    if kind is bool:
        if value.lower() not in ("yes", "no", "true", "false", "1", "0"):
            raise UserError(f"{option} {name}={value}: expected yes or no")
        return value.lower() in ("yes", "true", "1")
    try:
        return kind(value)
    except ValueError:
        wanted = {"int": "a whole number", "float": "a number"}[kind.__name__]
        raise UserError(f"{option} {name}={value}: expected {wanted}") from None
