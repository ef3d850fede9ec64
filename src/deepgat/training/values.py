"""Plain values into frozen dataclasses, checked field by field; and TOML out of them.

Nothing here knows which settings there are: whatever fields a dataclass has, by their annotations,
are what a table may name. A setting added to a dataclass is known here at once.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar

from deepgat.errors import UserError, unknown_name

T = TypeVar("T")

_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
TOML_INTEGERS = range(-(2**63), 2**63)


def from_table(kind: type[T], table: Any, where: str) -> T:
    """The dataclass ``kind`` with the values of a table; unknown names are refused.

    Args:
        kind: a dataclass whose fields are texts, numbers, truth values, or tuples of them.
        table: name → value; fields left out keep their default.
        where: what to call the table in an error, such as "model".
    """
    values = checked_values(kind, table, where)
    for item in fields(kind):  # type: ignore[arg-type]
        required = item.default is MISSING and item.default_factory is MISSING
        if required and item.name not in values:
            word = _WORDS[field_types(kind)[item.name]]  # type: ignore[arg-type]
            raise UserError(f"{where}.{item.name} is missing: expected {word}")
    return kind(**values)


def checked_values(kind: type, table: Any, where: str) -> dict[str, Any]:
    """The values of a table, each in the type of its field; unknown names are refused."""
    if not isinstance(table, Mapping):
        raise UserError(f"{where} is {table!r}: expected a table of settings, [{where}]")
    hints = field_types(kind)
    for name in table:
        if name not in hints:
            what = "setting" if where == "settings" else f"{where} setting"
            raise unknown_name(what, str(name), hints)
    return {name: typed(f"{where}.{name}", value, hints[name]) for name, value in table.items()}


@cache
def field_types(kind: type) -> Mapping[str, Any]:
    """Field → type; kept, because working them out takes a millisecond."""
    return typing.get_type_hints(kind)


def typed(name: str, value: Any, hint: Any) -> Any:
    """The value in the type of its field: whole numbers become floats, lists become tuples."""
    inner = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{name} is {value!r}: expected a list")
        return tuple(typed(name, item, inner[0]) for item in value)
    if inner:  # X | None
        return None if value is None else typed(name, value, inner[0])
    accepted = (int, float) if hint is float else hint
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise UserError(f"{name} is {value!r}: expected {_WORDS[hint]}")
    if hint is float:
        value = float(value) if abs(value) < math.inf else math.nan
        if not math.isfinite(value):
            raise UserError(f"{name} is not finite: expected a number")
    if hint is int and value not in TOML_INTEGERS:
        raise UserError(f"{name} is {value}: expected a whole number of at most 64 bits")
    return value


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values as TOML text; a value of None is left out."""
    blocks = []
    for title, table in tables.items():
        lines = [f"{name} = {_toml(value)}" for name, value in table.items() if value is not None]
        blocks.append("\n".join([f"[{title}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the one control character that JSON lets pass.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    return "[" + ", ".join(map(_toml, value)) + "]"
