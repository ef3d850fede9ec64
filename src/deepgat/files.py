"""Atomic writing of files and folders; what the disk refuses is told in a sentence."""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from deepgat.errors import UserError


class CannotWrite(UserError, OSError):  # noqa: N818 - what happened
    """The disk refuses: full, read-only, or no place for a file of this name."""


def disk_sentence(error: OSError, path: os.PathLike[str] | str) -> str:
    """What the disk said of a path, and what to do."""
    room = "make room there, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{path} cannot be written ({error.strerror or error}): {room}choose another path"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an error of writing to this path, or beside it, into one sentence for the user."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        if error.filename is not None:
            named, whole = Path(os.fsdecode(error.filename)).absolute(), path.absolute()
            if not (named.is_relative_to(whole.parent) or whole.is_relative_to(named)):
                raise  # of another file, which was read
        told = CannotWrite(disk_sentence(error, path))
        told.strerror = error.strerror or str(error)
        raise told from error


class FolderKind(NamedTuple):
    """A kind of folder that deepgat writes, and replaces, as a whole."""

    name: str
    marker: str
    """The file that identifies such a folder."""
    files: tuple[str, ...]
    """The names of all files it may contain."""


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON text with a final newline; NaN and infinity become null."""
    return json.dumps(_plain(value), indent=indent) + "\n"


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, then rename it: readers never see part of it."""
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.exists() and not path.is_file():  # a device or a pipe is written to, not replaced
            with path.open("wb") as file:
                file.write(data)
            return
        # Not mkstemp, whose files only the owner may read.
        temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            write_through(temporary, data)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_through(path: Path, content: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def new_folder(path: Path, kind: FolderKind) -> Iterator[Path]:
    """A folder that appears under its name once it is complete.

    It replaces an existing folder of its kind; anything else at this path is an error.
    """
    check_can_write(path, kind)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as work:
            fresh, old = Path(work) / "new", Path(work) / "old"
            fresh.mkdir()
            yield fresh
            if path.exists():
                if _exchange(fresh, path):
                    return
                path.rename(old)
            try:
                fresh.rename(path)
            except BaseException:
                if old.exists():
                    old.rename(path)
                raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, of which a kill leaves no half; False if impossible."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    names = os.fsencode(one.absolute()), os.fsencode(other.absolute())
    return rename is not None and rename(here, names[0], here, names[1], exchange) == 0


def check_can_write(path: Path, kind: FolderKind | None = None) -> None:
    """Refuse what could not be written; call it before long work.

    With ``kind``: a folder, which replaces nothing but one of its kind. Without: a file.
    """
    try:
        there = path.exists() or path.is_symlink()
        names = {inner.name for inner in path.iterdir()} if kind and path.is_dir() else set()
        own = Path.cwd().is_relative_to(path.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
        why = getattr(error, "strerror", None) or "a loop of links, or no name"
        raise UserError(f"{path} cannot be read ({why}): choose another path") from error
    if kind is None and path.is_dir():
        raise UserError(f"{path} is a folder: expected the name of a file")
    if kind and there and (not path.is_dir() or (names and kind.marker not in names)):
        raise UserError(
            f"{path} exists and is not a {kind.name} folder: choose another path, or remove it "
            "first"
        )
    if kind and (others := sorted(names.difference(kind.files))):
        raise UserError(
            f"{path} holds {others[0]} beside a {kind.name}, and would be replaced as a whole: "
            "choose another path, or move that file away first"
        )
    if kind and own:
        raise UserError(f"{path} is the current folder: choose another path")
    if path.exists() and not path.is_file() and not path.is_dir():
        return  # a device or a pipe
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise UserError(f"{above} is not a writable folder: choose another path")
    try:  # what the permissions say is not all: the disk may be read-only, or no disk at all
        tempfile.TemporaryDirectory(prefix=".deepgat-", dir=above).cleanup()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{above} is not a writable folder: choose another path") from error
        raise CannotWrite(disk_sentence(error, path)) from error


def _plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _plain(inner) for key, inner in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(inner) for inner in item]
    return None if isinstance(item, float) and not math.isfinite(item) else item


def beside(records: Path, what: str) -> Path:
    """The companion file of runs.jsonl (or runs.jsonl.gz): runs.WHAT.jsonl."""
    stem = records.name.removesuffix(".gz").removesuffix(".jsonl")
    return records.with_name(f"{stem}.{what}.jsonl")
