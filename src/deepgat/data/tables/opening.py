"""Opens and parses files of anyone: regular files only, and not more than they plainly hold.

Whatever reads foreign files asks here: no pipe or device is opened, nothing unpacks without end,
and no parser's own exception gets out.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from deepgat.errors import UserError, printable

MOST_TEXT = 2**30
"""Bytes of a file that is parsed as a whole."""
MOST_UNPACKED = 2**30
"""An archive may always unpack to this many bytes."""
MOST_LINES = 2**26
"""Compressed text may always unpack to this many bytes."""
MOST_RATIO = 100
"""A larger archive may unpack to at most this many times its own size."""
MOST_DEPTH = 100
"""Lists and tables inside each other."""


def shown(path: os.PathLike[str] | str) -> str:
    """A path for a message: unprintable characters are escaped, so that it stays on one line."""
    return printable(os.fspath(path))


def kind_of(path: Path) -> str:
    """ "file", "folder", or "" if nothing exists; a :class:`UserError` for anything else."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:  # a loop of links, a name too long, a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shown(path)} cannot be opened ({reason}): give another path") from error
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    raise UserError(f"{shown(path)} is neither a regular file nor a folder: give one of these")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file, open for reading; a :class:`UserError` if that fails."""
    if kind_of(path) != "file":
        what = "is a folder" if kind_of(path) == "folder" else "is not there"
        raise UserError(f"{shown(path)} {what}: expected a file")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UserError(
            f"{shown(path)} cannot be read ({error.strerror or error}): check its permissions"
        ) from error


@contextmanager
def parsing(what: str, remedy: str) -> Iterator[None]:
    """Tells any error of a parser in a sentence: their exceptions have no common parent."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} ({one_line(error)}): {remedy}") from error


def one_line(error: Exception) -> str:
    """The type and the beginning of an error's text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__


def read_whole(path: Path) -> bytes:
    """The content of a file to parse; that of a .gz file is unpacked."""
    with opened(path) as file:
        held = os.fstat(file.fileno()).st_size
        if held > MOST_TEXT:
            raise UserError(f"{shown(path)} has more than {MOST_TEXT:,} bytes: this is refused")
        if path.suffix != ".gz":
            return file.read()
        most = max(MOST_LINES, MOST_RATIO * held)
        try:
            content = gzip.GzipFile(fileobj=file).read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            why = f"{shown(path)} is damaged, or not compressed by gzip: save it again"
            raise UserError(why) from error
        check_unpacked(path, held, len(content), MOST_LINES, "save it uncompressed")
        return content


def check_unpacked(
    path: Path, held: int, total: int, always: float = MOST_UNPACKED, remedy: str = ""
) -> None:
    """Refuse what unpacks to far more than it holds."""
    if total > max(always, MOST_RATIO * held):
        raise UserError(
            f"{shown(path)} has {held:,} bytes and unpacks to {total:,} or more: this is refused; "
            f"if that is correct, {remedy}"
        )


def parse_json(text: str | bytes, what: str) -> Any:
    """The value of a JSON text; the error says that ``what`` is none."""
    try:
        value = json.loads(text)
        _check_depth(value)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise UserError(f"{what} is not JSON: write it again") from error
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    try:
        tables = tomllib.loads(text)
        _check_depth(tables)
    except (ValueError, RecursionError) as error:
        deep = "too many lists or tables inside each other"
        why = deep if isinstance(error, RecursionError) else error
        raise UserError(f"not a TOML text ({why}): expected sections such as [data]") from error
    return tables


def _check_depth(value: Any) -> None:
    """Refuse lists and tables so deep in each other that code which walks them would not end.

    A parser may take them: ``a.a.a. … = 1`` in TOML is a table per letter.
    """
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise RecursionError
