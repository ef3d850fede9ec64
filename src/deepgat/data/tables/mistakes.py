"""Mistakes in a table, as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from deepgat.data.tables.text import Mistake
from deepgat.errors import UserError


class Found(NamedTuple):
    """A mistake, and its place among the rows of a table or a block."""

    row: int
    column: int
    """From 0; −1 if the whole row is wrong."""
    what: Mistake
    text: bytes = b""
    cells: int = 0


def explain(found: Found, where: str, names: Sequence[str]) -> UserError:
    """A mistake as a sentence that names file, line and column."""
    if found.column >= 0:
        known = found.column < len(names)
        where += f", column {names[found.column]!r}" if known else f", cell {found.column + 1}"
    text = quoted(found.text)
    match found.what:
        case Mistake.CELLS:
            why = f"there are {found.cells} cells, but {len(names)} columns; repair the line"
        case Mistake.NOT_A_NUMBER:
            why = f"{text} is not a number; write a number such as 0.5"
        case Mistake.REPEATED:
            why = f"the id {text} is there a second time; give every node its own id"
        case Mistake.UNKNOWN:
            why = f"the id {text} is not among the nodes; add the node, or remove the edge"
        case Mistake.EMPTY_ID:
            why = "the id is missing; fill it in"
        case Mistake.NOT_UTF8:
            why = f"{text} is not UTF-8; save the file as UTF-8"
        case Mistake.NUL_BYTE:
            why = "there is a NUL byte, so this is not a text file; export it anew"
        case Mistake.OPEN_QUOTE:
            why = "a quote is opened and never closed; close it, or the file was cut short"
        case Mistake.AFTER_QUOTE:
            why = f"text follows the closing quote of {text}; write a quote inside as two quotes"
    return UserError(f"{where}: {why}")


def quoted(text: bytes | str, most: int = 40) -> str:
    """A piece of a file in a sentence: short, on one line, unprintable characters escaped."""
    plain = text.decode(errors="backslashreplace") if isinstance(text, bytes) else text
    return ascii(plain[:most] + "…") if len(plain) > most else repr(plain)
