"""Opens files that a user names: regular files only, never a pipe or a device."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from deepgat.errors import UserError, printable


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
