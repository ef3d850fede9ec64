"""Each reader for a share of the time that ``make fuzz`` has: it reads, or says why not."""

import contextlib
import faulthandler
import os
import resource
import shutil
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from deepgat.errors import UserError

from changes import Files, write
from readers import READERS, Reader

pytestmark = pytest.mark.fuzz
SECONDS = float(os.environ.get("DEEPGAT_FUZZ_SECONDS", "10"))
"""For all readers together, in all processes."""
LONGEST = 10
"""Seconds that one example may take."""
MOST_MEMORY = 2**30
"""Bytes that one example may add to the largest memory so far."""
HERE = Path(__file__).parents[2]
FAILED = HERE / "build" / "fuzz"


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """An error after :data:`LONGEST` seconds, or :data:`MOST_MEMORY` more bytes."""

    def late(*_: object) -> None:
        raise AssertionError(f"not read after {LONGEST} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    faulthandler.dump_traceback_later(6 * LONGEST, exit=True)  # where no signal gets through
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
    more = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert more < MOST_MEMORY, f"it took {more >> 20} MiB"


def attempt(reader: Reader, files: Files, folder: Path) -> bool:
    """Whether the files were read; if not, in one sentence."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(folder, files)
    with warnings.catch_warnings(), limits():
        warnings.simplefilter("ignore")
        try:
            reader.read(folder)
        except UserError as error:
            said = str(error)
        else:
            return True
    assert said
    assert "\n" not in said
    assert len(said) < 2000, f"{len(said)} characters"
    return False


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_it_reads_or_says_why_not(reader, tmp_path, record_property):
    kept, counts, failed = FAILED / reader.name, [0, 0], []
    shutil.rmtree(kept, ignore_errors=True)

    @settings(
        max_examples=200,
        deadline=None,
        derandomize=False,
        database=DirectoryBasedExampleDatabase(HERE / ".hypothesis" / "fuzz" / reader.name),
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(files=reader.files())
    def some(files: Files) -> None:
        if time.monotonic() > end and not failed:
            return  # the rest of the last two hundred
        counts[0] += 1
        try:
            counts[1] += attempt(reader, files, tmp_path / "files")
        except Exception as error:
            failed.append(error)
            shutil.rmtree(kept, ignore_errors=True)
            write(kept, files)  # of several, the last is the smallest
            raise

    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    end = time.monotonic() + SECONDS * workers / len(READERS)
    try:
        while time.monotonic() < end:
            some()
    except BaseException:
        print(f"the smallest files found that do this are in {kept}")
        raise
    finally:
        record_property("examples", [reader.name, *counts])
