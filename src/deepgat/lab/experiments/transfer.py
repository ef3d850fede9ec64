"""Move runs between machines: export them from a store and import them into another.

A tar file holds a store. A file of records leaves the arrays out; a report reads it like a store.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from deepgat.errors import UserError
from deepgat.lab.experiments.records import write_records
from deepgat.lab.experiments.store import MARKER, WORK, Store
from deepgat.lab.experiments.store_entry import ARRAYS, RECORD, DamagedEntry, read_arrays

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
RECORDS_ENDINGS = (".jsonl", ".jsonl.gz")


class Imported(NamedTuple):
    """The signatures of the offered runs, by outcome."""

    added: list[str]
    present: list[str]
    left_out: dict[str, str]
    """Signature → why: damaged, of another schema, or being executed by another process."""


def export_runs(store: Store, target: Path, signatures: Sequence[str] | None = None) -> int:
    """Write runs to a tar file or to a .jsonl file of records; returns their number."""
    chosen = store.signatures() if signatures is None else list(signatures)
    if target.name.endswith(RECORDS_ENDINGS):
        records = [record for name in chosen if (record := store.get(name)) is not None]
        write_records(target, records)
        return len(records)
    if not target.name.endswith(TAR_ENDINGS):
        raise UserError(
            f"{target} has an ending that is not known: expected "
            f"{', '.join(TAR_ENDINGS + RECORDS_ENDINGS)}"
        )
    whole = [name for name in chosen if store.arrays(name) is not None]  # checks each
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(partial, "w:gz" if target.name.endswith("gz") else "w") as tar:
            tar.add(store.folder / MARKER, MARKER)
            for signature in whole:
                tar.add(store.path(signature), f"{signature[:2]}/{signature}")
        partial.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)
    return len(whole)


def import_runs(store: Store, source: Path) -> Imported:
    """Import the runs of a tar file or of another store; never replaces a valid entry."""
    if source.is_dir():
        return _copy(Store(source, create=False), store)
    with tempfile.TemporaryDirectory(dir=store.folder / WORK) as work:
        try:
            with tarfile.open(source) as tar:
                tar.extractall(work, filter="data")  # refuses what would leave the folder
        except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
            raise UserError(
                f"{source} cannot be read: expected a store, or a tar file written by deepgat "
                f"store export ({error})"
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
                        if (source.path(signature) / name).exists():
                            shutil.copyfile(source.path(signature) / name, work / name)
                    read_arrays(work, signature)
                result.added.append(signature)
            except (DamagedEntry, UserError) as error:
                result.left_out[signature] = str(error)
    return result
