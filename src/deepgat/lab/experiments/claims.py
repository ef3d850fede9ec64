"""Claims on runs, so that no two processes execute the same one.

A claim is an advisory lock (``flock``) on a file named by a run's signature. The operating system
releases it when its process ends, however it ends, so claims need no timeouts and no clock. Only
the lock counts; the file itself means nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from deepgat.errors import UserError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]


class Claim:
    """The right to execute one run, until :meth:`release` or the end of the process."""

    def __init__(self, signature: str, path: Path, descriptor: int) -> None:
        self.signature = signature
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)  # while the lock is still held
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def claim(folder: Path, signature: str) -> Claim | None:
    """The claim on a signature; None if another holder, in this process or another, has it."""
    if fcntl is None:
        raise UserError("a store of runs needs a system with file locks (Linux or macOS)")
    path = folder / signature
    while True:
        # Python closes its descriptors in child processes that run another program, so no child
        # keeps a claim alive.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return Claim(signature, path, descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        # The holder finished and removed the file after we opened it and before we locked it. A
        # lock on a removed file excludes nobody, so try again.
        os.close(descriptor)


def is_claimed(folder: Path, signature: str) -> bool:
    """Whether the claim is held now. Removes the file that a dead process left."""
    if not (folder / signature).exists():
        return False
    mine = claim(folder, signature)
    if mine is None:
        return True
    mine.release()
    return False
