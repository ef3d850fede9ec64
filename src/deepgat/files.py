"""Atomic writing of files and folders."""

from __future__ import annotations

import json
import math
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from deepgat.errors import UserError


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
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not mkstemp, whose files only the owner may read.
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        write_through(temporary, content.encode() if isinstance(content, str) else content)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as work:
        fresh, old = Path(work) / "new", Path(work) / "old"
        fresh.mkdir()
        yield fresh
        if path.exists():
            path.rename(old)
        try:
            fresh.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise


def check_can_write(path: Path, kind: FolderKind) -> None:
    """Refuse to overwrite anything but a folder of this kind; call it before long work."""
    try:
        there = path.exists() or path.is_symlink()
        names = {inner.name for inner in path.iterdir()} if path.is_dir() else set()
        above = next(folder for folder in path.absolute().parents if folder.exists())
        own = Path.cwd().is_relative_to(path.resolve())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): choose another path") from error
    if there and (not path.is_dir() or (names and kind.marker not in names)):
        raise UserError(
            f"{path} exists and is not a {kind.name} folder: choose another path, or remove it "
            "first"
        )
    if others := sorted(names.difference(kind.files)):
        raise UserError(
            f"{path} holds {others[0]} beside a {kind.name}, and would be replaced as a whole: "
            "choose another path, or move that file away first"
        )
    if own:
        raise UserError(f"{path} is the current folder: choose another path")
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{above} is not a writable folder: choose another path")


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
