"""The one error a user is meant to read.

Anything a user can get wrong (a name, a number, a file) raises :class:`UserError` with one
sentence: what is wrong, what was expected, what to do. The command line prints that sentence
and exits with code 2; everything else is a bug of ours and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in the input, told in one sentence that names it and says what to do."""


class Diverged(UserError):  # noqa: N818 - what training did
    """Training whose numbers are not finite any more: what these settings do, wherever they run."""


def printable(text: str) -> str:
    """A text for a terminal: what could move its cursor or change its colours is escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a misspelt name: says the nearest known one, and lists them all."""
    choices = sorted(known)
    near = difflib.get_close_matches(name.lower(), choices, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ("; " if any("," in choice for choice in choices) else ", ").join(choices)
    return UserError(f"unknown {kind} {name!r}: {hint}choose one of {listed}")
