"""Errors for users.

Every mistake in the input (a name, a number, a file) raises :class:`UserError` with one sentence:
what is wrong, what was expected, what to do. The command line prints that sentence and exits with
code 2. Any other exception is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable

MOST_SAID = 1500
"""Characters of a sentence."""
VERDICT = "DEEPGAT_VERDICT"
"""Environment variable: path of the file in which a process records that restarts are futile."""


class UserError(ValueError):
    """A mistake in the input; one sentence says what is wrong and what to do.

    What it quotes may be as long as a file; the middle of a very long sentence is left out.
    """

    def __str__(self) -> str:
        return cut_middle(super().__str__(), MOST_SAID)


class Diverged(UserError):  # noqa: N818 - what training did
    """Training reached values that are not finite; the same settings do so on any machine."""


def printable(text: str) -> str:
    """Text that is safe to print on a terminal: control characters are escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def cut_middle(text: str, most: int) -> str:
    """Text of at most ``most`` characters, a longer one without its middle: "/home/…/graph"."""
    if len(text) <= most:
        return text
    return f"{text[: (most - 1) // 2]}…{text[len(text) - most // 2 :]}"


def counted(number: int, thing: str, things: str = "") -> str:
    """ "1 edge", "2,000 edges"; ``things`` where the plural is not ``thing`` with an s."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a misspelt name: suggests the closest known name and lists all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name.lower(), choices, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ("; " if any("," in choice for choice in choices) else ", ").join(choices)
    return UserError(f"unknown {kind} {name!r}: {hint}choose one of {listed}")
