"""Who works on what: claims that die with the process that holds them.

A claim is an advisory lock (``flock``) on a file named by a run's signature. The operating system
lets go of it when its process ends, however it ends, so there is nothing to time out and no clock
to trust. The file itself means nothing; only the lock on it does.
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
    """The right to make one run; let go of by :meth:`release`, or by the end of the process."""

    def __init__(self, signature: str, path: Path, descriptor: int) -> None:
        self.signature = signature
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)  # before letting go: nobody else can hold it now
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
    """The claim on a signature, or None while someone else, in any process, holds it."""
    if fcntl is None:
        raise UserError("a store of runs needs a system with file locks (Linux or macOS)")
    path = folder / signature
    while True:
        # Descriptors of Python are closed in child processes that run another program, so no
        # child keeps a claim alive.
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
        # Between our opening and locking it, its holder finished and removed the file: a lock on
        # that one excludes nobody any more.
        os.close(descriptor)


def is_claimed(folder: Path, signature: str) -> bool:
    """Whether someone holds the claim now; a file left by a dead process is removed on the way."""
    if not (folder / signature).exists():
        return False
    mine = claim(folder, signature)
    if mine is None:
        return True
    mine.release()
    return False
