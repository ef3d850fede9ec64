"""What records must look like; checked once, where they enter.

A record may come from anyone: a line of ``deepgat train --json``, a file of records, or an entry of
a store that was made elsewhere. What passes :func:`check` can be listed, shown and reported.
"""

from __future__ import annotations

import math
from typing import Any

from deepgat.data.tables.opening import parse_json
from deepgat.errors import UserError, cut_middle
from deepgat.training.values import TOML_INTEGERS, typed

DEEPEST = 24
"""Lists and objects inside each other; records of ours have at most 6."""

_SHARES = {str: (float, None)}
_ERRORS = {"error": (float, None), "bayes_lower": (float, None)}
_LAYER = ("energy", "relative_energy", "neighbor_distance", "effective_rank",
          "same_class_attention", "uniform_same_class_attention")  # fmt: skip
_SPEC = {
    "system": str,
    "settings": {"num_layers": int, "score?": str},
    "training": {str: Any},
}
_MEASURES = {
    "nearest-neighbor?": ({"train": _ERRORS, "train+val": _ERRORS}, None),
    "layer-scores?": ({str: {int: float}}, None),
    "layer-accuracy?": ({int: float}, None),
    "over-smoothing?": ([[{"layer": int, **{f"{name}?": (float, None) for name in _LAYER}}]], None),
}
_DATA = {"dataset": str, "split": str}
TRAINED = {
    "dataset": str, "split": str, "seed": int, "micro_f1": _SHARES, "loss": _SHARES,
    "best_epoch": int, "epochs": int, "stopped": str, "seconds": float, **_SPEC,
    "data?": _DATA, "analysis?": {str: Any}, "measures?": _MEASURES, "versions?": {str: str},
    "hardware?": str, "wall_seconds?": float, "peak_memory?": {"bytes": int, "of": str},
    "metrics?": {str: _SHARES},
}  # fmt: skip
"""A line of ``deepgat train --json``; a name with a question mark may be missing."""
FINISHED = {
    "signature": str, "schema": int, "metrics?": TRAINED["metrics?"],
    **{name.removesuffix("?"): kind for name, kind in TRAINED.items() if name != "metrics?"},
}  # fmt: skip
"""The record of a run in a store, or in a file that was written from one."""
FAILURE = {"signature": str, "error": str, "traceback?": str, "data": _DATA, **_SPEC,
          "analysis": {str: Any}}  # fmt: skip
"""The failure of a run in a store, or a run that diverged in the file beside records."""


class DamagedEntry(Exception):  # noqa: N818 - a state of the files
    """What is there is not what was written, or was never a record; the message says why."""


def load_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object in a text: finite numbers of at most 64 bits, and not too deep."""
    try:
        value = parse_json(text, "it")
    except UserError as error:
        raise DamagedEntry("it is not JSON") from error
    if not isinstance(value, dict):
        raise DamagedEntry("it is not a JSON object")
    _check_plain(value, 0)
    return value


def _check_plain(value: Any, depth: int) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DamagedEntry(f"it has the number {value}: expected finite ones")
    elif isinstance(value, int):
        if value not in TOML_INTEGERS:
            raise DamagedEntry("it has a whole number of more than 64 bits")
    elif isinstance(value, dict | list):
        if depth > DEEPEST:
            raise DamagedEntry("it has too many lists or objects inside each other")
        for item in value.values() if isinstance(value, dict) else value:
            _check_plain(item, depth + 1)


def check(value: Any, kind: Any, where: str = "") -> None:
    """Raise :class:`DamagedEntry` unless a value of :func:`load_object` is of a kind.

    Kinds: ``{"name": kind, "perhaps?": kind}`` an object that has at least these fields,
    ``{str: kind}`` any names, ``{int: kind}`` whole numbers as names, ``[kind]`` a list,
    ``(kind, None)`` or null, ``Any`` anything, else a type.
    """
    if isinstance(kind, tuple):
        if value is not None:
            check(value, kind[0], where)
    elif isinstance(kind, dict):
        if not isinstance(value, dict):
            raise DamagedEntry(f"{where} is not a JSON object")
        _check_fields(value, kind, f"{where}." if where else "")
    elif isinstance(kind, list):
        if not isinstance(value, list):
            raise DamagedEntry(f"{where} is not a list")
        for item in value:
            check(item, kind[0], where)
    elif kind is not Any and type(value) is not kind:
        try:
            typed(where, value, kind)
        except UserError as error:
            raise DamagedEntry(cut_middle(str(error), 200)) from error


def _check_fields(value: dict[str, Any], kind: dict[Any, Any], above: str) -> None:
    if str in kind or int in kind:
        ((key, inner),) = kind.items()
        for name, item in value.items():
            if key is int and not (name.isdecimal() and len(name) < 10):
                raise DamagedEntry(f"{above}{cut_middle(name, 40)} is not the number of a layer")
            if inner is not Any:
                check(item, inner, above + name)
        return
    for name, inner in kind.items():
        plain = name.removesuffix("?")
        if plain in value:
            check(value[plain], inner, above + plain)
        elif plain == name:
            raise DamagedEntry(f"it has no {above}{name}")
