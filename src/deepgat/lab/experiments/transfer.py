"""Move runs between machines: tar files of a store, and files of records.

A file of records has one JSON object per line, without the arrays; a report reads it like a store.

Runs that diverged are results too, because the settings cause divergence, not the machine. A store
keeps them among its failures, a file of records in a second file beside it. So tables can tell a
diverged run from a missing one, and nobody repeats it.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from deepgat.data.tables.opening import check_unpacked, opened, read_whole
from deepgat.errors import UserError, printable
from deepgat.files import beside, check_can_write, to_json, write_whole, writing
from deepgat.lab.experiments.schema import FAILURE, DamagedEntry, check, load_object
from deepgat.lab.experiments.spec import SECTIONS
from deepgat.lab.experiments.store import MARKER, WORK, Store
from deepgat.lab.experiments.store_entry import (
    ARRAYS,
    RECORD,
    Record,
    check_signature,
    parse_record,
    read_arrays,
)

T = TypeVar("T")

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
RECORDS_ENDINGS = (".jsonl", ".jsonl.gz")
NAMED = 5
"""Lines of a file that are named one by one; the rest is counted."""
KEPT = ("signature", "error", *SECTIONS, "versions", "hardware")
"""What the file of diverged runs keeps of a failure."""


class Imported(NamedTuple):
    """The signatures of the offered runs, by outcome."""

    added: list[str]
    present: list[str]
    left_out: dict[str, str]
    """Signature → why: damaged, of another schema, or being executed by another process."""


def export_runs(store: Store, target: Path, signatures: Sequence[str] | None = None) -> int:
    """Write runs to a tar file or to a .jsonl file of records; returns their number."""
    records = [r for r in store.records() if signatures is None or r["signature"] in signatures]
    if target.name.endswith(RECORDS_ENDINGS):
        write_records(target, records)
        return len(records)
    if not target.name.endswith(TAR_ENDINGS):
        raise UserError(
            f"{target} has an ending that is not known: expected "
            f"{', '.join(TAR_ENDINGS + RECORDS_ENDINGS)}"
        )
    check_can_write(target)
    names = [record["signature"] for record in records]
    whole = [name for name in names if store.arrays(name) is not None]  # checks each
    partial = target.with_name(f".{target.name}.partial")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tarfile.open(partial, "w:gz" if target.name.endswith("gz") else "w") as tar:
                tar.add(store.folder / MARKER, MARKER)
                for signature in whole:
                    tar.add(store.path(signature), f"{signature[:2]}/{signature}")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return len(whole)


def import_runs(store: Store, source: Path) -> Imported:
    """Import the runs of a tar file or of another store; never replaces a valid entry."""
    if source.is_dir():
        return _copy(Store(source, create=False), store)
    with tempfile.TemporaryDirectory(dir=store.folder / WORK) as work:
        try:
            with opened(source) as file, tarfile.open(fileobj=file) as tar:
                held, total = os.fstat(file.fileno()).st_size, 0
                for member in tar:
                    if not (member.isfile() or member.isdir()):
                        raise UserError(f"{printable(member.name)} is neither a file nor a folder")
                    total += member.size
                    check_unpacked(source, held, total, remedy="export it as .tar")
                tar.extractall(work, filter="data")  # refuses what would leave the folder
        except Exception as error:  # tarfile raises many kinds of errors
            raise UserError(
                f"{source} cannot be read: expected a store, or a tar file written by deepgat "
                f"store export ({' '.join(str(error).split())})"
            ) from error
        if not (Path(work) / MARKER).exists():
            raise UserError(f"{source} is not a store of runs: it has no {MARKER}")
        return import_runs(store, Path(work))


def _copy(source: Store, target: Store) -> Imported:
    if source.folder.resolve() == target.folder.resolve():
        raise UserError(f"{source.folder} is the store itself: choose another one to import")
    result = Imported([], [], {})
    for signature in source.signatures():
        mine = target.claim(signature)
        if mine is None:
            result.left_out[signature] = "another process is making it"
            continue
        with mine:
            if target.get(signature) is not None:
                result.present.append(signature)
                continue
            try:
                with target.new_entry(mine, signature) as work:
                    for name in (RECORD, ARRAYS):
                        if (source.path(signature) / name).is_file():
                            shutil.copyfile(source.path(signature) / name, work / name)
                    read_arrays(work, signature)
                result.added.append(signature)
            except (DamagedEntry, UserError) as error:
                result.left_out[signature] = str(error)
    return result


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records, one JSON object per line, by signature; a name ending in .gz compresses."""
    ordered = sorted(records, key=lambda record: str(record["signature"]))
    content = "".join(to_json(record) for record in ordered).encode()
    # without a time stamp, so that equal records give equal files
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_records(path: Path) -> list[Record]:
    """The records of a store, or of a file that :func:`write_records` wrote."""
    if path.is_dir():
        return list(Store(path, create=False).records())
    return read_lines(path, parse_record, "the record of a run")


def diverged_beside(records: Path) -> Path:
    """The file of diverged runs that belongs to a file of records."""
    return beside(records, "diverged")


def read_diverged(source: Path) -> dict[str, Record]:
    """Signature → failure, from a store or from the file beside a file of records, if it exists."""
    if source.is_dir():
        failures = Store(source, create=False).failures()
        return {name: failure for name, failure in failures.items() if failure.get("diverged")}
    path = diverged_beside(source)
    lines = read_lines(path, _parse_diverged, "a run that diverged") if path.exists() else []
    return {failure["signature"]: failure for failure in lines}


def write_diverged(records: Path, failures: Iterable[Record]) -> None:
    """Write the file beside a file of records, by signature; remove it if nothing diverged."""
    kept = [{name: failure[name] for name in KEPT} for failure in failures]
    if kept:
        write_records(diverged_beside(records), kept)
    else:
        diverged_beside(records).unlink(missing_ok=True)


def _parse_diverged(line: str) -> Record:
    failure = load_object(line)
    check(failure, FAILURE)
    check_signature(failure)
    return failure


def read_lines(path: Path, parse: Callable[[str], T], what: str, strict: bool = True) -> list[T]:
    """What ``parse`` makes of each line of a file.

    A line that cannot be parsed raises an error, or, unless ``strict``, is left out with a warning.
    A file without any good line raises an error in either case.
    """
    try:
        lines = read_whole(path).decode()
    except (UserError, UnicodeDecodeError) as error:
        why = error if isinstance(error, UserError) else "it is not UTF-8"
        raise UserError(
            f"{path} cannot be read: expected a store, or a .jsonl or .jsonl.gz file of records "
            f"({why})"
        ) from error
    found = []
    wrong: list[UserError] = []
    for number, line in enumerate(lines.split("\n"), start=1):
        try:
            if line.strip():
                found.append(parse(line))
        except (DamagedEntry, UserError) as error:
            wrong.append(UserError(f"{path}, line {number}, is not {what}: {error}"))
            if strict:
                break
    if wrong and (strict or not found):
        raise wrong[0]
    for each in wrong[:NAMED]:
        warnings.warn(f"{each}; it is left out", stacklevel=2)
    if len(wrong) > NAMED:
        text = f"{path} has {len(wrong) - NAMED} more lines that are not {what}; they are left out"
        warnings.warn(text, stacklevel=2)
    return found
