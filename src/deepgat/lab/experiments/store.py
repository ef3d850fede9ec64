"""A folder of finished runs by signature. Each run in it is complete and was executed once.

::

    store.json          marks the folder as a store
    ab/ab12…/           one finished run; if the folder exists, the run is complete
    failed/ab12….json   the error of a run that failed
    claims/ab12…        locked by the process that executes the run
    tmp/ab12…/          being written, only by the holder of the claim
    damaged/ab12…-xy/   moved here because its checksums do not match

A run is written into ``tmp`` and renamed as a whole, so a process killed at any moment leaves a
complete entry or none. An entry changes only under its claim. A claim is an advisory lock
(``flock``), which the operating system releases when its process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

from torch import Tensor

from deepgat.errors import UserError
from deepgat.files import to_json, write_whole
from deepgat.lab.experiments.schema import FAILURE, DamagedEntry, check, load_object
from deepgat.lab.experiments.spec import RunSpec
from deepgat.lab.experiments.store_entry import (
    FORMAT,
    SIGNATURE,
    Record,
    read_arrays,
    read_file,
    read_record,
    write_entry,
)

T = TypeVar("T")

MARKER, KIND = "store.json", "deepgat store"
CLAIMS, WORK, FAILED, DAMAGED = "claims", "tmp", "failed", "damaged"

Claim: TypeAlias = IO[str]
"""The right to execute and write one run: a locked file, until it is closed."""


class Store:
    """Finished runs in a folder that any number of processes may use at once."""

    def __init__(self, folder: str | os.PathLike[str], create: bool = True) -> None:
        self.folder = Path(folder)
        marker, content = self.folder / MARKER, to_json({"kind": KIND, "format": FORMAT})
        try:
            if create and not marker.exists():
                names = [path.name for path in self.folder.glob("*")]
                # Another process may be creating the same store, or may just have finished.
                if all(MARKER in name for name in names):
                    write_whole(marker, content)
            odd = marker.exists() and not marker.is_file()  # such as a pipe, which is not opened
            found = "" if odd else marker.read_text(encoding="utf-8", errors="replace")
            for name in (CLAIMS, WORK, FAILED, DAMAGED) if create else ():
                (self.folder / name).mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise UserError(
                f"{self.folder} is not a store of runs: it has no {MARKER}; choose a folder that "
                "deepgat reproduce or deepgat run has made, or a new one for them to make"
            ) from error
        except OSError as error:
            if self.folder.is_file():
                raise UserError(f"{self.folder} is a file: expected a store's folder") from error
            raise UserError(
                f"the store {self.folder} cannot be used ({error.strerror}): choose another folder"
            ) from error
        if found != content:
            raise UserError(
                f"{marker} is not what this deepgat writes ({content.strip()}): choose another "
                "folder, or the deepgat that wrote this one"
            )

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

        A damaged entry is named in a warning, moved to ``damaged``, and counts as missing.
        """
        return self._read(signature, read_record)

    def arrays(self, signature: str) -> dict[str, Tensor] | None:
        """The arrays of a finished run, checked against its record; None as for :meth:`get`."""
        return self._read(signature, read_arrays)

    def records(self) -> Iterator[Record]:
        """Records of all finished runs, sorted by signature; a warning names one not readable."""
        for signature in self.signatures():
            try:
                record = self.get(signature)
            except UserError as error:  # of another schema, or not readable: it stays where it is
                warnings.warn(f"left out of {self.folder}: {error}", stacklevel=2)
                continue
            if record is not None:
                yield record

    def failure(self, signature: str) -> Record | None:
        """The failure of a run; None if there is none, or only a damaged one."""
        path = self._failure_path(signature)
        if not path.exists():
            return None
        try:
            failure = load_object(read_file(path))
            check(failure, {**FAILURE, "traceback": str})
        except (DamagedEntry, UserError) as error:
            text = f"{path} is damaged ({error}) and does not count: the run is tried again"
            warnings.warn(text, stacklevel=2)
            return None
        return failure

    def failures(self) -> dict[str, Record]:
        """Signature → failure, of runs that failed and have not succeeded since."""
        names = sorted(path.stem for path in (self.folder / FAILED).glob("*.json"))
        names = [name for name in names if SIGNATURE.fullmatch(name)]
        found = {name: self.failure(name) for name in names if not self.path(name).exists()}
        return {name: failure for name, failure in found.items() if failure is not None}

    def claim(self, signature: str) -> Claim | None:
        """The claim on a run; None while another holder, here or in another process, has it."""
        # Python closes its files in child processes that run another program, so no child keeps a
        # claim alive.
        path = self.folder / CLAIMS / signature
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a regular file: remove it")
        path.parent.mkdir(exist_ok=True)
        file = path.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def is_claimed(self, signature: str) -> bool:
        mine = self.claim(signature)
        if mine is not None:
            mine.close()
        return mine is None

    @contextmanager
    def new_entry(self, claim: Claim, signature: str) -> Iterator[Path]:
        """An empty folder that becomes the entry of a run if the block ends without an error.

        An entry that is there must be damaged; it is moved to ``damaged``.
        """
        assert not claim.closed
        work, target = self.folder / WORK / signature, self.path(signature)
        shutil.rmtree(work, ignore_errors=True)  # left by a killed process
        work.mkdir()
        try:
            yield work
            self._set_aside_if_damaged(signature)
            target.parent.mkdir(exist_ok=True)
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self.forget_failure(signature)

    def add(self, claim: Claim, record: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Record:
        """Store a finished run, completely or not at all; returns the record as written."""
        with self.new_entry(claim, record["signature"]) as work:
            return write_entry(work, record, arrays)

    def fail(self, claim: Claim, spec: RunSpec, error: str, trace: str, **more: Any) -> None:
        """Store the failure of a run."""
        assert not claim.closed
        record = {
            "signature": spec.signature,
            "error": error,
            "traceback": trace,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            **spec.to_dict(),
            **more,
        }
        try:
            write_whole(self._failure_path(spec.signature), to_json(record, indent=1))
        except OSError as problem:
            raise UserError(
                f"the store {self.folder} cannot be written ({problem.strerror}): make room, or "
                "choose another store"
            ) from problem

    def forget_failure(self, signature: str) -> None:
        self._failure_path(signature).unlink(missing_ok=True)

    def remove(self, signature: str) -> None:
        """Remove a run and its failure from the store."""
        mine = self.claim(signature)
        if mine is None:
            raise UserError(
                f"the run {signature} is being made by another process: stop that first"
            )
        with mine:
            shutil.rmtree(self.path(signature), ignore_errors=True)
            self.forget_failure(signature)

    def verify(self) -> tuple[int, dict[str, str]]:
        """Read all entries in full, move damaged ones away, remove leftovers of killed processes.

        Returns the number of good entries, and what is wrong with the others by signature.
        """
        good, damaged = 0, {}
        leftovers = [path.name for path in (self.folder / WORK).glob("*")]
        for signature in sorted(filter(SIGNATURE.fullmatch, {*self.signatures(), *leftovers})):
            mine = self.claim(signature)
            if mine is None:  # another process is making it
                continue
            with mine:
                shutil.rmtree(self.folder / WORK / signature, ignore_errors=True)
                try:
                    why = self._set_aside_if_damaged(signature)
                except UserError as error:  # of another schema: left where it is
                    why = str(error)
                if why:
                    damaged[signature] = why
                else:
                    good += self.path(signature).exists()
        return good, damaged

    def _failure_path(self, signature: str) -> Path:
        return self.folder / FAILED / f"{signature}.json"

    def _read(self, signature: str, read: Callable[[Path, str], T]) -> T | None:
        folder = self.path(signature)
        try:
            return read(folder, signature) if folder.exists() else None
        except DamagedEntry as error:
            text = f"the run {signature} in {self.folder} is damaged ({error}) and does not count"
            warnings.warn(text, stacklevel=3)
            with suppress(OSError):  # a folder that is only readable
                mine = self.claim(signature)
                if mine is not None:  # else its holder will replace the entry
                    with mine:
                        self._set_aside_if_damaged(signature)
            return None

    def _set_aside_if_damaged(self, signature: str) -> str:
        """For the holder of the claim; returns what is wrong with the entry."""
        try:
            if self.path(signature).exists():
                read_arrays(self.path(signature), signature)
            return ""
        except DamagedEntry as error:
            place = self.folder / DAMAGED
            place.mkdir(exist_ok=True)
            free = Path(tempfile.mkdtemp(prefix=f"{signature}-", dir=place))
            free.rmdir()  # the entry may be something else than a folder
            self.path(signature).rename(free)
            return str(error)
