"""Move runs between machines: export them from a store and import them into another.

A tar file holds the entries of a store as they are; a tar file with anything else is refused. A
file of records, one JSON object per line, leaves the arrays out. A report reads it like a store.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from deepgat.errors import UserError
from deepgat.lab.experiments.store import KIND, MARKER, Store
from deepgat.lab.experiments.store_entry import (
    ARRAYS,
    FORMAT,
    RECORD,
    SIGNATURE,
    DamagedEntry,
    Record,
    parse_record,
    read_arrays,
    read_record,
)
from deepgat.model_folder import to_json, write_whole

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
RECORDS_ENDINGS = (".jsonl", ".jsonl.gz")
MEMBER = re.compile(f"[0-9a-f]{{2}}/({SIGNATURE.pattern})/({re.escape(RECORD)}|{ARRAYS})")


class Imported(NamedTuple):
    """The signatures of the offered runs, by outcome."""

    added: list[str]
    present: list[str]
    damaged: dict[str, str]
    """Signature → why it was left out: the entry is damaged, or has another schema."""
    busy: list[str]
    """Left out, because a process is executing the run on this store."""


# ------------------------------------------------------------------------------------ out


def export_runs(store: Store, target: Path, signatures: Sequence[str] | None = None) -> int:
    """Write runs to a tar file, a .jsonl file of records, or a store, which may exist."""
    chosen = store.signatures() if signatures is None else list(signatures)
    if target.name.endswith(RECORDS_ENDINGS):
        records = [record for name in chosen if (record := store.get(name)) is not None]
        write_records(target, records)
        return len(records)
    if target.name.endswith(TAR_ENDINGS):
        return _export_tar(store, target, chosen)
    if target.suffix and not target.is_dir():
        raise UserError(
            f"{target} has an ending that is not known: expected "
            f"{', '.join(TAR_ENDINGS + RECORDS_ENDINGS)}, or a folder"
        )
    if target.resolve() == store.folder.resolve():
        raise UserError(f"{target} is the store itself: choose another folder")
    result = _import(Store(target), _FolderSource(store), chosen)
    return len(result.added) + len(result.present)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records, one JSON object per line, by signature; a name ending in .gz compresses."""
    ordered = sorted(records, key=lambda record: str(record["signature"]))
    content = "".join(to_json(record) for record in ordered).encode()
    # without a time stamp, so that equal records give equal files
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_records(path: Path, parse: Callable[[str], Record] = parse_record) -> list[Record]:
    """The records of a store, or of a file that :func:`write_records` wrote."""
    if path.is_dir():
        return list(Store(path, create=False).records())
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        lines = content.decode().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read: expected a store, or a .jsonl or .jsonl.gz file of records"
        ) from error
    records = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                records.append(parse(line))
            except (DamagedEntry, UserError) as error:
                raise UserError(
                    f"{path}, line {number}, is not the record of a run: {error}"
                ) from error
    return records


def _export_tar(store: Store, target: Path, signatures: Sequence[str]) -> int:
    written = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with tarfile.open(partial, "w:gz" if target.name.endswith("gz") else "w") as tar:
            marker = to_json({"kind": KIND, "format": FORMAT}).encode()
            header = tarfile.TarInfo(MARKER)
            header.size = len(marker)
            tar.addfile(header, io.BytesIO(marker))
            for signature in signatures:
                if store.arrays(signature) is None:  # damaged: was set aside, with a warning
                    continue
                for name in (RECORD, ARRAYS):
                    path = store.path(signature) / name
                    tar.add(path, f"{signature[:2]}/{signature}/{name}", filter=_anonymous)
                written += 1
        partial.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)
    return written


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


# ------------------------------------------------------------------------------------ in


def import_runs(store: Store, source: Path) -> Imported:
    """Import the runs of a tar file or of another store; never replaces a valid entry."""
    if source.is_dir():
        offered = _FolderSource(Store(source, create=False))
        if source.resolve() == store.folder.resolve():
            raise UserError(f"{source} is the store itself: choose another one to import")
        return _import(store, offered, offered.store.signatures())
    with _opened_tar(source) as tar:
        return _import(store, tar, list(tar.members))


def _import(store: Store, source: _Source, signatures: Sequence[str]) -> Imported:
    result = Imported([], [], {}, [])
    for offered in signatures:
        mine = store.claim(offered)
        if mine is None:
            result.busy.append(offered)
            continue
        with mine:
            if store.finished(mine) is not None:
                result.present.append(offered)
                continue
            work = store.work_folder(mine)
            try:
                source.copy(offered, work)
                read_arrays(work, read_record(work, offered))
            except (DamagedEntry, UserError) as error:
                result.damaged[offered] = str(error)
                shutil.rmtree(work)
                continue
            store.publish(mine, work)
            result.added.append(offered)
    return result


class _FolderSource:
    """Entries of another store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def copy(self, signature: str, target: Path) -> None:
        for name in (RECORD, ARRAYS):
            try:
                shutil.copyfile(self.store.path(signature) / name, target / name)
            except FileNotFoundError as error:
                raise DamagedEntry(f"it has no file {name}") from error


class _TarSource:
    """Entries of a tar file. Every member is checked before any is read."""

    def __init__(self, tar: tarfile.TarFile, path: Path) -> None:
        self.tar = tar
        self.members: dict[str, dict[str, tarfile.TarInfo]] = {}
        for member in tar:
            match = MEMBER.fullmatch(member.name)
            fits = match is not None and match[1][:2] == member.name[:2]
            if not member.isreg() or not (fits or member.name == MARKER):
                raise UserError(
                    f"{path} holds {member.name!r}, which no store does: expected a file written "
                    "by deepgat store export; nothing was imported"
                )
            if match is not None:
                self.members.setdefault(match[1], {})[match[2]] = member

    def copy(self, signature: str, target: Path) -> None:
        for name in (RECORD, ARRAYS):
            member = self.members[signature].get(name)
            content = None if member is None else self.tar.extractfile(member)
            if content is None:
                raise DamagedEntry(f"it has no file {name}")
            with content, (target / name).open("xb") as file:
                try:
                    shutil.copyfileobj(content, file)
                except (tarfile.TarError, EOFError, OSError) as error:
                    raise DamagedEntry(f"{name} is cut short") from error


_Source = _FolderSource | _TarSource


@contextmanager
def _opened_tar(path: Path) -> Iterator[_TarSource]:
    try:
        tar = tarfile.open(path, "r:*")  # noqa: SIM115 - closed below
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UserError(
            f"{path} cannot be read: expected a store, or a tar file written by deepgat store "
            "export"
        ) from error
    with tar:
        try:
            source = _TarSource(tar, path)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise UserError(f"{path} is damaged ({error}): export it again") from error
        yield source
