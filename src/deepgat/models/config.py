"""Configurations: frozen dataclasses whose fields state their meaning and their range."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from deepgat.errors import UserError, unknown_name

MOST: Mapping[type, float] = {int: 10**15, float: 1e38}
"""The largest numbers that fields take unless they say otherwise: torch can hold them."""
MOST_LAYERS = 10_000


def setting(
    default: Any,
    meaning: str,
    options: tuple[str, ...] | None = None,
    *,
    kind: type | None = None,
    least: float | None = None,
    above: float | None = None,
    below: float = math.inf,
    most: float | None = None,
) -> Any:
    """A field of a configuration.

    Args:
        default: its value when it is left out; also says its type.
        meaning: shown by ``deepgat models NAME`` and in the documentation.
        options: the names it may have.
        kind: its type, where the default is None: a value that may be left out.
        least, above, below, most: the range of a number.
    """
    kind = type(default) if kind is None else kind
    made: Any = {"default_factory": list} if default == [] else {"default": default}
    most = MOST.get(kind) if most is None else most
    limits = {"least": least, "above": above, "below": below, "most": most}
    metadata = {"meaning": meaning, "options": options, "kind": kind, **limits}
    return dataclasses.field(metadata=metadata, **made)


def layers(default: int, meaning: str = "L, number of layers") -> Any:
    """The field of a network's depth."""
    return setting(default, meaning, least=1, most=MOST_LAYERS)


def share(default: float, meaning: str) -> Any:
    """A field from 0 to below 1."""
    return setting(default, meaning, least=0, below=1)


@dataclass(frozen=True)
class Config:
    """Base of all configurations: every field is checked by what :func:`setting` says of it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), field.metadata["kind"]
            if value is None and field.default is None:
                continue
            check_type(field.name, value, kind)
            options = field.metadata["options"]
            if options is not None and value not in options:
                raise unknown_name(field.name, value, options)
            if kind in (int, float):
                _check_range(field.name, value, field.metadata)
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together."""

    @classmethod
    def kinds(cls) -> dict[str, type]:
        """Name → type of every field."""
        return {field.name: field.metadata["kind"] for field in fields(cls)}

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def with_changes(self, changes: Mapping[str, Any], what: str = "setting") -> Self:
        """This configuration with some fields replaced; unknown names are refused."""
        for name in changes:
            if name not in self.kinds():
                raise unknown_name(what, name, self.kinds())
        return dataclasses.replace(self, **changes)


def check_type(name: str, value: Any, expected: type) -> None:
    """Refuse a value of another type; a whole number may stand for a float."""
    accepted = (int, float) if expected is float else (expected,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and expected is not bool):
        raise UserError(f"{name} is {value!r}: expected a value of type {expected.__name__}")


def _check_range(name: str, value: float, limits: Mapping[str, Any]) -> None:
    if abs(value) > limits["most"]:
        told = value if abs(value) < 10**30 else "too large"
        raise UserError(f"{name} is {told}: expected {limits['most']:,} or less")
    least, above, below = limits["least"], limits["above"], limits["below"]
    if least is not None and below < math.inf and not least <= value < below:
        raise UserError(
            f"{name} is {value}: expected a number of at least {least} and below {below}"
        )
    if least is not None and not least <= value < below:
        raise UserError(f"{name} is {value}: expected {least} or more")
    if above is not None and not above < value < below:
        raise UserError(f"{name} is {value}: expected a number above {above}")
