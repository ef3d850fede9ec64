"""A folder of finished runs by signature. Each run in it is complete and was executed once.

::

    store.json          marks the folder as a store
    ab/ab12…/           one finished run; if the folder exists, the run is complete
    failed/ab12….json   the error of a run that failed
    claims/ab12…        locked by the process that executes the run
                        (:mod:`deepgat.lab.experiments.claims`)
    tmp/ab12…/          being written, only by the holder of the claim
    damaged/ab12…-1/    moved here because its checksums do not match

A run is written into ``tmp`` and renamed as a whole, so a process killed at any moment leaves a
complete entry or none. An entry changes only under its claim, and only after another look at it:
another process may have finished, damaged or removed it before the claim was taken.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from deepgat.errors import UserError
from deepgat.lab.experiments import claims
from deepgat.lab.experiments.claims import Claim
from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.experiments.store_entry import (
    FORMAT,
    SIGNATURE,
    DamagedEntry,
    Record,
    read_arrays,
    read_record,
    write_entry,
)
from deepgat.model_folder import to_json, write_whole

MARKER = "store.json"
KIND = "deepgat store"
CLAIMS, WORK, FAILED, DAMAGED = "claims", "tmp", "failed", "damaged"


class Damage(NamedTuple):
    """A damaged entry."""

    signature: str
    why: str
    moved_to: Path | None
    """None if another process holds the claim on the entry."""


class Verified(NamedTuple):
    """The result of :meth:`Store.verify`."""

    good: int
    damaged: list[Damage]


class Store:
    """Finished runs in a folder that any number of processes may use at once."""

    def __init__(self, folder: str | os.PathLike[str], create: bool = True) -> None:
        self.folder = Path(folder)
        if not _is_store(self.folder):
            if not create:
                raise UserError(
                    f"{self.folder} is not a store of runs: it has no {MARKER}; deepgat reproduce "
                    "and deepgat run make one"
                )
            _make_store(self.folder)

    # ------------------------------------------------------------------------------- reading

    def path(self, signature: str) -> Path:
        return self.folder / signature[:2] / signature

    def signatures(self) -> list[str]:
        """Signatures of all entries, damaged ones included, sorted."""
        found = (path.name for path in self.folder.glob("[0-9a-f][0-9a-f]/*"))
        return sorted(name for name in found if SIGNATURE.fullmatch(name))

    def find(self, beginning: str) -> str:
        """The only signature of a finished or failed run with this beginning."""
        known = {*self.signatures(), *self.failures()}
        matches = sorted(name for name in known if name.startswith(beginning))
        if len(matches) != 1:
            many = f"{len(matches)} runs begin" if matches else "no run begins"
            raise UserError(
                f"{many} with {beginning!r} in {self.folder}: see deepgat store ls for signatures"
            )
        return matches[0]

    def get(self, signature: str) -> Record | None:
        """The record of a finished run; None if the store does not have it.

        A damaged entry is moved to ``damaged`` with a warning, and counts as missing.
        """
        try:
            return self._read(signature)
        except DamagedEntry as error:
            self._set_aside(signature, str(error))
            return None

    def records(self) -> Iterator[Record]:
        """Records of all finished runs, sorted by signature."""
        for signature in self.signatures():
            record = self.get(signature)
            if record is not None:
                yield record

    def arrays(self, signature: str) -> dict[str, Tensor] | None:
        """The arrays of a finished run, checked against its record; None as for :meth:`get`."""
        record = self.get(signature)
        if record is None:
            return None
        try:
            return read_arrays(self.path(signature), record)
        except DamagedEntry as error:
            self._set_aside(signature, str(error))
            return None

    def failures(self) -> dict[str, Record]:
        """Signature → failure, of runs that failed and have not succeeded since."""
        found = {}
        for path in sorted((self.folder / FAILED).glob("*.json")):
            if SIGNATURE.fullmatch(path.stem) and not self.path(path.stem).exists():
                with suppress(OSError, ValueError):  # removed meanwhile or damaged: retried
                    found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        return found

    # ------------------------------------------------------------------------------- writing

    def claim(self, signature: str) -> Claim | None:
        """The claim on a run; None while another process holds it."""
        return claims.claim(self.folder / CLAIMS, signature)

    def is_claimed(self, signature: str) -> bool:
        return claims.is_claimed(self.folder / CLAIMS, signature)

    def add(self, claim: Claim, record: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Record:
        """Store a finished run, completely or not at all; returns the record as written."""
        work = self.work_folder(claim)
        written = write_entry(work, record, arrays)
        self.publish(claim, work)
        return written

    def finished(self, claim: Claim) -> Record | None:
        """As :meth:`get`, for the holder of the claim: the answer holds as long as the claim."""
        assert claim.held
        try:
            return self._read(claim.signature)
        except DamagedEntry as error:
            self._move_away(claim, str(error))
            return None

    def work_folder(self, claim: Claim) -> Path:
        """An empty folder in which the holder of a claim may write."""
        assert claim.held
        work = self.folder / WORK / claim.signature
        if work.exists():  # left by a killed process; the holder of the claim owns it
            shutil.rmtree(work)
        work.mkdir()
        return work

    def publish(self, claim: Claim, work: Path) -> None:
        """Turn a complete work folder into the entry, and remove any earlier failure."""
        assert claim.held
        target = self.path(claim.signature)
        target.parent.mkdir(exist_ok=True)
        os.rename(work, target)  # fails if the entry exists
        _sync_folder(target.parent)
        self._forget_failure(claim.signature)

    def fail(self, claim: Claim, spec: RunSpec, error: str, trace: str, **more: Any) -> Record:
        """Store the failure of a run."""
        assert claim.held
        record = {
            "signature": claim.signature,
            "error": error,
            "traceback": trace,
            "when": now(),
            **spec.to_dict(),
            **more,
        }
        try:
            write_whole(self.folder / FAILED / f"{claim.signature}.json", to_json(record, indent=1))
        except OSError as problem:
            raise UserError(
                f"the store {self.folder} cannot be written ({problem.strerror}): make room, or "
                "choose another --store"
            ) from problem
        return record

    def remove(self, signature: str) -> None:
        """Remove a run and its failure from the store."""
        mine = self.claim(signature)
        if mine is None:
            raise UserError(
                f"the run {signature} is being made by another process: stop that first"
            )
        with mine:
            self._discard(signature)
            self._forget_failure(signature)

    def verify(self) -> Verified:
        """Read all entries in full, move damaged ones away, remove leftovers of dead processes."""
        good, damaged = 0, []
        for signature in self.signatures():
            try:
                good += self._read_in_full(signature) is not None  # None if removed meanwhile
            except DamagedEntry as error:
                with warnings.catch_warnings():  # the result names it
                    warnings.simplefilter("ignore")
                    moved_to = self._set_aside(signature, str(error))
                damaged.append(Damage(signature, str(error), moved_to))
        self._sweep()
        return Verified(good, damaged)

    # ------------------------------------------------------------------------------- inside

    def _read_in_full(self, signature: str) -> Record | None:
        record = self._read(signature)
        if record is not None:
            read_arrays(self.path(signature), record)
        return record

    def _read(self, signature: str) -> Record | None:
        folder = self.path(signature)
        try:
            return read_record(folder, signature)
        except DamagedEntry:
            if not folder.exists():
                return None
            raise

    def _set_aside(self, signature: str, why: str) -> Path | None:
        """Move a damaged entry away, under its claim and only if it is still damaged."""
        mine = self.claim(signature)
        if mine is None:
            return None
        with mine:
            try:
                self._read_in_full(signature)
                return None  # another process has moved it, and perhaps repeated the run
            except DamagedEntry:
                return self._move_away(mine, why)

    def _move_away(self, claim: Claim, why: str) -> Path:
        number = 1
        while (target := self.folder / DAMAGED / f"{claim.signature}-{number}").exists():
            number += 1
        os.rename(self.path(claim.signature), target)
        warnings.warn(
            f"the run {claim.signature} in {self.folder} was damaged ({why}): it is set aside as "
            f"{target.name} in its folder {DAMAGED}, and does not count",
            stacklevel=4,
        )
        return target

    def _discard(self, signature: str) -> None:
        """Remove an entry at once by a rename, then delete its files."""
        entry = self.path(signature)
        if entry.exists():
            work = self.folder / WORK / signature
            if work.exists():
                shutil.rmtree(work)
            os.rename(entry, work)
            shutil.rmtree(work)

    def _forget_failure(self, signature: str) -> None:
        (self.folder / FAILED / f"{signature}.json").unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove work folders and claim files of dead processes."""
        names = [*(self.folder / WORK).iterdir(), *(self.folder / CLAIMS).iterdir()]
        for signature in {path.name for path in names}:
            if SIGNATURE.fullmatch(signature) and (mine := self.claim(signature)) is not None:
                with mine:
                    shutil.rmtree(self.folder / WORK / signature, ignore_errors=True)


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_store(folder: Path) -> bool:
    try:
        found = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        kind, number = found["kind"], found["format"]
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise UserError(f"{folder} is a file: expected the folder of a store") from error
    except OSError as error:
        raise UserError(f"{folder / MARKER} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / MARKER} is damaged: expected the file of a store") from error
    if kind != KIND:
        raise UserError(f"{folder} is a {kind}, not a store of runs: choose another folder")
    if number != FORMAT:
        raise UserError(
            f"{folder} is a store of format {number}, but this deepgat reads format {FORMAT}: "
            "choose another folder, or the deepgat that wrote this one"
        )
    return True


def _make_store(folder: Path) -> None:
    try:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        # Another process may be creating the same store, or was killed while doing so.
        strange = [
            n for n in names if n not in _OWN_FOLDERS and not n.lstrip(".").startswith(MARKER)
        ]
        if strange and not _is_store(folder):  # another process may have finished it
            raise UserError(
                f"{folder} holds other things and is not a store of runs: choose a new folder"
            )
        for name in _OWN_FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        write_whole(folder / MARKER, to_json({"kind": KIND, "format": FORMAT}))
    except OSError as error:
        raise UserError(
            f"no store of runs can be made in {folder} ({error.strerror}): choose another folder"
        ) from error


_OWN_FOLDERS = {CLAIMS, WORK, FAILED, DAMAGED}


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
